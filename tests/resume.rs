//! The central promise: cut the log anywhere, start again, and reach the same end.
#![allow(clippy::unwrap_used)]

mod common;

use actors::shells::{Start, Turn, drive, start};
use common::{HashEvidence, World, config, first};
use events::config::Ties;
use events::event::{Draft, Event, Recorded};
use events::ids::{BlobId, Role, RunId, Seq};
use events::log::{Blobs, Log};
use events::rules::audit::check;
use events::state::{Position, RunState};
use proptest::prelude::*;

/// A run from start to end with everything on one thread.
fn whole(seed: u64) -> World {
    let world = World::new();
    world.start(&config(seed));
    let end = drive(&mut world.shells(0), &world.bus()).unwrap();
    assert_eq!(end, Turn::Idle);
    world
}

fn fold(events: &[Event]) -> RunState {
    let mut state = RunState::default();
    for (seq, event) in (1..).zip(events) {
        state.apply(Seq(seq), event).unwrap();
    }
    state
}

/// The same run again, with only the first `cut` records kept.
fn resumed(world: &World, cut: usize) -> World {
    let kept: Vec<Recorded> = world.log.read_after(Seq(0), cut).unwrap();
    let again = World { blobs: world.blobs.clone(), ..World::new() };
    let draft = |r: Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event };
    again.log.append(kept.into_iter().map(draft).collect()).unwrap();
    drive(&mut again.shells(0), &again.bus()).unwrap();
    again
}

fn count(events: &[Event], name: &str) -> usize {
    events.iter().filter(|event| event.name() == name).count()
}

#[test]
fn runs_of_one_seed_choose_alike_whatever_they_are_called() {
    let samples = |ties: Ties, name: u8| -> Vec<BlobId> {
        let mut config = config(1);
        config.coder.pool.ties = ties;
        config.proposer.policy.batch_prompts = 6.try_into().unwrap();
        let world = World::new();
        let run = RunId::new(1, [name; 10]);
        start(&world.bus(), Start { run, ..first(&config, &world.blobs) }).unwrap();
        drive(&mut world.shells(0), &world.bus()).unwrap();
        let sample = |event| match event {
            Event::ModuleProposed { answer, .. } | Event::KernelWritten { answer, .. } => {
                Some(answer.sample)
            }
            _ => None,
        };
        world.events().into_iter().filter_map(sample).collect()
    };
    assert_eq!(samples(Ties::Coordinates, 1), samples(Ties::Coordinates, 2));
    assert_ne!(samples(Ties::RunId, 1), samples(Ties::RunId, 2), "else this shows nothing");
}

#[test]
fn a_run_does_all_that_its_config_asks() {
    let world = whole(1);
    let events = world.events();
    let state = fold(&events);
    assert_eq!(state.position, Position::Finished);
    // 2 rounds × 1 Proposer step × 2 sets, 2 modules each.
    assert_eq!(count(&events, "ApisSampled"), 4);
    assert_eq!(count(&events, "ModuleProposed"), 8);
    assert_eq!(count(&events, "ModuleValidated"), 8);
    assert_eq!(count(&events, "StepTaken"), 2 * (1 + 2));
    let valid = state.totals.modules.right as usize;
    assert!(valid > 0, "some modules are valid, else this test shows nothing");
    let coder_groups = state.totals.groups[&Role::Coder].all as usize;
    assert_eq!(count(&events, "KernelWritten"), 2 * valid + 3 * coder_groups);
    assert_eq!(count(&events, "KernelWritten"), count(&events, "KernelCompiled"));
    assert!(state.steps[&Role::Proposer] > 0 || state.steps[&Role::Coder] > 0);
}

