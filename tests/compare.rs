//! Runs beside each other.
#![allow(clippy::unwrap_used)]

mod cli;
mod common;

use std::path::Path;
use std::sync::Arc;

use actors::Bus;
use actors::shells::{Turn, drive};
use cli::{ends_with, kernelzero, said};
use common::{World, config};
use events::event::{Draft, Event, Recorded, Scores, Verdict};
use events::ids::{Role, RunId, Seq, StepRef};
use events::log::{Blobs, Log};
use kernelzero::compare::{Course, Figure, compare};
use serde_json::Value;
use store::{FileLog, Home, OpenMode};
use tempfile::TempDir;

struct Two {
    folder: TempDir,
    first: RunId,
    branch: RunId,
}

/// A run, and a branch of it from its second round on in which invalid modules cost less.
fn two() -> Two {
    let folder = TempDir::new().unwrap();
    let world = World::new();
    world.start(&config(4).with("rounds", Some("3")).unwrap());
    assert_eq!(drive(&mut world.shells(0), &world.bus()).unwrap(), Turn::Idle);
    let home = Home::open(folder.path()).unwrap();
    let blobs = home.blobs().unwrap();
    let records = world.log.read_after(Seq(0), usize::MAX).unwrap();
    for id in records.iter().flat_map(|record| record.event.blobs()) {
        blobs.put(&world.blobs.get(id).unwrap()).unwrap();
    }
    drop(blobs);
    let first = RunId::new(1, [3; 10]);
    let draft = |r: Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event };
    home.create_run(first).unwrap().append(records.into_iter().map(draft).collect()).unwrap();
    let changed = ["--set", "proposer.target=0.3"];
    let fork = ["fork", "--at", "round:2", "--only"];
    let forked = kernelzero(folder.path(), &[&fork[..], &changed].concat());
    assert_eq!(forked.status.code(), Some(0), "{}", said(&forked));
    let branch =
        said(&forked).lines().find_map(|line| line.strip_prefix("branch ")?.parse().ok()).unwrap();
    let log = Arc::new(home.open_run(branch, OpenMode::Own).unwrap());
    let bus = Arc::new(Bus::open(log, world.blobs.clone()).unwrap());
    assert_eq!(drive(&mut world.shells(0), &bus).unwrap(), Turn::Idle);
    Two { folder, first, branch }
}

fn log(home: &Path, run: RunId) -> FileLog {
    Home::open(home).unwrap().open_run(run, OpenMode::ReadOnly).unwrap()
}

/// Mean reward of one step, by a search over the events.
fn mean_reward(log: &FileLog, wanted: StepRef) -> f64 {
    let mut rewards: Vec<f64> = Vec::new();
    for recorded in log.read_after(Seq(0), usize::MAX).unwrap() {
        match recorded.event {
            Event::GroupScored { step, scores: Scores::Modules(scores), .. } if step == wanted => {
                let scored = |v: &[Verdict]| v.is_empty() || v.iter().any(Verdict::is_judged);
                rewards.extend(scores.iter().filter(|s| scored(&s.verdicts)).map(|s| s.reward));
            }
            Event::GroupScored { step, scores: Scores::Kernels(scores), .. } if step == wanted => {
                rewards.extend(scores.iter().filter(|s| s.verdict.is_judged()).map(|s| s.reward));
            }
            _ => {}
        }
    }
    rewards.iter().sum::<f64>() / rewards.len() as f64
}

