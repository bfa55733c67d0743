//! Taint names what a brute-force search over the log names.

use std::collections::{BTreeMap, BTreeSet};

use events::config::Rules;
use events::event::{CompileOutcome, Event, Scores, Verdict};
use events::ids::{GroupId, KernelId, ModuleId, Seq, StepRef};
use events::outcome::FailureKind;
use events::rules::taint::{Suspect, Tainted, Tracer};
use events::state::RunState;

use crate::world::{gray_config, run};

fn traced(events: &[Event], suspect: Suspect) -> Tainted {
    let mut tracer = Tracer::new(vec![suspect]);
    let mut state = RunState::default();
    for (seq, event) in (1..).zip(events) {
        tracer.see(&state, Seq(seq), event);
        state.apply(Seq(seq), event).unwrap();
    }
    tracer.finish()
}

/// What is fed, by one search over all events for each question, without a fold.
#[derive(Debug, Default, PartialEq)]
struct Fed {
    groups: BTreeSet<GroupId>,
    rewards: BTreeSet<(GroupId, String)>,
    steps: Vec<(StepRef, f64, f64)>,
    clean: Option<u64>,
}

fn brute(events: &[Event], modules: &BTreeSet<ModuleId>, kernels: &BTreeSet<KernelId>) -> Fed {
    let bad = |wanted: &KernelId| {
        kernels.contains(wanted)
            || events.iter().any(|event| {
                matches!(event, Event::KernelWritten { kernel, module, .. }
                    if kernel == wanted && modules.contains(module))
            })
    };
    // A module is drawn kernels for in its own step and in the Coder's: only the first are its verdicts.
    let bad_for = |wanted: &ModuleId, at: &StepRef| {
        modules.contains(wanted)
            || events.iter().any(|event| {
                matches!(event, Event::KernelWritten { kernel, module, step, .. }
                    if module == wanted && step == at && kernels.contains(kernel))
            })
    };
    let mut fed = Fed::default();
    let mut weights: BTreeMap<GroupId, (f64, f64)> = BTreeMap::new();
    for event in events {
        let Event::GroupScored { group, step, scores } = event else { continue };
        let members: Vec<(String, f64, bool)> = match scores {
            Scores::Modules(scores) => scores
                .iter()
                .map(|s| (s.module.to_string(), s.advantage, bad_for(&s.module, step)))
                .collect(),
            Scores::Kernels(scores) => {
                scores.iter().map(|s| (s.kernel.to_string(), s.advantage, bad(&s.kernel))).collect()
            }
        };
        let all: f64 = members.iter().map(|m| m.1.abs()).sum();
        let own: f64 = members.iter().filter(|m| m.2).map(|m| m.1.abs()).sum();
        weights.insert(*group, (all, own));
        for (id, _, _) in members.iter().filter(|m| m.2) {
            fed.groups.insert(*group);
            fed.rewards.insert((*group, id.clone()));
        }
    }
    for (seq, event) in (1u64..).zip(events) {
        let Event::StepStarted { step, groups, .. } = event else { continue };
        if groups.iter().any(|group| fed.groups.contains(group)) {
            let all: f64 = groups.iter().map(|g| weights[g].0).sum();
            let own: f64 = groups.iter().map(|g| weights[g].1).sum();
            let tainted = groups.iter().filter(|g| fed.groups.contains(g));
            let share: f64 = tainted.map(|g| weights[g].0).sum();
            fed.steps.push((*step, share / all, own / all));
            fed.clean.get_or_insert(seq - 1);
        }
    }
    fed
}

#[track_caller]
fn agrees(events: &[Event], suspect: Suspect, modules: &[ModuleId], kernels: &[KernelId]) -> Fed {
    let found = traced(events, suspect);
    let ids = |group: &events::rules::taint::TaintedGroup| {
        group.rewards.iter().map(|(id, _, _)| (group.group, id.to_string())).collect::<Vec<_>>()
    };
    let said = Fed {
        groups: found.groups.iter().map(|group| group.group).collect(),
        rewards: found.groups.iter().flat_map(ids).collect(),
        steps: found.steps.iter().map(|s| (s.step, s.share, s.own_share)).collect(),
        clean: found.clean.as_ref().map(|clean| clean.seq.0),
    };
    let modules = modules.iter().copied().collect();
    let kernels = kernels.iter().copied().collect();
    let right = brute(events, &modules, &kernels);
    assert_eq!(said, right);
    said
}

