//! `openapi.json` as a judge of answers.

use kernelzero::service::http::OPENAPI;
use serde_json::{Value, json};

use crate::served::Answer;

pub fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

/// The document's path for a request's.
fn template(document: &Value, path: &str) -> Option<String> {
    let path = path.split('?').next().unwrap();
    let fits = |template: &&String| {
        let (ours, theirs) = (path.split('/'), template.split('/'));
        ours.clone().count() == theirs.clone().count()
            && ours.zip(theirs).all(|(our, their)| our == their || their.starts_with('{'))
    };
    let paths = document["paths"].as_object().unwrap();
    // Words before parameters: `/v1/judge/batch` is not a job.
    let mut found: Vec<&String> = paths.keys().filter(fits).collect();
    found.sort_by_key(|template| template.contains('{'));
    found.first().map(|template| (*template).clone())
}

/// `value` is what the document calls `schema`.
#[track_caller]
pub fn is(document: &Value, schema: &Value, value: &Value) {
    let mut whole = schema.clone();
    whole["components"] = document["components"].clone();
    let validator = jsonschema::draft202012::new(&whole).unwrap();
    let wrong: Vec<String> = validator.iter_errors(value).map(|e| e.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:#?} in {value:#}");
}

/// The answer is one that the document knows for this request.
#[track_caller]
pub fn hold(method: &str, path: &str, answer: &Answer) {
    let document = document();
    let said = || format!("{method} {path}: {} {}", answer.status, answer.text);
    let Some(template) = template(&document, path) else {
        assert_eq!(answer.refusal().1, "no_path", "{}", said());
        return;
    };
    let operation = &document["paths"][&template][method.to_ascii_lowercase()];
    if operation.is_null() {
        assert_eq!(answer.refusal().1, "no_method", "{}", said());
        return;
    }
    let response = &operation["responses"][answer.status.to_string()];
    assert!(!response.is_null(), "not in the document: {}", said());
    for (name, _) in response["headers"].as_object().into_iter().flatten() {
        let name = name.to_ascii_lowercase();
        assert!(answer.headers.contains_key(&name), "{name} is missing: {}", said());
    }
    let kind = answer.headers["content-type"].split(';').next().unwrap();
    let schema = &response["content"][kind]["schema"];
    assert!(!schema.is_null(), "{kind} is not in the document: {}", said());
    if kind == "text/event-stream" {
        let job = json!({ "$ref": "#/components/schemas/Job" });
        for data in events(&answer.text) {
            is(&document, &job, &data);
        }
    } else {
        is(&document, schema, &answer.body);
    }
}

/// The jobs in a stream of events.
pub fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}
