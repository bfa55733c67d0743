//! What becomes of a job.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli::{kernelzero, root};
use crate::document::{document, events, is};
use crate::served::{Served, case, job, named, slow};

#[test]
fn a_job_has_the_result_that_the_command_prints() {
    let folder = TempDir::new().unwrap();
    let served = Served::start(folder.path(), &[]);
    let mut chatty = job("honest_leaky");
    chatty["candidate"] =
        json!(format!("It's this:\n```python\n{}```\nBye!", case("kernels", "honest_leaky")));
    let mut answer = chatty.clone();
    answer["answer"] = answer.as_object_mut().unwrap().remove("candidate").unwrap();
    let mut cuda = job("honest_leaky");
    cuda["backend"] = json!("cuda");
    let jobs = [
        job("honest_leaky"),
        job("broken_wrong_slope"),
        job("hack_fallback"),
        chatty,
        answer,
        cuda,
    ];
    let submission = json!({ "$ref": "#/components/schemas/Submission" });
    for job in &jobs {
        is(&document(), &submission, job);
    }
    let batch = served.post("/v1/judge/batch", &json!({ "jobs": jobs }));
    assert_eq!(batch.status, 202, "{}", batch.text);
    let ids: Vec<&str> = batch.body["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["id"].as_str().unwrap())
        .collect();
    let over: Vec<Value> = ids.iter().map(|id| served.over(id)).collect();
    let outcomes: Vec<_> =
        over.iter().map(|job| job["result"]["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["correct", "incorrect", "rejected", "correct", "correct", "rejected"]);
    assert!(over[5]["result"]["reason"].as_str().unwrap().contains("asks for Cuda"));

    let cases = root().join("gpu/keck/tests/cases");
    let paths =
        [cases.join("reference/leaky_scale.py"), cases.join("kernels/broken_wrong_slope.py")];
    let paths = paths.each_ref().map(|path| path.to_str().unwrap());
    let printed =
        kernelzero(folder.path(), &["judge", paths[0], paths[1], "--trials", "2", "--json"]);
    let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let result = &over[1]["result"];
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(result), names(&printed));
    // Only how long it took differs, and with it the digest of all facts.
    for (name, value) in printed.as_object().unwrap() {
        if name == "facts" {
            assert_eq!(value["execution"], result["facts"]["execution"]);
        } else if name != "measurement" {
            assert_eq!(value, &result[name], "{name}");
        }
    }
}

#[test]
fn a_name_is_one_job_and_its_changes_can_be_followed() {
    let folder = TempDir::new().unwrap();
    let served = Served::start(folder.path(), &[]);
    let id = served.submit(&named("honest_leaky", "a"));
    let stream = served.get(&format!("/v1/judge/{id}/events"));
    let seen = events(&stream.text);
    let states: Vec<&str> = seen.iter().map(|job| job["state"].as_str().unwrap()).collect();
    let of = |state: &&str| ["queued", "running", "done"].iter().position(|s| s == state).unwrap();
    assert!(states.is_sorted_by_key(of) && states.len() >= 2, "{states:?}");
    assert_eq!(seen.last().unwrap(), &served.over(&id));
    let same = [("Accept", "text/event-stream")];
    let again = served.ask("GET", &format!("/v1/judge/{id}"), &same, b"");
    assert_eq!(events(&again.text), seen[seen.len() - 1..]);

    let again = served.post("/v1/judge", &named("honest_leaky", "a"));
    assert_eq!(
        (again.status, &again.body["id"], &again.body["state"]),
        (200, &json!(id), &json!("done"))
    );
    let other = served.post("/v1/judge", &named("broken_wrong_slope", "a"));
    assert_eq!(other.refusal(), (409, "conflict", ""));
    let listed = served.get("/v1/judge?client_id=a").body;
    assert_eq!(listed["jobs"][0]["id"], json!(id));
    assert_eq!(listed["queue"]["done"], 1);
    let over = served.ask("DELETE", &format!("/v1/judge/{id}"), &[], b"");
    assert_eq!(over.refusal(), (409, "over", ""));
}

#[test]
fn a_full_queue_says_when_to_come_again_and_cancelling_makes_room() {
    let folder = TempDir::new().unwrap();
    let served = Served::start(folder.path(), &["--queue", "3"]);
    let slow = served.submit(&slow());
    served.until(&slow, "running");
    let mut later = named("honest_leaky", "later");
    later["priority"] = json!(-5);
    let (first, last) = (served.submit(&named("honest_leaky", "first")), served.submit(&later));
    let urgent = {
        let mut job = named("hack_fallback", "urgent");
        job["priority"] = json!(7);
        served.submit(&job)
    };
    for full in [
        served.post("/v1/judge", &named("honest_leaky", "over")),
        served.post("/v1/judge/batch", &json!({ "jobs": [named("honest_leaky", "over")] })),
    ] {
        assert_eq!(full.refusal(), (429, "full", ""));
        let seconds: u64 = full.headers["retry-after"].parse().unwrap();
        assert!((1..=60).contains(&seconds));
    }
    let four: Vec<Value> = (0..4).map(|n| named("honest_leaky", &format!("over{n}"))).collect();
    let never = served.post("/v1/judge/batch", &json!({ "jobs": four }));
    assert_eq!(never.refusal(), (400, "bad_request", "jobs"), "to wait would be in vain");
    assert_eq!(served.get("/v1/judge?client_id=over").body["jobs"], json!([]));
    let known = served.post("/v1/judge", &named("honest_leaky", "first"));
    assert_eq!((known.status, &known.body["id"]), (202, &json!(first)), "it has its place already");

    // A poll ends with its time.
    let waited = served.get(&format!("/v1/judge/{last}?wait=1"));
    assert_eq!(waited.body["state"], "queued");
    let cancel = |id: &str| served.ask("DELETE", &format!("/v1/judge/{id}"), &[], b"");
    for _ in 0..2 {
        let cancelled = cancel(&last);
        assert_eq!((cancelled.status, &cancelled.body["state"]), (200, &json!("cancelled")));
    }
    let queue = served.get("/health").body["queue"].clone();
    let queued = |queued, cancelled| {
        json!({ "queued": queued, "running": 1, "done": 0, "cancelled": cancelled, "failed": 0,
                "room": 3 })
    };
    assert_eq!(queue, queued(2, 1));
    assert_eq!(served.submit(&later), last, "one that was cancelled is taken in again");
    assert_eq!(cancel(&slow).body["state"], "cancelled", "also while it runs");
    assert_eq!(served.over(&last)["outcome"], "correct");
    let listed = served.get("/v1/judge").body["jobs"].as_array().unwrap().clone();
    assert!(listed.iter().all(|job| job["state"] != "queued"), "{listed:?}");
    assert_eq!(served.over(&slow)["result"], Value::Null, "its result is thrown away");
    assert_eq!(served.over(&urgent)["outcome"], "rejected");
    assert_eq!(order(folder.path()), [urgent, first, last], "by priority, then by arrival");
}

/// Jobs with a verdict, in the order of the log.
pub fn order(folder: &std::path::Path) -> Vec<String> {
    use events::event::Event;
    let judged = crate::restarts::log(folder).into_iter().filter_map(|event| match event {
        Event::JobJudged { job, .. } => Some(job.to_string()),
        _ => None,
    });
    judged.collect()
}
