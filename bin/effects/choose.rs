//! Which effects are done again, and what each needs. Two passes over the log: the first draws, the
//! second folds up to each that was drawn, since what it needs is in the state before it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use actors::ports::{TrainJob, WorldFailed};
use actors::shells::train_job;
use anyhow::Result;
use events::config::Rules;
use events::event::{CompileOutcome, Event, Recorded, Update};
use events::ids::{BlobId, Digest, KernelId, ModuleId, PolicyVersion, Role, Seq};
use events::outcome::{FailureKind, Measurement};
use events::rules::score::step_to_take;
use events::rules::work::{MeasureOrder, kernels_to_measure};
use events::state::RunState;
use store::FileLog;

use super::{Kind, Sampling};

/// One effect with everything that it needs.
pub struct Job {
    pub seq: Seq,
    pub task: Option<ModuleId>,
    pub what: What,
}

pub enum What {
    Build { source: BlobId, recorded: CompileOutcome },
    Measure(Box<Measured>),
    Step(Box<Step>),
}

pub struct Measured {
    pub order: MeasureOrder,
    pub trials: u32,
    pub profile: Rules,
    pub recorded: Measurement,
}

pub struct Step {
    pub after: PolicyVersion,
    pub recorded: Update,
    /// The files of the checkpoint after it, as they were saved.
    pub saved: Vec<(String, BlobId)>,
    /// Advantage and answer of each sample.
    pub samples: Vec<(f64, BlobId)>,
    /// The job without its samples.
    pub job: Result<TrainJob, WorldFailed>,
}

fn kind(event: &Event) -> Option<Kind> {
    match event {
        Event::KernelCompiled { outcome, .. } => match outcome {
            CompileOutcome::Built { .. } => Some(Kind::Build),
            CompileOutcome::Rejected(failure) => {
                (failure.kind == FailureKind::CompileError).then_some(Kind::Build)
            }
        },
        Event::KernelMeasured { .. } => Some(Kind::Measurement),
        Event::StepTaken { update: Some(_), .. } => Some(Kind::Step),
        _ => None,
    }
}

/// The smallest so many by a hash of seed and position.
struct Drawn {
    sampling: Sampling,
    of: BTreeMap<Kind, BTreeSet<(Digest, Seq)>>,
    all: BTreeMap<Kind, u64>,
}

impl Drawn {
    fn see(&mut self, seq: Seq, kind: Kind) {
        *self.all.entry(kind).or_default() += 1;
        let place = [self.sampling.seed.to_le_bytes(), seq.0.to_le_bytes()].concat();
        let of = self.of.entry(kind).or_default();
        of.insert((Digest::of(&place), seq));
        if of.len() > self.sampling.count {
            of.pop_last();
        }
    }
}

pub fn choose(log: &FileLog, sampling: Sampling) -> Result<(Vec<Job>, BTreeMap<Kind, u64>)> {
    let mut drawn = Drawn { sampling, of: BTreeMap::new(), all: BTreeMap::new() };
    let mut begun = false;
    log.scan(Seq(1), |recorded, _| {
        begun |= sampling.since.begins_with(recorded);
        if let (true, Some(kind)) = (begun, kind(&recorded.event)) {
            drawn.see(recorded.seq, kind);
        }
        ControlFlow::Continue(())
    })?;
    let wanted: BTreeSet<Seq> = drawn.of.values().flatten().map(|(_, seq)| *seq).collect();
    let (mut state, mut jobs, mut broken) = (RunState::default(), Vec::new(), None);
    let last = wanted.last().copied().unwrap_or_default();
    log.scan_owned(Seq(1), |recorded, _| {
        if recorded.seq > last {
            return ControlFlow::Break(());
        }
        if wanted.contains(&recorded.seq) {
            jobs.extend(job(&state, &recorded));
        }
        broken = state.apply_owned(recorded.seq, recorded.event).err();
        if broken.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    match broken {
        Some(illegal) => Err(illegal.into()),
        None => Ok((jobs, drawn.all)),
    }
}

/// What the event needs to happen again; `state` is the fold of everything before it.
fn job(state: &RunState, recorded: &Recorded) -> Option<Job> {
    let seq = recorded.seq;
    match &recorded.event {
        Event::KernelCompiled { kernel, outcome } => {
            let entry = state.open.kernel.get(kernel)?;
            let what = What::Build { source: entry.source?, recorded: outcome.clone() };
            Some(Job { seq, task: Some(entry.module), what })
        }
        Event::KernelMeasured { kernel, measurement } => measured(state, seq, *kernel, measurement),
        Event::StepTaken { step, after, update: Some(update), .. } => {
            step_taken(state, seq, step.role, (*after, update))
        }
        _ => None,
    }
}

fn measured(
    state: &RunState,
    seq: Seq,
    kernel: KernelId,
    measurement: &Measurement,
) -> Option<Job> {
    let order = kernels_to_measure(state).into_iter().find(|order| order.kernel == kernel)?;
    let judge = &state.config.as_ref()?.judge;
    let measured = Measured {
        order,
        trials: judge.trials.get(),
        profile: judge.profile,
        recorded: measurement.clone(),
    };
    let task = state.open.kernel.get(&kernel).map(|entry| entry.module);
    Some(Job { seq, task, what: What::Measure(Box::new(measured)) })
}

fn step_taken(
    state: &RunState,
    seq: Seq,
    role: Role,
    (after, update): (PolicyVersion, &Update),
) -> Option<Job> {
    let step = Step {
        after,
        recorded: update.clone(),
        saved: state.checkpoints.get(&after).map(|c| c.files.clone()).unwrap_or_default(),
        samples: step_to_take(state)?.samples,
        job: train_job(state, role, Vec::new()),
    };
    Some(Job { seq, task: None, what: What::Step(Box::new(step)) })
}
