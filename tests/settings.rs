//! Settings that change in the middle of a run: however a policy is frozen, the same is decided.
#![allow(clippy::unwrap_used)]

mod common;

use actors::shells::{Turn, drive};
use common::{HashEvidence, World, config};
use events::config::RunConfig;
use events::event::{Actor, Draft, Event};
use events::ids::{Role, Seq};
use events::log::Log;
use events::rules::audit::check;
use events::state::RunState;

const KEY: &str = "proposer.policy.freeze-at-step";

fn long(seed: u64) -> RunConfig {
    config(seed).with("rounds", Some("3")).unwrap()
}

fn frozen_at(seed: u64, step: u32) -> RunConfig {
    long(seed).with(KEY, Some(&step.to_string())).unwrap()
}

fn finish(world: &World) -> Vec<Event> {
    assert_eq!(drive(&mut world.shells(0), &world.bus()).unwrap(), Turn::Idle);
    world.events()
}

fn whole(config: &RunConfig) -> World {
    let world = World::new();
    world.start(config);
    finish(&world);
    world
}

fn run(config: &RunConfig) -> Vec<Event> {
    whole(config).events()
}

/// The run up to the first event after which `stop` holds, then the change, then the rest of the run.
fn changed_after(of: &World, stop: impl Fn(&RunState) -> bool, value: &str) -> Vec<Event> {
    let world = World { blobs: of.blobs.clone(), ..World::new() };
    let mut state = RunState::default();
    for (seq, event) in (1..).zip(of.events()) {
        state.apply(Seq(seq), &event).unwrap();
        let draft = Draft { cause: None, actor: Actor::RunControl, event };
        world.log.append(vec![draft]).unwrap();
        if stop(&state) {
            break;
        }
    }
    let event = Event::SettingChanged { key: KEY.into(), value: Some(value.into()) };
    world.log.append(vec![Draft { cause: None, actor: Actor::RunControl, event }]).unwrap();
    finish(&world)
}

/// All but what says that and when a policy is frozen.
fn decisions(events: &[Event]) -> Vec<&Event> {
    let freezes = |e: &&Event| matches!(e, Event::SettingChanged { .. } | Event::RunStarted { .. });
    events.iter().filter(|e| !freezes(e)).collect()
}

fn updates(events: &[Event], of: Role) -> usize {
    let taken =
        |e: &&Event| matches!(e, Event::StepTaken { step, update: Some(_), .. } if step.role == of);
    events.iter().filter(taken).count()
}

/// A seed under which the Proposer takes more than one step, so that freezing it changes something.
fn telling_seed() -> u64 {
    (0..100).find(|seed| updates(&run(&long(*seed)), Role::Proposer) > 1).unwrap()
}

#[test]
fn a_frozen_policy_still_samples_and_the_other_trains_on() {
    let seed = telling_seed();
    let (free, frozen) = (run(&long(seed)), run(&frozen_at(seed, 1)));
    assert_eq!(updates(&frozen, Role::Proposer), 1);
    assert!(updates(&free, Role::Proposer) > 1);
    assert!(updates(&frozen, Role::Coder) > 0);
    let count = |events: &[Event], name| events.iter().filter(|e| e.name() == name).count();
    for name in ["ApisSampled", "ModuleProposed", "PhaseFinished", "RoundFinished"] {
        assert_eq!(count(&free, name), count(&frozen, name), "{name}");
    }
}

#[test]
fn frozen_by_config_by_a_change_or_in_a_branch_the_same_is_decided() {
    let seed = telling_seed();
    let by_config = run(&frozen_at(seed, 1));
    let free = whole(&long(seed));
    let started = |s: &RunState| s.last == Seq(1);
    let stepped = |s: &RunState| s.version(Role::Proposer).steps == 1;
    // In the middle of a step, before it is known that it will be the first to change the policy.
    let sampled = |s: &RunState| s.open.modules.len() == 1;
    for (place, stop) in [
        ("at the start", &started as &dyn Fn(&RunState) -> bool),
        ("after the step", &stepped),
        ("in a step", &sampled),
    ] {
        let changed = changed_after(&free, stop, "1");
        assert_eq!(decisions(&changed), decisions(&by_config), "{place}");
    }
}

#[test]
fn a_log_with_changes_audits() {
    let seed = telling_seed();
    let world = World::new();
    world.start(&frozen_at(seed, 1));
    let events = finish(&world);
    let evidence = HashEvidence(&*world.blobs);
    let mut state = RunState::default();
    for (seq, event) in (1..).zip(&events) {
        check(&state, Seq(seq), event, &evidence).unwrap();
        state.apply(Seq(seq), event).unwrap();
    }
}

#[test]
fn other_settings_wait_for_the_end_of_a_step() {
    let events = run(&long(1));
    let mut state = RunState::default();
    let change = |key: &str, value: &str| Event::SettingChanged {
        key: key.into(),
        value: Some(value.into()),
    };
    let (mut idle, mut open) = (0, 0);
    for (seq, event) in (1..).zip(&events) {
        state.apply(Seq(seq), event).unwrap();
        let next = Seq(seq + 1);
        let tried = state.clone().apply(next, &change("coder.beta", "0.5"));
        let over = event.name() == "RunFinished";
        match state.open == Default::default() && !over {
            true => idle += u32::from(tried.is_ok()),
            false => open += u32::from(tried.unwrap_err().to_string().contains("step") || over),
        }
        assert!(state.clone().apply(next, &change("seed", "5")).is_err());
    }
    assert_eq!((idle + open) as usize, events.len());
    assert!(idle > 3 && open > 3);
}
