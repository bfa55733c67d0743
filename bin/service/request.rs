//! Reads submissions. Whatever is wrong is named by field, with the fix.

use std::collections::BTreeSet;

use events::config::Rules;
use events::event::JobSpec;
use events::ids::{Digest, JobId};
use events::outcome::Backend;
use serde_json::{Map, Value};

use super::jobs::Submission;
use super::refused::Refused;
use crate::judge::{from_answer, from_source};

/// Longest name that a client may give a job, in bytes.
const NAME_MAX: usize = 200;
/// Most comparisons that may be asked for.
const TRIALS_MAX: i64 = 100;
const FIELDS: [&str; 10] = [
    "reference",
    "candidate",
    "answer",
    "backend",
    "profile",
    "seed",
    "trials",
    "timing",
    "priority",
    "client_id",
];

/// The body of `POST /v1/judge`.
///
/// # Errors
/// It is not right; the field is named.
pub fn one(body: &[u8], fresh: impl FnOnce() -> JobId) -> Result<Submission, Refused> {
    let object = object(json(body)?, "body")?;
    submission(&Fields { object, within: String::new() }, fresh)
}

/// The body of `POST /v1/judge/batch`, of at most `most` jobs.
///
/// # Errors
/// It is not right; the field is named.
pub fn batch(
    body: &[u8],
    most: usize,
    mut fresh: impl FnMut() -> JobId,
) -> Result<Vec<Submission>, Refused> {
    let mut body = object(json(body)?, "body")?;
    let jobs = body.remove("jobs");
    if let Some(name) = body.keys().next() {
        return Err(unknown(name, "", &["jobs"]));
    }
    let Some(Value::Array(jobs)) = jobs else {
        return Err(Refused::bad("jobs", "`jobs` must be a list", "give {\"jobs\": [job, …]}"));
    };
    if jobs.is_empty() || jobs.len() > most {
        let message = format!("{} jobs in one batch", jobs.len());
        return Err(Refused::bad("jobs", message, format!("give 1 to {most}")));
    }
    let mut names = BTreeSet::new();
    let mut wanted = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.into_iter().enumerate() {
        let within = format!("jobs[{index}]");
        let object = object(job, &within)?;
        let read = submission(&Fields { object, within: within.clone() + "." }, &mut fresh)?;
        if !names.insert(read.id) {
            let field = within + ".client_id";
            return Err(Refused::bad(&field, "it is there twice", "name each job once in a batch"));
        }
        wanted.push(read);
    }
    Ok(wanted)
}

fn json(body: &[u8]) -> Result<Value, Refused> {
    let text = std::str::from_utf8(body).map_err(|e| {
        let message = format!("the body is not UTF-8: {e}");
        Refused::bad("body", message, "encode the JSON as UTF-8")
    })?;
    serde_json::from_str(text).map_err(|e| {
        Refused::bad("body", format!("the body is not JSON: {e}"), "send one JSON object")
    })
}

fn object(value: Value, field: &str) -> Result<Map<String, Value>, Refused> {
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(Refused::bad(field, "it is not an object", "give {\"reference\": …, …}")),
    }
}

fn unknown(name: &str, within: &str, known: &[&str]) -> Refused {
    let shown: String = name.chars().take(80).collect();
    let field = format!("{within}{}", if shown.is_empty() { "\"\"" } else { &shown });
    Refused::bad(&field, "there is no such field", format!("fields are {}", known.join(", ")))
}

struct Fields {
    object: Map<String, Value>,
    /// `jobs[3].`, or nothing.
    within: String,
}

impl Fields {
    fn wrong(&self, name: &str, message: &str, fix: &str) -> Refused {
        Refused::bad(&format!("{}{name}", self.within), message, fix)
    }

    /// A field that may be left out; `null` is left out.
    fn get<'a, T>(
        &'a self,
        name: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
        fix: &str,
    ) -> Result<Option<T>, Refused> {
        match self.object.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let wrong = || self.wrong(name, "it has a wrong type or value", fix);
                read(value).map(Some).ok_or_else(wrong)
            }
        }
    }

    fn text(&self, name: &str) -> Result<Option<&str>, Refused> {
        self.get(name, Value::as_str, "give a string")
    }

    fn number(&self, name: &str, least: i64, most: i64) -> Result<Option<i64>, Refused> {
        let fits = |value: &Value| value.as_i64().filter(|n| (least..=most).contains(n));
        self.get(name, fits, &format!("give a whole number from {least} to {most}"))
    }

    fn candidate(&self) -> Result<String, Refused> {
        match (self.text("candidate")?, self.text("answer")?) {
            (Some(source), None) => Ok(from_source(source)),
            (None, Some(answer)) => Ok(from_answer(answer)),
            (None, None) => Err(self.wrong(
                "candidate",
                "it is missing",
                "give the candidate's source as `candidate`, or a model's answer as `answer`",
            )),
            (Some(_), Some(_)) => {
                Err(self.wrong("answer", "there is a candidate too", "give only one of the two"))
            }
        }
    }
}

