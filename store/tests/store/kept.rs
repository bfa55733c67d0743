//! A kept state is believed only if all of it is right.

use std::fs;

use events::ids::{ApiSetId, Digest, ModuleId, Role, Seq, StepRef};
use events::log::Log;
use events::state::{PoolEntry, Position, RunState};
use store::{FileLog, Kept};

use super::{Place, drafts, flip, run};

/// Some state after the whole of `log`; which one is not the store's business.
fn state(log: &FileLog) -> RunState {
    let mut state = RunState { last: log.head().0, ..RunState::default() };
    let laptop = include_str!("../../../configs/laptop.toml");
    state.config = Some(events::config::RunConfig::parse(laptop).unwrap());
    state.position = Position::Between { done: 3 };
    let step = StepRef { round: 2, role: Role::Proposer, step: 1 };
    let entry = |number: u32| PoolEntry {
        module: ModuleId::at(ApiSetId::at(run(1), step, 0), step, number),
        rank: ModuleId::at(ApiSetId::at(run(1), step, 0), step, number),
        source: Digest::of(&number.to_le_bytes()),
        validated: Seq(number.into()),
        apis: vec!["torch.exp".into(), String::new()],
        round: 2,
        correct: number,
        of: 8,
    };
    state.pool = (0..40).map(entry).collect();
    state
}

fn unusable(log: &FileLog, why: &str) {
    let kept = log.kept().unwrap();
    let Kept::Unusable(text) = &kept else { panic!("{kept:?}") };
    assert!(text.contains(why) && text.contains("state"), "{text}");
}

#[test]
fn what_is_kept_is_read_by_owners_and_readers_also_after_more_events() {
    let place = Place::filled(600);
    let log = place.own().unwrap();
    assert_eq!(log.kept().unwrap(), Kept::Nothing);
    let first = state(&log);
    log.keep(&first).unwrap();
    log.append(drafts(0..9)).unwrap();
    assert_eq!(log.kept().unwrap(), Kept::State(Box::new(first)));
    log.keep(&state(&log)).unwrap();
    let second = Kept::State(Box::new(state(&log)));
    assert_eq!(log.kept().unwrap(), second);
    let reader = place.read().unwrap();
    assert_eq!(reader.kept().unwrap(), second);
    assert!(reader.keep(&state(&reader)).is_err(), "readers write nothing");
    drop((log, reader));
    assert_eq!(place.own().unwrap().kept().unwrap(), second);
}

#[test]
fn every_flipped_byte_and_every_cut_is_noticed() {
    let place = Place::filled(64 << 20);
    let log = place.own().unwrap();
    log.keep(&state(&log)).unwrap();
    let path = place.dir().join("state");
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        flip(&path, at);
        unusable(&log, "");
        fs::write(&path, &whole[..at]).unwrap();
        unusable(&log, "");
        fs::write(&path, &whole).unwrap();
    }
    fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    unusable(&log, "damaged");
}

#[test]
fn a_state_of_another_log_is_not_used() {
    let (place, other) = (Place::filled(64 << 20), Place::filled(64 << 20));
    let (log, longer) = (place.own().unwrap(), other.own().unwrap());
    longer.append(drafts(5..7)).unwrap();
    longer.keep(&state(&longer)).unwrap();
    let state_of = |place: &Place| place.dir().join("state");
    fs::copy(state_of(&other), state_of(&place)).unwrap();
    unusable(&log, "another log");
    log.append(drafts(7..9)).unwrap();
    assert_eq!(log.head().0, longer.head().0);
    unusable(&log, "another log");
}

#[test]
fn a_state_of_another_fold_is_not_used() {
    let place = Place::filled(64 << 20);
    let log = place.own().unwrap();
    log.keep(&state(&log)).unwrap();
    let path = place.dir().join("state");
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] ^= 1;
    let digest = Digest::of(&[&bytes[..56], &bytes[88..]].concat());
    bytes[56..88].copy_from_slice(&digest.0);
    fs::write(&path, bytes).unwrap();
    assert_eq!(log.kept().unwrap(), Kept::Nothing);
    log.keep(&state(&log)).unwrap();
    assert!(matches!(log.kept().unwrap(), Kept::State(_)), "it is replaced");
}

#[test]
fn a_state_that_is_ahead_of_the_log_is_not_kept() {
    let place = Place::filled(64 << 20);
    let log = place.own().unwrap();
    let mut ahead = state(&log);
    ahead.last.0 += 1;
    assert!(log.keep(&ahead).is_err());
    assert_eq!(log.kept().unwrap(), Kept::Nothing);
}

#[test]
fn a_branch_keeps_its_own() {
    let place = Place::filled(64 << 20);
    let branch = place.home.fork_run(place.run, Seq(4), run(8), drafts(1..2)).unwrap();
    branch.keep(&state(&branch)).unwrap();
    assert_eq!(branch.kept().unwrap(), Kept::State(Box::new(state(&branch))));
    assert_eq!(place.read().unwrap().kept().unwrap(), Kept::Nothing);
}
