//! A state that is kept beside a log saves folding, and is never taken at its word where that shows.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::{Command, Output};

use actors::shells::drive;
use common::{World, config};
use events::event::{Draft, Recorded};
use events::ids::{RunId, Seq};
use events::log::Log;
use events::state::RunState;
use kernelzero::kept::{refold, state_of};
use store::{FileLog, Home, OpenMode};
use tempfile::TempDir;

/// A finished run of a world of hashes, in files.
fn finished() -> (TempDir, FileLog) {
    let world = World::new();
    world.start(&config(5));
    drive(&mut world.shells(0), &world.bus()).unwrap();
    let folder = TempDir::new().unwrap();
    let log = Home::open(folder.path()).unwrap().create_run(RunId::new(1, [3; 10])).unwrap();
    let draft = |r: Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event };
    for record in world.log.read_after(Seq(0), usize::MAX).unwrap() {
        log.append(vec![draft(record)]).unwrap();
    }
    (folder, log)
}

fn folded(log: &FileLog, upto: u64) -> RunState {
    let mut state = RunState::default();
    for record in log.read_after(Seq(0), upto as usize).unwrap() {
        state.apply(record.seq, &record.event).unwrap();
    }
    state
}

fn replay(folder: &TempDir) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kernelzero"));
    command.arg("--home").arg(folder.path()).arg("replay").output().unwrap()
}

#[test]
fn from_any_kept_state_the_fold_is_the_same() {
    let (_folder, log) = finished();
    let last = log.head().0.0;
    let whole = folded(&log, last);
    assert_eq!(state_of(&log).unwrap(), whole);
    for upto in 1..=last {
        log.keep(&folded(&log, upto)).unwrap();
        assert_eq!(state_of(&log).unwrap(), whole, "kept at {upto}");
        assert_eq!(refold(&log).unwrap(), (whole.clone(), Some(true)));
    }
}

#[test]
fn a_wrong_state_is_found_by_a_replay_and_by_events_that_cannot_follow() {
    let (folder, log) = finished();
    let whole = folded(&log, log.head().0.0);
    let half = log.head().0.0 / 2;
    // One from which the next event cannot follow: all events are folded instead.
    log.keep(&RunState { last: Seq(half), ..RunState::default() }).unwrap();
    assert_eq!(state_of(&log).unwrap(), whole);
    // One that only a fold of everything can tell.
    let mut forged = whole.clone();
    forged.totals.kernels.right += 1;
    log.keep(&forged).unwrap();
    assert_eq!(refold(&log).unwrap(), (whole.clone(), Some(false)));
    drop(log);
    let said = replay(&folder);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.code() == Some(1) && text.contains("kept state      DIFFERENT"), "{text}");
    let log = Home::open(folder.path()).unwrap();
    let log = log.open_run(RunId::new(1, [3; 10]), OpenMode::Own).unwrap();
    log.keep(&whole).unwrap();
    drop(log);
    let said = replay(&folder);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success() && text.contains("kept state      equal"), "{text}");
}
