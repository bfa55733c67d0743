//! Checkpoints that are dropped, and what is never dropped.
#![allow(clippy::unwrap_used)]

mod cli;
mod common;

use std::collections::BTreeSet;
use std::path::Path;

use actors::shells::{Turn, drive};
use cli::{ends_with, kernelzero, said};
use common::{HashEvidence, World, config};
use events::config::RunConfig;
use events::event::{Draft, Event, Recorded};
use events::ids::{PolicyVersion, Role, RunId, Seq};
use events::log::{Blobs, Log};
use events::rules::audit::check;
use events::state::RunState;
use kernelzero::audit::{Since, audit_log};
use store::{Home, OpenMode};
use tempfile::TempDir;

fn settings(changes: &[(&str, &str)]) -> RunConfig {
    let mut long = config(2).with("rounds", Some("3")).unwrap();
    long = long.with("coder.policy.steps-per-phase", Some("4")).unwrap();
    for (key, value) in changes {
        long = long.with(key, Some(value)).unwrap();
    }
    long
}

fn whole(config: &RunConfig) -> World {
    let world = World::new();
    world.start(config);
    assert_eq!(drive(&mut world.shells(0), &world.bus()).unwrap(), Turn::Idle);
    world
}

fn dropped(events: &[Event]) -> BTreeSet<PolicyVersion> {
    let of = |event: &Event| match event {
        Event::CheckpointDropped { policy, .. } => Some(*policy),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

/// The fold, with a look at it before each event.
fn folded(events: &[Event], mut look: impl FnMut(&RunState, Seq, &Event)) -> RunState {
    let mut state = RunState::default();
    for (seq, event) in (1..).zip(events) {
        look(&state, Seq(seq), event);
        state.apply(Seq(seq), event).unwrap();
    }
    state
}

#[test]
fn the_newest_and_the_ends_of_phases_are_kept() {
    assert_eq!(dropped(&whole(&settings(&[])).events()), BTreeSet::new(), "absent: all are kept");
    for last in [1u32, 2] {
        let world = whole(&settings(&[("trainer.keep-last", &last.to_string())]));
        let events = world.events();
        let mut ends = BTreeSet::new();
        let state = folded(&events, |state, _, event| {
            if let Event::PhaseFinished { role, .. } = event {
                ends.insert(state.version(*role));
            }
            for role in [Role::Proposer, Role::Coder] {
                let version = state.version(role);
                let there = version.steps == 0 || state.checkpoints.contains_key(&version);
                assert!(there, "{version} is in use and was dropped");
            }
        });
        let coder = |steps| PolicyVersion { role: Role::Coder, steps };
        let newest = state.version(Role::Coder).steps;
        assert!(newest > 6, "too few steps: this shows nothing");
        for steps in 1..=newest {
            let kept = steps + last > newest || ends.contains(&coder(steps));
            assert_eq!(state.checkpoints.contains_key(&coder(steps)), kept, "{steps} of {newest}");
        }
        let evidence = HashEvidence(&*world.blobs);
        folded(&events, |state, seq, event| {
            check(state, seq, event, &evidence).unwrap();
        });
    }
}

#[test]
fn every_nth_is_kept_too() {
    let both = [("trainer.keep-last", "1"), ("trainer.keep-every", "3")];
    let events = whole(&settings(&both)).events();
    let gone = dropped(&events);
    assert!(gone.iter().all(|policy| policy.steps % 3 != 0) && !gone.is_empty());
    let alone = RunConfig::parse(
        &settings(&[]).to_text().unwrap().replace("[trainer]\n", "[trainer]\nkeep-every = 3\n"),
    );
    assert!(alone.unwrap_err().to_string().contains("trainer.keep-last"));
}

#[test]
fn cut_anywhere_the_run_drops_the_same() {
    let config = settings(&[("trainer.keep-last", "1")]);
    let world = whole(&config);
    let records = world.log.read_after(Seq(0), usize::MAX).unwrap();
    let draft = |r: &Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event.clone() };
    for cut in (1..records.len()).step_by(7) {
        let part = World { blobs: world.blobs.clone(), ..World::new() };
        part.log.append(records[..cut].iter().map(draft).collect()).unwrap();
        drive(&mut part.shells(0), &part.bus()).unwrap();
        assert_eq!(part.events(), world.events(), "cut after event {cut}");
    }
}

fn at_home(home: &Path, world: &World) -> RunId {
    let home = Home::open(home).unwrap();
    let blobs = home.blobs().unwrap();
    let records = world.log.read_after(Seq(0), usize::MAX).unwrap();
    for id in records.iter().flat_map(|record| record.event.blobs()) {
        blobs.put(&world.blobs.get(id).unwrap()).unwrap();
    }
    let run = RunId::new(1, [3; 10]);
    let draft = |r: Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event };
    home.create_run(run).unwrap().append(records.into_iter().map(draft).collect()).unwrap();
    run
}

