//! Settings that change while actors are deciding.

use events::config::Rules;
use events::event::{Actor, Event, Recorded};
use events::ids::{Role, Seq, StepRef};

use crate::cli::ends_with;
use crate::common::config;
use crate::hall::Hall;

fn step(round: u32, role: Role, step: u32) -> StepRef {
    StepRef { round, role, step }
}

fn planned(recorded: &[Recorded]) -> Vec<(String, StepRef)> {
    let each = recorded.iter().filter_map(|r| match &r.event {
        Event::SettingPlanned { key, from, .. } => Some((key.clone(), *from)),
        _ => None,
    });
    each.collect()
}

/// Where a step opened.
fn opened(recorded: &[Recorded], step: StepRef) -> Seq {
    let opens = recorded.iter().find(|r| match &r.event {
        Event::PhaseStarted { round, role } => {
            (*round, *role, 0) == (step.round, step.role, step.step)
        }
        Event::StepTaken { step: taken, .. } => StepRef { step: taken.step + 1, ..*taken } == step,
        _ => false,
    });
    opens.unwrap().seq
}

#[test]
fn a_change_in_a_step_waits_for_the_boundary_that_it_names() {
    let hall = Hall::new(&config(4));
    let (eye, holds) = (hall.eye(), hall.eye());
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let mut held = false;
            hall.run(move |_| {
                if !std::mem::replace(&mut held, true) {
                    holds.until("three changes", |state| state.planned.len() == 3);
                }
            })
        });
        let set = |change: &str| hall.call(&["set", change]);
        eye.until("a step", |state| !state.open.sets.is_empty());
        for (change, says) in [
            ("judge.trials=0", "judge.trials"),
            ("judge.timing=true", "this needs a GPU"),
            ("seed=3", "began with"),
            ("no.such=3", "no such setting"),
        ] {
            ends_with(&set(change), 2, says);
        }
        ends_with(&set("coder.beta=0.5"), 0, "coder.beta = 0.5 from round 1 coder step 1 on");
        ends_with(&set("judge.profile=paper"), 0, "from round 1 coder step 1 on");
        let status = hall.call(&["status"]);
        ends_with(&status, 0, "planned         coder.beta = 0.5 from round 1 coder step 1 on");
        ends_with(&set("coder.policy.group-size=2"), 0, "from round 1 coder step 1 on");
        running.join().unwrap();
    });
    let state = hall.bus.ask(Clone::clone).unwrap();
    let config = state.config.unwrap();
    assert_eq!((config.coder.beta.get(), config.judge.profile), (0.5, Rules::Paper));
    assert_eq!(state.planned, []);
    let recorded = hall.events();
    // The Proposer has one step a phase.
    let from = step(1, Role::Coder, 0);
    assert_eq!(planned(&recorded).iter().map(|(_, from)| *from).collect::<Vec<_>>(), [from; 3]);
    let refused = recorded.iter().filter(|r| r.event.name() == "IntentRefused").count();
    assert_eq!(refused, 4);
    // The Coder's groups have two kernels from its first phase on.
    let kernels = recorded.iter().filter_map(|r| match &r.event {
        Event::KernelWritten { step, index, .. } if step.role == Role::Coder => Some(*index),
        _ => None,
    });
    assert_eq!(kernels.max(), Some(1));
}

/// Whatever changes while someone works, what is appended is what an audit decides.
#[test]
fn work_that_was_begun_with_other_settings_is_done_again() {
    let hall = Hall::new(&config(4));
    let (bus, mut calls) = (hall.bus.clone(), 0);
    hall.drive(move |job| {
        let idle = bus.ask(|state| state.open == Default::default()).unwrap();
        if idle && job.weights.policy.role == Role::Coder && calls < 3 {
            calls += 1;
            let changed = Event::SettingChanged {
                key: "coder.policy.top-k".into(),
                value: Some((20 + calls).to_string()),
            };
            bus.append(Actor::RunControl, vec![(None, changed)]).unwrap();
        }
    });
    let recorded = hall.events();
    let changes: Vec<Seq> =
        recorded.iter().filter(|r| r.event.name() == "SettingChanged").map(|r| r.seq).collect();
    assert_eq!(changes.len(), 3);
    assert_eq!(changes[2].0 - changes[0].0, 2, "what was drawn before each change is thrown away");
}

#[test]
fn a_pause_leaves_no_half_decided_work() {
    let hall = Hall::new(&config(4));
    let (bus, mut paused) = (hall.bus.clone(), false);
    hall.drive(move |_| {
        if !std::mem::replace(&mut paused, true) {
            let event = Event::RunPaused { reason: "someone asked".into() };
            bus.append(Actor::RunControl, vec![(None, event)]).unwrap();
        }
    });
    let resumed = (None, Event::RunResumed);
    hall.bus.append(Actor::RunControl, vec![resumed]).unwrap();
    hall.drive(|_| {});
    let recorded = hall.events();
    let pause = recorded.iter().position(|r| r.event.name() == "RunPaused").unwrap();
    assert_eq!(recorded[pause + 1].event, Event::RunResumed);
    assert_eq!(recorded.last().unwrap().event, Event::RunFinished);
    assert!(opened(&recorded, step(2, Role::Coder, 0)) > recorded[pause].seq);
}
