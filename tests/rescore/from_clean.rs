//! Going on from the last clean checkpoint, without what is tainted.

use std::collections::BTreeSet;

use events::config::Rules;
use events::event::{Actor, Draft, Event, Scores, Verdict};
use events::ids::{KernelId, Role, RunId, Seq};
use events::log::Log;
use events::rules::audit::{Agreement, Auditor, check};
use events::rules::rescore::{Rescorer, Rulebook};
use events::rules::taint::{Suspect, Tracer};
use events::state::RunState;
use store::{Home, OpenMode};
use tempfile::TempDir;

use crate::cli::{ends_with, kernelzero, said};
use crate::common::{HashEvidence, World};
use crate::world::{go_on, gray_config, run, save};

struct Case {
    home: TempDir,
    world: World,
}

fn case() -> Case {
    let home = TempDir::new().unwrap();
    let world = run(gray_config(1, Rules::Paper), false);
    save(&world, home.path());
    Case { home, world }
}

/// The branch that the command makes, gone on with to its end: its events.
fn branched(case: &Case, wrong: &[&str]) -> Vec<Event> {
    let parent = case.world.events().iter().find_map(|event| match event {
        Event::RunStarted { run, .. } => Some(run.to_string()),
        _ => None,
    });
    let parent = parent.unwrap();
    let command = ["restart", "--run", &parent, "--from-clean", "--only"];
    let output = kernelzero(case.home.path(), &[&command, wrong].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = said(&output);
    let name = text.lines().find_map(|line| line.strip_prefix("branch ")).unwrap();
    let home = Home::open(case.home.path()).unwrap();
    let log = home.open_run(name.parse::<RunId>().unwrap(), OpenMode::ReadOnly).unwrap();
    let world = World { blobs: case.world.blobs.clone(), ..World::new() };
    let records = log.read_after(Seq(0), usize::MAX).unwrap();
    let draft =
        |r: events::event::Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event };
    world.log.append(records.into_iter().map(draft).collect()).unwrap();
    go_on(&world);
    audits(&world);
    world.events()
}

fn audits(world: &World) {
    let (mut state, evidence) = (RunState::default(), HashEvidence(&*world.blobs));
    let mut auditor = Auditor::default();
    for (seq, event) in (1..).zip(&world.events()) {
        assert_eq!(auditor.check(&state, Seq(seq), event, &evidence), Ok(Agreement::Agrees));
        assert_eq!(check(&state, Seq(seq), event, &evidence), Ok(Agreement::Agrees));
        state.apply(Seq(seq), event).unwrap();
    }
}

fn fed(events: &[Event], suspect: Suspect) -> Vec<u64> {
    let mut tracer = Tracer::new(vec![suspect]);
    let mut state = RunState::default();
    for (seq, event) in (1..).zip(events) {
        tracer.see(&state, Seq(seq), event);
        state.apply(Seq(seq), event).unwrap();
    }
    tracer.finish().steps.iter().map(|step| step.seq.0).collect()
}

/// Kernels of the events that were scored, and their verdicts.
fn verdicts(events: &[Event]) -> Vec<(KernelId, Verdict)> {
    let of = |event: &Event| match event {
        Event::GroupScored { scores: Scores::Kernels(scores), .. } => {
            scores.iter().map(|s| (s.kernel, s.verdict.clone())).collect()
        }
        _ => Vec::new(),
    };
    events.iter().flat_map(of).collect()
}

