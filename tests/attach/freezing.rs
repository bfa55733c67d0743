//! However the Proposer is frozen, the same is decided from there on.

use std::collections::BTreeMap;
use std::sync::Arc;

use actors::Bus;
use actors::Shells;
use actors::shells::{Limits, Turn, drive};
use events::config::RunConfig;
use events::event::{Event, Recorded};
use events::ids::{Role, Seq};
use events::log::{Blobs, Log};
use events::rules::intent::freeze_key;
use serde_json::Value;
use store::OpenMode;

use crate::cli::{ends_with, kernelzero};
use crate::common::{HashEngine, HashJudge, World, config};
use crate::hall::{Hall, agrees, is_about_settings, well};

/// Two rounds of `steps` and 2 steps.
pub fn free(seed: u64, steps: u32) -> RunConfig {
    let text = steps.to_string();
    let config = config(seed).with("proposer.policy.steps-per-phase", Some(&text)).unwrap();
    config.with("rounds", Some("2")).unwrap()
}

fn frozen(config: &RunConfig, at: u32) -> RunConfig {
    config.with(&freeze_key(Role::Proposer), Some(&at.to_string())).unwrap()
}

/// All decisions as text, with ids replaced by the order in which they come up: a branch has others.
pub fn decisions(events: &[Event]) -> Vec<String> {
    let mut names = BTreeMap::new();
    let decided = events.iter().filter(|event| !is_about_settings(event));
    decided
        .map(|event| {
            let mut value = serde_json::to_value(event).unwrap();
            rename(&mut value, &mut names);
            value.to_string()
        })
        .collect()
}

fn rename(value: &mut Value, names: &mut BTreeMap<String, usize>) {
    match value {
        Value::String(text) if text.len() == 36 && uuid_like(text) => {
            let next = names.len();
            *text = format!("id {}", names.entry(text.clone()).or_insert(next));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| rename(value, names)),
        Value::Object(fields) => fields.values_mut().for_each(|value| rename(value, names)),
        _ => {}
    }
}

fn uuid_like(text: &str) -> bool {
    text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// The same without an order: actors on threads of their own take turns as they come.
fn sorted(events: &[Recorded]) -> Vec<String> {
    let decided = events.iter().map(|r| &r.event).filter(|event| !is_about_settings(event));
    let mut lines: Vec<String> = decided.map(|event| format!("{event:?}")).collect();
    lines.sort();
    lines
}

pub fn events(recorded: &[Recorded]) -> Vec<Event> {
    recorded.iter().map(|recorded| recorded.event.clone()).collect()
}

fn updates(recorded: &[Recorded]) -> u32 {
    let taken = recorded.iter().filter(|r| {
        matches!(&r.event, Event::StepTaken { step, update: Some(_), .. } if step.role == Role::Proposer)
    });
    taken.count() as u32
}

/// A run frozen in its config, on one thread.
pub fn by_config(config: &RunConfig, at: u32) -> Vec<Recorded> {
    let world = World::new();
    world.start(&frozen(config, at));
    assert_eq!(drive(&mut world.shells(0), &world.bus()).unwrap(), Turn::Idle);
    world.log.read_after(Seq(0), usize::MAX).unwrap()
}

/// A running system whose engine waits for its first job until the Proposer is to be frozen at `at`;
/// `freeze` has that done from outside.
fn while_running(config: &RunConfig, at: u32, freeze: impl FnOnce(&Hall)) -> Vec<Recorded> {
    let hall = Hall::new(config);
    let eye = hall.eye();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            hall.run(move |_| {
                eye.until("a freeze", |state| {
                    let config = state.config.as_ref().unwrap();
                    config.proposer.policy.freeze_at_step == Some(at)
                });
            })
        });
        freeze(&hall);
        running.join().unwrap();
    });
    hall.events()
}

/// A run that is not frozen, branched where `place` says with the setting changed.
fn by_fork(config: &RunConfig, at: u32, place: impl Fn(&[Recorded]) -> String) -> Vec<Recorded> {
    let hall = Hall::new(config);
    hall.drive(|_| {});
    let (recorded, blobs, home, _folder) = hall.close();
    assert!(updates(&recorded) > at, "freezing changes something");
    // A branch wants its weights in the home's own store.
    let store = home.blobs().unwrap();
    for blob in recorded.iter().flat_map(|r| match &r.event {
        Event::CheckpointSaved { files, .. } => files.iter().map(|(_, blob)| *blob).collect(),
        _ => Vec::new(),
    }) {
        store.put(&blobs.get(blob).unwrap()).unwrap();
    }
    let set = format!("{}={at}", freeze_key(Role::Proposer));
    let fork = ["fork", "--at", &place(&recorded), "--set", &set, "--only"];
    ends_with(&kernelzero(home.dir(), &fork), 0, "branch ");
    let branch = *home.runs().unwrap().last().unwrap();
    let log = Arc::new(home.open_run(branch, OpenMode::Own).unwrap());
    let bus = Bus::open(log.clone(), blobs.clone()).unwrap();
    let engine = HashEngine { blobs: blobs.clone(), fails_every: 0, calls: 0 };
    let limits = Limits { samples: 3, judges: 2 };
    let mut shells = Shells::new(Box::new(engine), Arc::new(HashJudge), limits);
    assert_eq!(drive(&mut shells, &bus).unwrap(), Turn::Idle);
    agrees(&log, &blobs);
    log.read_after(Seq(0), usize::MAX).unwrap()
}

