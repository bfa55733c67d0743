//! Effects that are done again: agreement, difference, and what cannot be done again.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use actors::ports::{
    Drawn, Engine, GenerateJob, Judge, MeasureJob, TrainJob, Trained, WorldFailed,
};
use actors::shells::{Turn, drive};
use common::{HashEngine, HashJudge, World, config};
use events::event::{Actor, CompileOutcome, Draft, Event, Recorded};
use events::ids::{Digest, RunId, Seq};
use events::log::Log;
use events::outcome::{
    Backend, Execution, Failure, FailureKind, Measurement, ModuleRun, SourceReport,
};
use kernelzero::audit::Since;
use kernelzero::effects::{Effects, Kind, Outcome, Sampling, World as Machine, effects};
use store::{FileLog, Home, MemoryBlobs, OpenMode};
use tempfile::TempDir;

/// What the hashing judge says it measures on.
const DEVICE: &str = "none";

struct Run {
    world: World,
    log: FileLog,
    _home: TempDir,
}

/// A finished run of hashes, in files; `also` is appended at its end.
fn run(before_end: &dyn Fn(&[Recorded]) -> Vec<Event>) -> Run {
    let world = World::new();
    world.start(&config(4).with("rounds", Some("3")).unwrap());
    assert_eq!(drive(&mut world.shells(0), &world.bus()).unwrap(), Turn::Idle);
    let mut records = world.log.read_after(Seq(0), usize::MAX).unwrap();
    let end = records.pop().unwrap();
    let more = before_end(&records).into_iter().map(|event| Draft {
        cause: None,
        actor: Actor::RunControl,
        event,
    });
    let draft = |r: Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event };
    let home = TempDir::new().unwrap();
    let opened = Home::open(home.path()).unwrap();
    let name = RunId::new(1, [3; 10]);
    let drafts = records.iter().cloned().map(draft).chain(more).chain([draft(end)]);
    opened.create_run(name).unwrap().append(drafts.collect()).unwrap();
    let log = opened.open_run(name, OpenMode::ReadOnly).unwrap();
    Run { world, log, _home: home }
}

fn whole() -> Run {
    run(&|_| Vec::new())
}

/// A world that is another one now.
#[derive(Clone, Copy, Default)]
struct Other {
    /// Sources whose first byte of a hash is below this are judged otherwise.
    verdicts: bool,
    weights: bool,
    unplugged: bool,
}

impl Judge for Other {
    fn purity_policy(&self) -> u32 {
        HashJudge.purity_policy()
    }

    fn module_source(
        &self,
        source: &str,
        tracked: &std::collections::BTreeSet<String>,
    ) -> SourceReport {
        HashJudge.module_source(source, tracked)
    }

    fn run_module(&self, source: &str, seed: u64, trials: u32) -> Result<ModuleRun, WorldFailed> {
        HashJudge.run_module(source, seed, trials)
    }

    fn kernel_source(&self, source: &str) -> Result<Backend, Failure> {
        HashJudge.kernel_source(source)
    }

    fn build(
        &self,
        source: &str,
        backend: Backend,
    ) -> Result<Result<Digest, Failure>, WorldFailed> {
        if self.unplugged {
            return Err(WorldFailed("no compiler".into()));
        }
        HashJudge.build(source, backend)
    }

    fn measure(&self, job: &MeasureJob) -> Result<Measurement, WorldFailed> {
        let mut measured = HashJudge.measure(job)?;
        if self.verdicts {
            let failure = Failure::new(FailureKind::Timeout, "slow");
            measured.execution = Execution::Failed(failure);
        }
        Ok(measured)
    }
}

struct OtherEngine(HashEngine, bool);

impl Engine for OtherEngine {
    fn generate(
        &mut self,
        job: &GenerateJob,
        each: &mut dyn FnMut(Drawn) -> ControlFlow<()>,
    ) -> Result<(), WorldFailed> {
        self.0.generate(job, each)
    }

    fn train(&mut self, job: &TrainJob) -> Result<Trained, WorldFailed> {
        let mut job = job.clone();
        job.learning_rate *= if self.1 { 2.0 } else { 1.0 };
        job.samples.truncate(if self.1 { 1 } else { usize::MAX });
        self.0.train(&job)
    }
}