#[test]
fn a_branch_is_compared_from_where_it_parts() {
    let two = two();
    let home = two.folder.path();
    let (first, branch) = (log(home, two.first), log(home, two.branch));
    let [a, b] = [&first, &branch].map(|log| Course::read(log).unwrap());
    let found = compare(&a, &b);
    let forked = branch
        .read_after(Seq(0), usize::MAX)
        .unwrap()
        .into_iter()
        .find(|recorded| matches!(recorded.event, Event::RunForked { .. }));
    assert_eq!(found.parts_at, Some(forked.unwrap().seq));
    // A step of the Proposer and two of the Coder in each round; one round is shared.
    assert_eq!((found.shared_steps, found.steps.len(), found.alone), (3, 6, (0, 0)));
    let mut sum = 0.0;
    for (step, ours, theirs) in &found.steps {
        let (was, is) = (mean_reward(&first, *step), mean_reward(&branch, *step));
        assert!((ours[&Figure::Reward] - was).abs() < 1e-12, "{step}");
        assert!((theirs[&Figure::Reward] - is).abs() < 1e-12, "{step}");
        sum += is - was;
    }
    let reward = &found.differences[&Figure::Reward];
    assert!((reward.mean - sum / 6.0).abs() < 1e-12 && reward.mean != 0.0);
    let (low, high) = reward.interval.unwrap();
    assert!(low < reward.mean && reward.mean < high);
    // The other way round it is the same with the other sign.
    let back = compare(&b, &a);
    assert!((back.differences[&Figure::Reward].mean + reward.mean).abs() < 1e-12);
    assert_eq!(compare(&a, &a).parts_at, None);
    assert!(compare(&a, &a).steps.is_empty());
}

#[test]
fn the_command_prints_and_draws() {
    let two = two();
    let home = two.folder.path();
    let (first, branch) = (two.first.to_string(), two.branch.to_string());
    let svg = home.join("difference.svg");
    let drawn = ["compare", &first, &branch, "--steps", "--svg", svg.to_str().unwrap()];
    let table = kernelzero(home, &drawn);
    ends_with(&table, 0, "3 steps before are the same");
    for word in ["mean reward", "valid modules", "round 3 coder step 2", "Student's t"] {
        ends_with(&table, 0, word);
    }
    let json = kernelzero(home, &["compare", &first, &branch, "--json"]);
    let value: Value = serde_json::from_slice(&json.stdout).unwrap();
    let other = &value["others"][0];
    assert_eq!(other["shared-steps"], 3);
    let pairs: u64 = other["differences"]
        .as_object()
        .unwrap()
        .values()
        .map(|difference| difference["pairs"].as_u64().unwrap())
        .sum();
    let text = std::fs::read_to_string(&svg).unwrap();
    assert_eq!(text.matches("<circle").count() as u64, pairs, "a dot for each pair");
    assert!(text.starts_with("<svg") && text.ends_with("</svg>\n") && !text.contains("NaN"));
    ends_with(&kernelzero(home, &["compare", &first]), 2, "2 values required");
    let unknown = RunId::new(9, [9; 10]).to_string();
    ends_with(&kernelzero(home, &["compare", &first, &unknown]), 2, "there is no run");
}

#[test]
fn a_step_without_a_policy_is_that_of_the_only_one_that_took_it() {
    let two = two();
    let home = two.folder.path();
    let first = two.first.to_string();
    let at = |place: &str| {
        let output = kernelzero(home, &["fork", "--run", &first, "--at", place, "--only"]);
        let made = said(&output).lines().find_map(|l| l.strip_prefix("branch ").map(str::to_owned));
        let base = made.map(|run| log(home, run.parse().unwrap()).base().unwrap().at);
        (output, base)
    };
    let state = actors::bus::fold(&log(home, two.first)).unwrap();
    let [proposer, coder] = [Role::Proposer, Role::Coder].map(|role| state.version(role).steps);
    assert!(proposer >= 1 && coder > proposer, "{proposer} and {coder}: this shows nothing");
    ends_with(&at("step:1").0, 2, "say proposer:1 or coder:1");
    ends_with(&at(&format!("step:{}", coder + 1)).0, 2, "neither policy");
    // Settings of a branch that goes on in the middle of a step act from the next one on.
    let set = |set: &str| {
        let fork = ["fork", "--run", &first, "--at", "20", "--only", "--set", set];
        kernelzero(home, &fork)
    };
    ends_with(&set("coder.beta=0.4"), 0, "coder.beta = 0.4 from round 1 ");
    ends_with(&set("foo=bar"), 2, "foo");
    let named = at(&format!("coder:{coder}")).1;
    assert!(named.is_some());
    assert_eq!(at(&format!("step:{coder}")).1, named);
}