/// The third event after the Proposer's `at`-th step: in the middle of the next one.
fn in_the_next_step(recorded: &[Recorded], at: u32) -> String {
    let stepped = recorded.iter().position(|r| match &r.event {
        Event::StepTaken { after, .. } => (after.role, after.steps) == (Role::Proposer, at),
        _ => false,
    });
    let place = &recorded[stepped.unwrap() + 3];
    assert_eq!(place.event.name(), "ModuleProposed");
    place.seq.0.to_string()
}

fn named(recorded: &[Recorded], name: &str) -> Vec<String> {
    let of = |r: &&Recorded| actors::attached::actor_name(r.actor).starts_with(name);
    recorded.iter().filter(of).map(|r| r.event.name().to_owned()).collect()
}

/// The same decisions; the first that is not is shown.
#[track_caller]
pub fn same(found: &[String], wanted: &[String], what: &str) {
    let differs = found.iter().zip(wanted).find(|(a, b)| a != b);
    assert!(differs.is_none() && found.len() == wanted.len(), "{what}: {differs:#?}");
}

fn in_four_ways(config: &RunConfig, at: u32) {
    let config_way = by_config(config, at);
    assert_eq!(updates(&config_way), at);
    let steps = at.to_string();
    let command_way = while_running(config, at, |hall| {
        let freeze = hall.call(&["freeze", "proposer", "--at-step", &steps]);
        ends_with(&freeze, 0, &format!("proposer.policy.freeze-at-step = {steps}"));
    });
    same(&sorted(&command_way), &sorted(&config_way), "by command");
    assert_eq!(
        named(&command_way, "operator-"),
        ["ActorAttached", "SettingChanged", "ActorDetached"]
    );
    let python_way = while_running(config, at, |hall| {
        let options = ["--name", "freezer", "--events", "StepTaken"];
        well(hall.attach(&options, "freezer.py", &["proposer", &steps, "--ahead"]));
    });
    same(&sorted(&python_way), &sorted(&config_way), "by an attached actor");
    assert_eq!(
        named(&python_way, "freezer"),
        ["ActorAttached", "SettingChanged", "Noted", "ActorDetached"]
    );
    let fork_way = by_fork(config, at, |_| format!("proposer:{at}"));
    same(&decisions(&events(&fork_way)), &decisions(&events(&config_way)), "by a branch");
    let fork_way = by_fork(config, at, |recorded| in_the_next_step(recorded, at));
    same(&decisions(&events(&fork_way)), &decisions(&events(&config_way)), "by a branch in a step");
}

#[test]
fn frozen_in_four_ways_the_same_is_decided() {
    in_four_ways(&free(3, 6), 3);
}

#[test]
fn frozen_at_step_40_in_four_ways_the_same_is_decided() {
    in_four_ways(&free(3, 40), 40);
}

/// The actor sees the step and only then asks, while the next one is being drawn.
#[test]
fn frozen_by_an_actor_in_the_middle_of_a_phase_the_same_is_decided() {
    let (config, at) = (free(3, 6), 3);
    let hall = Hall::new(&config);
    let (eye, steps) = (hall.eye(), at.to_string());
    std::thread::scope(|scope| {
        let freezer = hall.attach(&["--name", "freezer"], "freezer.py", &["proposer", &steps]);
        let running = scope.spawn(|| {
            hall.run(move |job| {
                let (role, taken) = (job.weights.policy.role, job.weights.policy.steps);
                if role == Role::Proposer && taken == at {
                    eye.until("a freeze", |state| state.is_frozen(Role::Proposer));
                }
            })
        });
        running.join().unwrap();
        well(freezer);
    });
    let recorded = hall.events();
    let change = recorded.iter().position(|r| r.event.name() == "SettingChanged").unwrap();
    let place = |name: &str| recorded[..change].iter().rposition(|r| r.event.name() == name);
    assert!(place("ApisSampled") > place("StepTaken"), "the step was open");
    same(&sorted(&recorded), &sorted(&by_config(&config, at)), "in a phase");
}
