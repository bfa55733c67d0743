//! The real daemon: its socket, the actors of its config, and its end.

use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::cli::{ends_with, kernelzero, run_folder, said, small_config};

#[test]
fn a_running_daemon_is_asked_and_everything_it_did_agrees() {
    let folder = TempDir::new().unwrap();
    let (home, config) = (folder.path().join("home"), small_config(folder.path()));
    let tap = folder.path().join("tap.jsonl");
    let text = std::fs::read_to_string(&config).unwrap();
    let actor = format!("\n[actors.tap]\nkind = \"tap\"\nfile = \"{}\"\n", tap.display());
    std::fs::write(&config, text + &actor).unwrap();
    let call = |arguments: &[&str]| kernelzero(&home, arguments);
    ends_with(&call(&["run", "--config", config.to_str().unwrap(), "--detach"]), 0, "daemon");
    // It may still be starting: the command waits for its socket.
    let freeze = call(&["freeze", "proposer", "--at-step", "1"]);
    ends_with(&freeze, 0, "proposer.policy.freeze-at-step = 1");
    ends_with(&call(&["set", "coder.beta=0.4"]), 0, "coder.beta = 0.4 from round 1");
    ends_with(&call(&["set", "judge.timing=true"]), 2, "needs a GPU");
    let end = Instant::now() + Duration::from_secs(60);
    while !said(&call(&["log", "--type", "ApisSampled"])).contains("sampler") {
        assert!(Instant::now() < end, "nothing is drawn");
        std::thread::sleep(Duration::from_millis(100));
    }
    ends_with(&call(&["stop"]), 0, "stopped");
    assert!(!run_folder(&home).unwrap().join("attach.sock").exists());
    ends_with(&call(&["audit"]), 0, "everything agrees");
    let lines = said(&call(&["log", "--json"]));
    let log: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let name = |line: &Value| line["actor"]["attached"].as_str().unwrap_or_default().to_owned();
    assert!(log.iter().any(|line| name(line).starts_with("operator-")
        && line["event"]["SettingChanged"]["value"] == "1"));
    let tapped = std::fs::read_to_string(&tap).unwrap();
    let last = log.iter().rposition(|line| name(line) == "tap").unwrap();
    assert!(tapped.lines().count() >= last - 2, "all but its own end");
    for (tapped, line) in tapped.lines().zip(&log) {
        assert_eq!(serde_json::from_str::<Value>(tapped).unwrap(), *line);
    }
    // A stopped run is changed in its log.
    ends_with(&call(&["thaw", "proposer"]), 0, "(taken away)");
}