fn again(run: &Run, count: usize, seed: u64, other: Other) -> Effects {
    let into = Arc::new(MemoryBlobs::new());
    let mut machine = Machine {
        blobs: &*run.world.blobs,
        judge: &other,
        device: DEVICE.to_owned(),
        engine: Box::new(|| {
            let engine = HashEngine { blobs: into.clone(), fails_every: 0, calls: 0 };
            Ok(Box::new(OtherEngine(engine, other.weights)) as Box<dyn Engine>)
        }),
    };
    effects(&run.log, Sampling { count, seed, since: Since::Start }, &mut machine).unwrap()
}

fn number(run: &Run, wanted: impl Fn(&Event) -> bool) -> u64 {
    run.world.events().iter().filter(|event| wanted(event)).count() as u64
}

#[test]
fn the_same_world_does_the_same_again() {
    let run = whole();
    let found = again(&run, usize::MAX, 0, Other::default());
    let built = |e: &Event| {
        matches!(e, Event::KernelCompiled { outcome: CompileOutcome::Built { .. }, .. })
    };
    assert_eq!(found.counts[&Kind::Build].all, number(&run, built));
    let measured = |e: &Event| matches!(e, Event::KernelMeasured { .. });
    assert_eq!(found.counts[&Kind::Measurement].all, number(&run, measured));
    let taken = |e: &Event| matches!(e, Event::StepTaken { update: Some(_), .. });
    assert_eq!(found.counts[&Kind::Step].all, number(&run, taken));
    for (kind, count) in &found.counts {
        assert_eq!((count.agree, count.sampled), (count.all, count.all), "{kind:?}");
        assert!(count.all > 2, "{kind:?}");
    }
    assert!(found.redone.iter().all(|one| one.same_values == (one.kind == Kind::Measurement)));
}

#[test]
fn a_sample_is_drawn_by_its_seed() {
    let run = whole();
    let places = |seed| -> Vec<Seq> {
        again(&run, 2, seed, Other::default()).redone.iter().map(|one| one.seq).collect()
    };
    assert_eq!(places(1).len(), 6);
    assert_eq!(places(1), places(1));
    assert!((2..9).any(|seed| places(seed) != places(1)));
}

#[test]
fn another_world_is_told_by_kind_and_task() {
    let run = whole();
    let found = again(&run, usize::MAX, 0, Other { verdicts: true, ..Other::default() });
    let count = found.counts[&Kind::Measurement];
    assert_eq!((count.agree, count.differ), (0, count.all));
    assert!(found.flips.values().all(|(flips, made)| flips == made && *made > 0));
    assert_eq!(found.counts[&Kind::Step].differ, 0);

    let found = again(&run, usize::MAX, 0, Other { weights: true, ..Other::default() });
    let count = found.counts[&Kind::Step];
    assert_eq!((count.agree, count.differ), (0, count.all));
    assert_eq!(found.counts[&Kind::Measurement].differ, 0);

    let found = again(&run, usize::MAX, 0, Other { unplugged: true, ..Other::default() });
    let count = found.counts[&Kind::Build];
    assert_eq!((count.agree, count.differ, count.failed), (0, 0, count.all));
}

#[test]
fn a_step_whose_state_was_dropped_is_no_agreement() {
    // Every step but the first of each policy begins with a checkpoint; one loses its optimizer.
    let dropped = |records: &[Recorded]| {
        let saved = records.iter().find_map(|r| match &r.event {
            Event::CheckpointSaved { policy, .. } => Some(*policy),
            _ => None,
        });
        let files = vec!["optimizer.safetensors".to_owned()];
        vec![Event::CheckpointDropped { policy: saved.unwrap(), files }]
    };
    // The drop comes after the steps, so the log names the blob until then; what is gone is gone.
    let run = run(&dropped);
    let lost = run.world.events().iter().find_map(|event| match event {
        Event::CheckpointSaved { policy, files } => Some((*policy, files.clone())),
        _ => None,
    });
    let (policy, files) = lost.unwrap();
    let optimizer = files.iter().find(|(name, _)| name == "optimizer.safetensors").unwrap().1;
    run.world.blobs.remove(optimizer);
    let found = again(&run, usize::MAX, 0, Other::default());
    let count = found.counts[&Kind::Step];
    let users = number(
        &run,
        |event| matches!(event, Event::StepTaken { before, update: Some(_), .. } if *before == policy),
    );
    assert_eq!((count.not_redoable, count.differ), (users, 0));
    assert_eq!(count.agree, count.all - users);
    assert!(users > 0, "the checkpoint is used by no step, so this shows nothing");
    let why = found.redone.iter().find_map(|one| match &one.outcome {
        Outcome::NotRedoable(why) => Some(why.clone()),
        _ => None,
    });
    assert!(why.unwrap().contains("optimizer.safetensors"));
}
