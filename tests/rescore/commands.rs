//! The two commands as a user calls them.

use std::path::Path;

use events::config::Rules;
use events::event::Event;
use events::ids::{Digest, Seq};
use events::log::Log;
use serde_json::Value;
use store::Home;
use tempfile::TempDir;

use crate::cli::{ends_with, kernelzero, said};
use crate::common::World;
use crate::world::{gray_config, run, save};

fn saved() -> (TempDir, World) {
    let folder = TempDir::new().unwrap();
    let world = run(gray_config(1, Rules::Strict), false);
    save(&world, folder.path());
    (folder, world)
}

fn head(home: &Path) -> (Seq, Digest) {
    let home = Home::open(home).unwrap();
    home.open_run(home.runs().unwrap()[0], store::OpenMode::ReadOnly).unwrap().head()
}

fn json(home: &Path, arguments: &[&str]) -> Value {
    let output = kernelzero(home, arguments);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_run_is_scored_again_from_its_log_alone() {
    let (folder, _) = saved();
    let home = folder.path();
    let before = head(home);
    ends_with(&kernelzero(home, &["rescore"]), 0, "nothing changes in 6 steps by its own rules");
    let same = json(home, &["rescore", "--set", "judge.profile=strict", "--json"]);
    assert_eq!(same["changed-steps"], 0);
    let table = kernelzero(home, &["rescore", "--set", "judge.profile=paper"]);
    ends_with(&table, 0, "steps change by judge.profile=paper");
    ends_with(&table, 0, "round 1 proposer step 1");
    ends_with(&table, 0, "all coder steps");
    let paper = json(home, &["rescore", "--set", "judge.profile=paper", "--json"]);
    assert!(paper["changed-steps"].as_u64().unwrap() > 0);
    let coder = &paper["coder"];
    assert!(coder["mean-reward"]["after"].as_f64() > coder["mean-reward"]["before"].as_f64());
    assert_eq!(coder["kernels"]["unknown"], 0);
    assert_eq!(paper["steps"].as_array().unwrap().len(), 6);
    // The stored sources are read again, and the judge's own rules refuse what is no kernel.
    let current = json(home, &["rescore", "--set", "judge.purity=current", "--json"]);
    assert!(current["coder"]["kernels"]["after"].as_u64() == Some(0));
    assert_eq!(head(home), before, "nothing was written");
}

#[test]
fn a_cheat_is_followed_from_the_command_line() {
    let (folder, world) = saved();
    let home = folder.path();
    let right = world.events().into_iter().find_map(|event| match event {
        Event::KernelWritten { kernel, .. } => Some(kernel.to_string()),
        _ => None,
    });
    let kernel = right.unwrap();
    let found = json(home, &["taint", "--kernel", &kernel, "--json"]);
    assert_eq!(found["tainted"]["kernels"][0], kernel.as_str());
    assert_eq!(found["tainted"]["groups"].as_array().unwrap().len(), 1);
    let text = kernelzero(home, &["taint", "--rule", "correct"]);
    ends_with(&text, 0, "gradient steps fed:");
    ends_with(&text, 0, "a clean branch: kernelzero restart --run");
    ends_with(&kernelzero(home, &["taint", "--judge", "device=none"]), 0, "% of |advantage|");
    ends_with(&kernelzero(home, &["taint", "--rule", "timeout"]), 0, "all checkpoints are clean");
    ends_with(&kernelzero(home, &["taint", "--judge", "device=x"]), 2, "name none");
    ends_with(&kernelzero(home, &["taint", "--judge", "without=x"]), 2, "layers are user-ns");
    // By other rules: what the strict profile refuses and the paper's lets pass.
    let by_paper = json(home, &["taint", "--set", "judge.profile=paper", "--json"]);
    assert!(!by_paper["tainted"]["steps"].as_array().unwrap().is_empty());
    let same = json(home, &["taint", "--set", "judge.profile=strict", "--json"]);
    assert!(same["tainted"]["kernels"].as_array().unwrap().is_empty());
}

#[test]
fn bad_input_is_named_with_the_place_and_the_fix() {
    let (folder, world) = saved();
    let home = folder.path();
    let refused = |arguments: &[&str], named: &str| {
        ends_with(&kernelzero(home, arguments), 2, named);
    };
    refused(
        &["rescore", "--set", "judge.profil=paper"],
        "--set judge.profil: there is no such setting",
    );
    refused(&["rescore", "--set", "judge.profil=paper"], "judge.profile, coder.alpha");
    refused(&["rescore", "--set", "seed=3"], "--set seed: it changes what is drawn");
    refused(&["rescore", "--set", "judge.profile=lax"], "judge.profile=lax: unknown variant");
    refused(&["rescore", "--set", "coder.alpha"], "write `key=value`");
    refused(&["taint"], "--kernel");
    refused(&["taint", "--kernel", "x"], "`x` is not an id");
    let nobody = "00000000-0000-8000-8000-000000000000";
    refused(
        &["taint", "--kernel", nobody],
        &format!("--kernel {nobody}: there is no such kernel in run"),
    );
    refused(&["taint", "--module", nobody], "there is no such module in run");
    refused(&["taint", "--rule", " "], "--rule: an empty word");
    refused(&["taint", "--judge", "v2"], "not one of device=NAME");
    refused(&["rescore", "--run", nobody], "there is no run");

    // A run whose measurements are still to come.
    let early = World { blobs: world.blobs.clone(), ..World::new() };
    let records = world.log.read_after(Seq(0), 4).unwrap();
    let draft = |r: events::event::Recorded| events::event::Draft {
        cause: r.cause,
        actor: r.actor,
        event: r.event,
    };
    early.log.append(records.into_iter().map(draft).collect()).unwrap();
    let folder = TempDir::new().unwrap();
    save(&early, folder.path());
    let output = kernelzero(folder.path(), &["rescore", "--set", "judge.profile=paper"]);
    ends_with(&output, 2, "has no scored group yet");
    ends_with(
        &kernelzero(folder.path(), &["taint", "--rule", "correct"]),
        2,
        "has no scored group yet",
    );
}
