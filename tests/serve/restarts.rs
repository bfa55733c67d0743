//! What is acknowledged outlives the service, however it ends.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use events::event::Event;
use events::ids::Seq;
use events::log::Log;
use serde_json::{Value, json};
use store::{Home, OpenMode};
use tempfile::TempDir;

use crate::cli::{ends_with, kernelzero, processes_of};
use crate::served::{Served, command, home, named, slow};

/// Everything in the service's log.
pub fn log(folder: &Path) -> Vec<Event> {
    let home = Home::open(home(folder).join("service")).unwrap();
    let run = home.runs().unwrap()[0];
    let log = home.open_run(run, OpenMode::ReadOnly).unwrap();
    let read = log.read_after(Seq(0), usize::MAX).unwrap();
    read.into_iter().map(|recorded| recorded.event).collect()
}

#[test]
fn a_kill_loses_nothing_and_nothing_is_judged_twice() {
    let folder = TempDir::new().unwrap();
    let mut served = Served::start(folder.path(), &[]);
    let kernels = ["honest_leaky", "broken_wrong_slope", "hack_fallback", "honest_leaky"];
    let jobs: Vec<Value> =
        kernels.iter().enumerate().map(|(n, kernel)| named(kernel, &format!("job {n}"))).collect();
    let batch = served.post("/v1/judge/batch", &json!({ "jobs": jobs }));
    let ids: Vec<String> = batch.body["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["id"].as_str().unwrap().into())
        .collect();
    let first = served.over(&ids[0]);
    for _ in 0..2 {
        served.kill();
        served = Served::start(folder.path(), &[]);
        assert_eq!(served.over(&ids[0]), first, "a durable result stays as it is");
    }
    let outcomes: Vec<Value> = ids.iter().map(|id| served.over(id)["outcome"].clone()).collect();
    assert_eq!(outcomes, ["correct", "incorrect", "rejected", "correct"]);
    let again = served.post("/v1/judge/batch", &json!({ "jobs": jobs }));
    assert!(again.body["jobs"].as_array().unwrap().iter().all(|job| job["state"] == "done"));
    assert!(served.stop().success());

    let service = home(folder.path()).join("service");
    let printed = kernelzero(&service, &["log", "--type", "JobJudged"]);
    assert_eq!(String::from_utf8_lossy(&printed.stdout).lines().count(), ids.len());
    let mut counts: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    for event in log(folder.path()) {
        match event {
            Event::JobSubmitted { job, .. } => counts.entry(job.to_string()).or_default().0 += 1,
            Event::JobJudged { job, .. } => counts.entry(job.to_string()).or_default().1 += 1,
            Event::ServiceStarted { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(counts, ids.iter().map(|id| (id.clone(), (1, 1))).collect());
}

#[test]
fn a_service_that_is_stopped_at_work_leaves_nothing_running_and_goes_on_later() {
    let folder = TempDir::new().unwrap();
    let served = Served::start(folder.path(), &[]);
    let long = served.submit(&slow());
    let next = served.submit(&named("honest_leaky", "next"));
    served.until(&long, "running");
    // The log has one owner.
    let second = command(folder.path(), &[]).output().unwrap();
    ends_with(&second, 5, &served.pid().to_string());
    assert!(served.stop().success());
    let home = home(folder.path());
    // The kernel ends the judge's processes with the service; on busy cores they take their time.
    let left = || processes_of(home.to_str().unwrap());
    let end = Instant::now() + Duration::from_secs(20);
    while !left().is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(left().is_empty(), "{:?}", left());

    let served = Served::start(folder.path(), &[]);
    served.until(&long, "running");
    let cancelled = served.ask("DELETE", &format!("/v1/judge/{long}"), &[], b"");
    assert_eq!(cancelled.body["state"], "cancelled");
    assert_eq!(served.over(&next)["outcome"], "correct");
}