#[test]
fn cut_after_any_record_and_resumed_it_ends_the_same() {
    let world = whole(2);
    let events = world.events();
    for cut in 1..=events.len() {
        let again = resumed(&world, cut).events();
        assert_eq!(again.len(), events.len(), "cut after {cut}");
        for (seq, (found, expected)) in (1..).zip(again.iter().zip(&events)) {
            assert_eq!(found, expected, "cut after {cut}, at {seq}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_run_cut_anywhere_ends_the_same(seed in 0u64..1_000_000, part in 0.0f64..1.0) {
        let world = whole(seed);
        let events = world.events();
        let cut = 1 + ((events.len() - 1) as f64 * part) as usize;
        let again = resumed(&world, cut).events();
        prop_assert_eq!(fold(&again), fold(&events));
        prop_assert_eq!(again, events);
    }

    #[test]
    fn failures_of_the_world_change_no_decision(seed in 0u64..1_000_000, every in 2u64..9) {
        let world = whole(seed);
        let flaky = World::new();
        flaky.start(&config(seed));
        drive(&mut flaky.shells(every), &flaky.bus()).unwrap();
        let decided = |world: &World| {
            let failed = |e: &Event| matches!(e, Event::WorkFailed { .. });
            world.events().into_iter().filter(|e| !failed(e)).collect::<Vec<_>>()
        };
        prop_assert!(count(&flaky.events(), "WorkFailed") > 0);
        prop_assert_eq!(decided(&flaky), decided(&world));
    }
}

#[test]
fn a_world_that_always_fails_pauses_the_run_and_rewards_nobody() {
    let world = World::new();
    world.start(&config(3));
    assert_eq!(drive(&mut world.shells(1), &world.bus()).unwrap(), Turn::Paused);
    let events = world.events();
    assert_eq!(count(&events, "WorkFailed"), 4, "three retries, then a pause");
    assert_eq!(count(&events, "RunPaused"), 1);
    assert_eq!(count(&events, "GroupScored"), 0);
}

/// All findings of an audit over these events.
fn audit(world: &World, events: &[Event]) -> Vec<String> {
    let evidence = HashEvidence(&*world.blobs);
    let mut state = RunState::default();
    let mut findings = Vec::new();
    for (seq, event) in (1..).zip(events) {
        findings.extend(check(&state, Seq(seq), event, &evidence).err().map(|f| f.to_string()));
        if let Err(illegal) = state.apply(Seq(seq), event) {
            findings.push(illegal.to_string());
            break;
        }
    }
    findings
}

#[test]
fn an_audit_agrees_with_an_honest_log() {
    for seed in 0..10 {
        let world = whole(seed);
        assert_eq!(audit(&world, &world.events()), Vec::<String>::new());
    }
}

/// Changes one decision of the log and names what must then be found.
fn forged(event: &Event) -> Option<Event> {
    use events::event::{CompileOutcome, Scores, Validity};
    let mut event = event.clone();
    match &mut event {
        Event::ApisSampled { apis, .. } => apis.reverse(),
        Event::ModuleProposed { answer, .. } | Event::KernelWritten { answer, .. } => {
            answer.seed ^= 1;
        }
        Event::ModuleValidated { validity, .. } if *validity != Validity::Valid => {
            *validity = Validity::Valid;
        }
        Event::KernelCompiled { outcome: CompileOutcome::Rejected(failure), .. } => {
            failure.detail.push('!');
        }
        Event::GroupScored { scores: Scores::Modules(scores), .. } => scores[0].reward += 0.5,
        Event::GroupScored { scores: Scores::Kernels(scores), .. } => scores[0].advantage += 0.5,
        Event::StepStarted { groups, .. } if groups.len() > 1 => groups.swap(0, 1),
        _ => return None,
    }
    Some(event)
}

#[test]
fn a_forged_decision_is_found_where_it_stands() {
    let world = whole(4);
    let events = world.events();
    let mut kinds = std::collections::BTreeSet::new();
    for (place, event) in events.iter().enumerate() {
        let Some(bad) = forged(event) else { continue };
        if bad == *event {
            continue;
        }
        kinds.insert(event.name());
        let mut log = events.clone();
        log[place] = bad;
        let findings = audit(&world, &log);
        let here = format!("#{} ", place + 1);
        assert!(findings.iter().any(|f| f.starts_with(&here)), "{here} {findings:?}");
    }
    assert!(kinds.len() >= 6, "forged only {kinds:?}");
}

#[test]
fn a_missing_blob_is_found_where_it_is_named() {
    let world = whole(5);
    let events = world.events();
    let bare = World::new();
    let place = events.iter().position(|e| matches!(e, Event::KernelWritten { .. })).unwrap();
    let missing = events[place].blobs()[0];
    for id in events.iter().flat_map(Event::blobs).filter(|id| *id != missing) {
        bare.blobs.put(&world.blobs.get(id).unwrap()).unwrap();
    }
    let findings = audit(&bare, &events);
    assert!(findings.iter().any(|f| f.starts_with(&format!("#{} ", place + 1))), "{findings:?}");
}