#[test]
fn what_was_dropped_is_collected_and_the_rest_serves_branches() {
    let folder = TempDir::new().unwrap();
    let home = folder.path();
    let world = whole(&settings(&[("trainer.keep-last", "1")]));
    let run = at_home(home, &world);
    let gone = dropped(&world.events());
    let saved = |wanted: &PolicyVersion| {
        world.events().into_iter().find_map(|event| match event {
            Event::CheckpointSaved { policy, files } if policy == *wanted => Some(files),
            _ => None,
        })
    };
    ends_with(&kernelzero(home, &["gc", "--older-than", "0"]), 0, "removed");
    let opened = Home::open(home).unwrap();
    let blobs = opened.blobs().unwrap();
    for policy in &gone {
        assert!(saved(policy).unwrap().iter().all(|(_, blob)| !blobs.has(*blob)), "{policy}");
    }
    drop(blobs);
    ends_with(&kernelzero(home, &["log", "verify"]), 0, "0 missing or damaged");
    let log = opened.open_run(run, OpenMode::ReadOnly).unwrap();
    for policy in gone {
        world.blobs.remove(saved(&policy).unwrap()[0].1);
    }
    let report = audit_log(&log, &HashEvidence(&*world.blobs), Since::Start).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
    drop(log);
    // A round can always be done again; a place whose weights are gone is refused with what there is.
    let branch = kernelzero(home, &["fork", "--at", "round:3", "--only"]);
    assert_eq!(branch.status.code(), Some(0), "{}", said(&branch));
    let name = said(&branch).trim().strip_prefix("branch ").unwrap().to_owned();
    ends_with(&kernelzero(home, &["log", "verify", "--run", &name]), 0, "0 missing or damaged");
    // A place before the branch's own beginning is its parent's.
    let again = kernelzero(home, &["fork", "--run", &name, "--at", "round:2", "--only"]);
    assert_eq!(again.status.code(), Some(0), "{}", said(&again));
    ends_with(&kernelzero(home, &["log", "verify", "--all"]), 0, "0 missing or damaged");
    // It leaves as one file, and arrives without what was dropped.
    let archive = home.join("branch.archive");
    let archive = archive.to_str().unwrap();
    let exported = kernelzero(home, &["export", &name, archive]);
    assert_eq!(exported.status.code(), Some(0), "{}", said(&exported));
    let other = TempDir::new().unwrap();
    let imported = kernelzero(other.path(), &["import", archive]);
    assert_eq!(imported.status.code(), Some(0), "{}", said(&imported));
    ends_with(&kernelzero(other.path(), &["log", "verify", "--all"]), 0, "0 missing or damaged");
    let lost = dropped(&world.events()).into_iter().find(|p| p.role == Role::Coder).unwrap();
    let at = format!("coder:{}", lost.steps);
    let run = run.to_string();
    let refused = kernelzero(home, &["fork", "--run", &run, "--at", &at, "--only"]);
    ends_with(&refused, 2, "trainer.keep-last");
    // The branch needs what it shares, so nothing more is collected.
    ends_with(&kernelzero(home, &["gc", "--older-than", "0"]), 0, "removed  0 blobs");
}