#[test]
fn every_kernel_and_module_of_a_run_feeds_what_a_search_finds() {
    let events = run(gray_config(1, Rules::Paper), false).events();
    let (mut kernels_with_steps, mut modules_with_steps) = (0, 0);
    for event in &events {
        match event {
            Event::KernelWritten { kernel, .. } => {
                let fed = agrees(&events, Suspect::Kernel(*kernel), &[], &[*kernel]);
                assert_eq!(fed.groups.len(), 1, "a kernel is judged once");
                kernels_with_steps += usize::from(!fed.steps.is_empty());
            }
            Event::ModuleProposed { module, .. } => {
                let fed = agrees(&events, Suspect::Module(*module), &[*module], &[]);
                modules_with_steps += usize::from(fed.steps.len() > 1);
            }
            _ => {}
        }
    }
    assert!(kernels_with_steps > 10 && modules_with_steps > 2);
}

#[test]
fn a_planted_cheat_and_all_of_its_kind_are_followed_to_every_step() {
    let events = run(gray_config(2, Rules::Paper), false).events();
    // The rule that lets it pass: everything that it calls right.
    let mut right = Vec::new();
    for event in &events {
        match event {
            Event::GroupScored { scores: Scores::Kernels(scores), .. } => {
                right.extend(scores.iter().filter(|s| s.verdict.is_correct()).map(|s| s.kernel));
            }
            Event::GroupScored { step, scores: Scores::Modules(scores), .. } => {
                for score in scores {
                    let drawn = events.iter().filter_map(|event| match event {
                        Event::KernelWritten { kernel, module, step: at, index, .. }
                            if *module == score.module && at == step =>
                        {
                            Some((*index as usize, *kernel))
                        }
                        _ => None,
                    });
                    let passed = |(index, _): &(usize, KernelId)| {
                        matches!(score.verdicts.get(*index), Some(Verdict::Correct { .. }))
                    };
                    right.extend(drawn.filter(passed).map(|(_, kernel)| kernel));
                }
            }
            _ => {}
        }
    }
    let fed = agrees(&events, Suspect::rule("correct").unwrap(), &[], &right);
    assert!(fed.steps.len() > 2);

    // A static rule found too strict: by its kind, and by the words of its evidence.
    let refused: Vec<KernelId> = events
        .iter()
        .filter_map(|event| match event {
            Event::KernelCompiled { kernel, outcome: CompileOutcome::Rejected(failure) }
                if failure.kind == FailureKind::Impure =>
            {
                Some(*kernel)
            }
            _ => None,
        })
        .collect();
    agrees(&events, Suspect::rule("impure").unwrap(), &[], &refused);
    let fed = agrees(&events, Suspect::rule("torch.exp in forward").unwrap(), &[], &refused);
    assert!(!fed.steps.is_empty());
    let fed = agrees(&events, Suspect::rule("torch.cos in forward").unwrap(), &[], &[]);
    assert_eq!(fed, Fed::default());
}

#[test]
fn the_clean_point_comes_before_the_first_step_fed() {
    let events = run(gray_config(3, Rules::Strict), false).events();
    let found = traced(&events, Suspect::rule("correct").unwrap());
    let clean = found.clean.unwrap();
    let first = &found.steps[0];
    assert_eq!(clean.seq.0 + 1, first.seq.0);
    assert!(clean.weights.contains(&first.before));
    let updates = events.iter().filter(|event| {
        matches!(event, Event::StepTaken { step, update: Some(_), .. }
            if *step > first.step || step.round > first.step.round)
    });
    let listed = found.steps.len() as u64 - 1;
    assert!(found.downstream + listed <= updates.count() as u64);
    assert!(found.steps.iter().all(|step| step.own_share <= step.share && step.share <= 1.0));
}