fn weights(events: &[Event]) -> Vec<events::ids::Digest> {
    let of = |event: &Event| match event {
        Event::StepTaken { update: Some(update), .. } => Some(update.weights),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

#[test]
fn a_kernel_is_excluded_and_feeds_nothing() {
    let case = case();
    let events = case.world.events();
    let planted = verdicts(&events).into_iter().find(|(kernel, verdict)| {
        verdict.is_correct() && fed(&events, Suspect::Kernel(*kernel)).len() == 1
    });
    let (kernel, _) = planted.unwrap();
    let first = fed(&events, Suspect::Kernel(kernel))[0] as usize;
    let name = kernel.to_string();
    let branch = branched(&case, &["--kernel", &name]);
    let forked = branch.iter().position(|e| matches!(e, Event::RunForked { .. })).unwrap();
    assert_eq!(branch[..forked], events[..forked], "the beginning is shared");
    assert!(forked < first, "the branch leaves before the first step that was fed");
    assert_eq!(weights(&branch[..forked]), weights(&events[..first - 1]), "the last clean weights");
    assert_eq!(verdicts(&branch).iter().find(|(k, _)| *k == kernel).unwrap().1, Verdict::Excluded);
    assert_eq!(fed(&branch, Suspect::Kernel(kernel)), Vec::<u64>::new());
    assert_eq!(branch.last(), Some(&Event::RunFinished));
    assert_ne!(weights(&branch), weights(&events), "what it fed is undone");
    // Gone on with once more, the same is decided.
    let excluded = branch.iter().position(|e| matches!(e, Event::SamplesExcluded { .. })).unwrap();
    let again = World { blobs: case.world.blobs.clone(), ..World::new() };
    let draft =
        |event: &Event| Draft { cause: None, actor: Actor::RunControl, event: event.clone() };
    again.log.append(branch[..=excluded].iter().map(draft).collect()).unwrap();
    go_on(&again);
    assert_eq!(again.events(), branch);
}

#[test]
fn a_module_is_excluded_with_its_kernels_and_is_no_task_any_more() {
    let case = case();
    let events = case.world.events();
    let of_coder = |event: &Event| match event {
        Event::KernelWritten { module, step, .. } if step.role == Role::Coder => Some(*module),
        _ => None,
    };
    let modules: BTreeSet<_> = events.iter().filter_map(of_coder).collect();
    let module = modules.into_iter().find(|m| fed(&events, Suspect::Module(*m)).len() > 1).unwrap();
    let branch = branched(&case, &["--module", &module.to_string()]);
    let forked = branch.iter().position(|e| matches!(e, Event::RunForked { .. })).unwrap();
    let asked = branch[forked..].iter().filter_map(of_coder).any(|of| of == module);
    assert!(!asked, "kernels are written for it");
    assert_eq!(fed(&branch, Suspect::Module(module)), Vec::<u64>::new());
    let lines = branch[forked..].iter().find_map(|event| match event {
        Event::GroupScored { scores: Scores::Modules(scores), .. } => {
            scores.iter().find(|s| s.module == module).cloned()
        }
        _ => None,
    });
    let line = lines.unwrap();
    assert!(!line.verdicts.is_empty());
    assert!(line.verdicts.iter().all(|verdict| *verdict == Verdict::Excluded));
    assert_eq!((line.reward, line.advantage), (0.0, 0.0));
}

#[test]
fn a_branch_that_excludes_is_scored_again_by_its_own_rules_without_a_change() {
    let case = case();
    let refused = branched(&case, &["--rule", "impure"]);
    let events = case.world.events();
    assert!(!fed(&events, Suspect::rule("impure").unwrap()).is_empty());
    let evidence = HashEvidence(&*case.world.blobs);
    let rules = Rulebook::of(&gray_config(1, Rules::Paper));
    let mut rescorer = Rescorer::new(rules, &evidence);
    let mut excluded = 0;
    for (seq, event) in (1..).zip(&refused) {
        rescorer.see(event).unwrap();
        rescorer.apply(Seq(seq), event).unwrap();
        let verdicts: Vec<Verdict> = match event {
            Event::GroupScored { scores: Scores::Kernels(scores), .. } => {
                scores.iter().map(|s| s.verdict.clone()).collect()
            }
            Event::GroupScored { scores: Scores::Modules(scores), .. } => {
                scores.iter().flat_map(|s| s.verdicts.clone()).collect()
            }
            _ => Vec::new(),
        };
        excluded += verdicts.iter().filter(|verdict| **verdict == Verdict::Excluded).count();
    }
    let rows = rescorer.finish();
    assert!(excluded > 0);
    assert!(rows.iter().all(|row| !row.changes()), "{rows:#?}");
}

#[test]
fn what_cannot_be_is_said() {
    let case = case();
    let home = case.home.path();
    ends_with(&kernelzero(home, &["restart", "--from-clean", "--only"]), 2, "say what is wrong");
    let nothing = ["restart", "--from-clean", "--only", "--rule", "timeout"];
    ends_with(&kernelzero(home, &nothing), 2, "all is clean");
    let slip = ["restart", "--from-clean", "--only", "--rule", "no such words"];
    ends_with(&kernelzero(home, &slip), 2, "no refusal in run");
    let both = ["restart", "--round", "1", "--rule", "impure"];
    ends_with(&kernelzero(home, &both), 2, "--from-clean");
}
