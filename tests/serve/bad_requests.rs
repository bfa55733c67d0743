//! What is wrong with a request is named, and the service lives on.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::document::document;
use crate::served::{Served, job};

#[test]
fn what_is_wrong_with_a_request_is_named() {
    let folder = TempDir::new().unwrap();
    let served = Served::start(folder.path(), &["--batch", "2"]);
    let json = [("Content-Type", "application/json; charset=utf-8")];
    let raw = |body: &[u8]| served.ask("POST", "/v1/judge", &json, body);
    assert_eq!(raw(b"not JSON").refusal(), (400, "bad_request", "body"));
    assert_eq!(raw(b"").refusal(), (400, "bad_request", "body"));
    assert_eq!(raw(b"\xff\xfe{}").refusal(), (400, "bad_request", "body"));
    assert_eq!(raw("[".repeat(100_000).as_bytes()).refusal(), (400, "bad_request", "body"));
    assert_eq!(raw(br#"{"reference": "\ud800"}"#).refusal(), (400, "bad_request", "body"));
    assert_eq!(raw(&vec![b' '; 10 << 20]).refusal(), (413, "too_large", ""));
    let mut large = job("honest_leaky");
    large["candidate"] = json!("#".repeat(10 << 20));
    assert_eq!(served.post("/v1/judge", &large).refusal(), (413, "too_large", ""));
    let text = [("Content-Type", "text/plain")];
    let body = job("honest_leaky").to_string();
    let untyped = served.ask("POST", "/v1/judge", &text, body.as_bytes());
    assert_eq!(untyped.refusal(), (415, "not_json", ""));
    let without = |name: &str| {
        let mut job = job("honest_leaky");
        job.as_object_mut().unwrap().remove(name);
        served.post("/v1/judge", &job)
    };
    assert_eq!(without("reference").refusal(), (400, "bad_request", "reference"));
    assert_eq!(without("candidate").refusal(), (400, "bad_request", "candidate"));
    let batch = |jobs: Value| served.post("/v1/judge/batch", &json!({ "jobs": jobs }));
    let good = job("honest_leaky");
    assert_eq!(batch(json!([good, {}])).refusal(), (400, "bad_request", "jobs[1].reference"));
    assert_eq!(batch(json!([good, good, good])).refusal(), (400, "bad_request", "jobs"));

    let nobody = "/v1/judge/00000000-0000-4000-8000-000000000000";
    for (method, path, refusal) in [
        ("GET", nobody, (404, "no_job", "")),
        ("DELETE", nobody, (404, "no_job", "")),
        ("GET", "/v1/judge/abc", (400, "bad_request", "id")),
        ("GET", "/v1/judge/abc/events", (400, "bad_request", "id")),
        ("GET", &format!("{nobody}?wait=soon"), (400, "bad_request", "wait")),
        ("GET", &format!("{nobody}?wiat=1"), (400, "bad_request", "wiat")),
        ("GET", "/v1/judge?limit=0", (400, "bad_request", "limit")),
        ("GET", "/v1/judge?state=over", (400, "bad_request", "state")),
        ("GET", "/v1/judges", (404, "no_path", "")),
        ("PUT", "/v1/judge", (405, "no_method", "")),
        ("POST", "/health", (405, "no_method", "")),
    ] {
        assert_eq!(served.ask(method, path, &[], b"").refusal(), refusal, "{method} {path}");
    }
    // Nothing of all this was taken in, and a good job still is.
    assert_eq!(served.get("/v1/judge").body["jobs"], json!([]));
    let id = served.submit(&job("honest_leaky"));
    assert_eq!(served.over(&id)["outcome"], "correct");
}

#[test]
fn the_document_knows_every_path_and_every_path_answers() {
    let folder = TempDir::new().unwrap();
    let served = Served::start(folder.path(), &[]);
    let document = document();
    assert_eq!(served.get("/openapi.json").body, document);
    let id = served.submit(&job("hack_fallback"));
    let mut seen = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let answer =
                served.ask(&method.to_ascii_uppercase(), &path.replace("{id}", &id), &[], b"");
            assert!(![404, 405].contains(&answer.status), "{method} {path}: {}", answer.text);
            seen += 1;
        }
    }
    // Those of `routes`; a path that is added there is added here and in the document.
    assert_eq!(seen, 8);
}