fn submission(fields: &Fields, fresh: impl FnOnce() -> JobId) -> Result<Submission, Refused> {
    if let Some(name) = fields.object.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(unknown(name, &fields.within, &FIELDS));
    }
    let reference = fields.text("reference")?.ok_or_else(|| {
        let fix = "give the source that defines Model, get_inputs and get_init_inputs";
        fields.wrong("reference", "it is missing", fix)
    })?;
    let candidate = fields.candidate()?;
    let backend: Option<Backend> = fields.get("backend", word, "give `triton` or `cuda`")?;
    let profile: Option<Rules> = fields.get("profile", word, "give `paper` or `strict`")?;
    let seed = fields.get("seed", Value::as_u64, "give a whole number from 0")?;
    let trials = fields.number("trials", 1, TRIALS_MAX)?;
    let timing = fields.get("timing", Value::as_bool, "give true or false")?;
    let priority = fields.number("priority", -1000, 1000)?;
    let client = fields.text("client_id")?;
    if client.is_some_and(|name| name.is_empty() || name.len() > NAME_MAX) {
        let fix = format!("give 1 to {NAME_MAX} bytes");
        return Err(fields.wrong("client_id", "it is empty or too long", &fix));
    }
    let spec = JobSpec {
        reference: Digest::of(reference.as_bytes()),
        candidate: Digest::of(candidate.as_bytes()),
        backend,
        profile: profile.unwrap_or(Rules::Strict),
        seed: seed.unwrap_or(1),
        trials: trials.and_then(|n| u32::try_from(n).ok()).unwrap_or(7),
        timing: timing.unwrap_or(false),
        priority: priority.and_then(|n| i32::try_from(n).ok()).unwrap_or(0),
    };
    let client = client.map(str::to_owned);
    let id = client.as_deref().map_or_else(fresh, JobId::named);
    Ok(Submission { id, client, reference: reference.to_owned(), candidate, spec })
}

fn word<T: serde::de::DeserializeOwned>(value: &Value) -> Option<T> {
    value.is_string().then(|| serde_json::from_value(value.clone()).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<Submission, Refused> {
        one(value.to_string().as_bytes(), || JobId::named("fresh"))
    }

    #[track_caller]
    fn names(value: &Value, wanted: &str) {
        let Err(Refused::Bad { field, fix, .. }) = read(value) else { panic!("{value} was taken") };
        assert_eq!(field, wanted);
        assert!(!fix.is_empty());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |key: &str, value: Value| {
            let mut job = json!({ "reference": "r", "candidate": "c" });
            job[key] = value;
            job
        };
        names(&json!([1]), "body");
        names(&json!({ "candidate": "c" }), "reference");
        names(&json!({ "reference": "r" }), "candidate");
        names(&json!({ "reference": 7, "candidate": "c" }), "reference");
        names(&with("answer", json!("a")), "answer");
        names(&with("refrence", json!("r")), "refrence");
        names(&with("", json!("r")), "\"\"");
        names(&with("backend", json!("metal")), "backend");
        names(&with("profile", json!({ "Paper": 1 })), "profile");
        names(&with("seed", json!(-1)), "seed");
        names(&with("trials", json!(0)), "trials");
        names(&with("trials", json!(2.5)), "trials");
        names(&with("timing", json!("yes")), "timing");
        names(&with("priority", json!(1u64 << 40)), "priority");
        names(&with("client_id", json!("")), "client_id");
        let wanted = read(&with("profile", json!("paper"))).unwrap();
        assert_eq!((wanted.spec.profile, wanted.id), (Rules::Paper, JobId::named("fresh")));
        assert_eq!(read(&with("client_id", json!("x"))).unwrap().id, JobId::named("x"));
    }

    #[test]
    fn a_batch_names_the_job_and_the_field() {
        let good = json!({ "reference": "r", "candidate": "c", "client_id": "a" });
        let field = |jobs: Value| match batch(jobs.to_string().as_bytes(), 3, || JobId::named("f"))
        {
            Err(Refused::Bad { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(json!({ "jobs": [good, { "reference": "r" }] })), "jobs[1].candidate");
        assert_eq!(field(json!({ "jobs": [good, good] })), "jobs[1].client_id");
        assert_eq!(field(json!({ "jobs": [good, 3] })), "jobs[1]");
        assert_eq!(field(json!({ "jobs": [] })), "jobs");
        assert_eq!(field(json!({ "jobs": [0, 0, 0, 0] })), "jobs");
        assert_eq!(field(json!({ "jobs": [good], "job": 1 })), "job");
    }

    #[test]
    fn a_chatty_candidate_is_its_last_block_and_a_source_stays_whole() {
        let chatty = "Here:\n```python\nimport torch\n```\nIt's quick.";
        assert_eq!(from_source(chatty), "import torch\n");
        let source = "'''\n```python\nx = 1\n```\n'''\nimport torch\n";
        assert_eq!(from_source(source), source);
        let answer = json!({ "reference": "r", "answer": "I cannot do that." });
        assert_eq!(read(&answer).unwrap().candidate, "");
    }
}
