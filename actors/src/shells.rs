//! What each actor does when it wakes.

use std::sync::Arc;

use events::event::{Actor, Event};
use events::ids::{BlobId, PolicyVersion, Role, Seq, StepRef, seed_at};
use events::state::{Position, RunState};

use crate::bus::{Bus, Error};
use crate::desk::Desk;
use crate::ports::{Adapter, Engine, Judge, Weights, WorldFailed};

mod judging;
mod run_control;
mod sampler;
mod trainer;
mod writing;

pub use run_control::{Start, start};
pub use trainer::job as train_job;

/// Why a piece of work was not done.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The bus cannot go on.
    #[error(transparent)]
    Bus(#[from] Error),
    /// The world failed; it is recorded and tried again.
    #[error(transparent)]
    World(#[from] WorldFailed),
    /// A setting changed or the run was paused meanwhile: what was done is thrown away.
    #[error("a setting changed or the run was paused meanwhile")]
    Stale,
}

impl From<events::log::LogError> for Failed {
    fn from(error: events::log::LogError) -> Self {
        Failed::Bus(Error::Log(error))
    }
}

/// An actor without its mailbox. Tests drive it directly.
pub trait Shell: Send {
    /// Who it is.
    fn actor(&self) -> Actor;

    /// Does one piece of the work there is; `false` if there is none.
    fn work(&mut self, desk: &Desk<'_>) -> Result<bool, Failed>;
}

/// All shells.
pub struct Shells {
    /// In the order in which a single-threaded driver asks them.
    pub shells: Vec<Box<dyn Shell>>,
    /// Version of the static rules that they decide by.
    purity_policy: u32,
}

/// How much is done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Samples that the engine is asked for at a time; each is appended when it is finished.
    pub samples: usize,
    /// Judge jobs at the same time.
    pub judges: usize,
}

impl Shells {
    /// The seven actors and run control.
    pub fn new(engine: Box<dyn Engine>, judge: Arc<dyn Judge>, limits: Limits) -> Self {
        let engine = Arc::new(std::sync::Mutex::new(engine));
        let purity_policy = judge.purity_policy();
        let shells: Vec<Box<dyn Shell>> = vec![
            Box::new(run_control::RunControl),
            Box::new(sampler::Sampler::default()),
            Box::new(writing::Writer::new(Role::Proposer, engine.clone(), limits)),
            Box::new(judging::Validator::new(judge.clone(), limits)),
            Box::new(writing::Writer::new(Role::Coder, engine.clone(), limits)),
            Box::new(judging::CompileWorker::new(judge.clone(), limits)),
            Box::new(judging::GpuExecutor::new(judge, limits)),
            Box::new(trainer::Trainer::new(engine)),
        ];
        Self { shells, purity_policy }
    }

    /// Records by which static rules the run goes on, if its log does not say so. Before any of them
    /// works.
    pub fn begin(&self, bus: &Bus) -> Result<(), Error> {
        let version = self.purity_policy;
        let (known, last) = bus.ask(|state| {
            let known = matches!(state.position, Position::Empty | Position::Finished)
                || state.purity_policy == Some(version);
            (known, state.last)
        })?;
        if known {
            return Ok(());
        }
        let event = Event::PurityPolicyUsed { version };
        bus.append(Actor::RunControl, vec![(Some(last), event)]).map(drop)
    }
}

/// What one turn of a shell came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing to do.
    Idle,
    /// Something was appended.
    Worked,
    /// The world failed for the given time in a row; try again later.
    Failed(u32),
    /// The world failed too often; the run is paused.
    Paused,
}

/// Lets `shell` do one piece of work, and records a failure of the world.
pub fn turn(shell: &mut dyn Shell, bus: &Bus) -> Result<Turn, Error> {
    if bus.stopping() {
        return Ok(Turn::Idle);
    }
    let failure = match shell.work(&Desk::new(bus)?) {
        // What is stale is asked for again.
        Ok(true) | Err(Failed::Stale) => return Ok(Turn::Worked),
        Ok(false) => return Ok(Turn::Idle),
        Err(Failed::Bus(error)) => return Err(error),
        // A child killed because we are stopping is no failure.
        Err(Failed::World(_)) if bus.stopping() => return Ok(Turn::Idle),
        Err(Failed::World(failure)) => failure,
    };
    let work = format!("{:?}", shell.actor());
    tracing::warn!(%work, %failure, "the world failed");
    let error = failure.0;
    let mut turn = Turn::Paused;
    bus.decide(shell.actor(), |state| {
        let attempt = state.failures.get(&work).copied().unwrap_or(0) + 1;
        let retries = state.config.as_ref().map_or(0, |c| c.trainer.retries.get());
        let since = state.open_step().map(|(_, since)| since);
        let failed = Event::WorkFailed { work: work.clone(), attempt, error: error.clone() };
        let mut events = vec![(since, failed)];
        if attempt <= retries {
            turn = Turn::Failed(attempt);
        } else if state.paused.is_none() {
            let reason = format!("{work} failed {attempt} times: {error}");
            events.push((since, Event::RunPaused { reason }));
        }
        events
    })?;
    Ok(turn)
}

/// Drives all shells on this thread until none has work. Always the first that has any goes first,
/// so what is appended next is a function of the log alone.
pub fn drive(shells: &mut Shells, bus: &Bus) -> Result<Turn, Error> {
    shells.begin(bus)?;
    'again: loop {
        for shell in &mut shells.shells {
            match turn(shell.as_mut(), bus)? {
                Turn::Idle => {}
                Turn::Worked | Turn::Failed(_) => continue 'again,
                Turn::Paused => return Ok(Turn::Paused),
            }
        }
        return Ok(Turn::Idle);
    }
}

/// The weights of `role` that are in use.
fn weights_in_use(state: &RunState, role: Role) -> Result<Weights, WorldFailed> {
    let policy = state.version(role);
    let first = initial_weights(state, role)?;
    let files = match state.checkpoints.get(&policy) {
        Some(checkpoint) => checkpoint.files.clone(),
        None if policy.steps == 0 => Vec::new(),
        None => return Err(WorldFailed(format!("no checkpoint of {policy} in the log"))),
    };
    if let Some(lora) = state.config.as_ref().and_then(|config| config.trainer.lora.clone()) {
        let begin = StepRef { round: 0, role, step: 0 };
        let seed = seed_at(state.seed(), "adapter", begin, 0);
        return Ok(Weights { policy, adapter: Some(Adapter { lora, seed, files }), ..first });
    }
    if policy.steps == 0 {
        return Ok(first);
    }
    Ok(Weights { policy, files: with_tokenizer(state, role, files), adapter: None })
}

/// The weights that `role` started from.
fn initial_weights(state: &RunState, role: Role) -> Result<Weights, WorldFailed> {
    let initial = state.initial.iter().find(|p| p.role == role);
    let files = initial.map(|p| p.files.clone());
    let files = files.ok_or_else(|| WorldFailed(format!("no initial weights of {role}")))?;
    Ok(Weights { policy: PolicyVersion { role, steps: 0 }, files, adapter: None })
}

/// A checkpoint's files, with those of the initial folder that it does not replace.
fn with_tokenizer(
    state: &RunState,
    role: Role,
    mut files: Vec<(String, BlobId)>,
) -> Vec<(String, BlobId)> {
    let initial = state.initial.iter().filter(|p| p.role == role).flat_map(|p| &p.files);
    for (name, blob) in initial {
        let weights = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
        if !weights && !files.iter().any(|(other, _)| other == name) {
            files.push((name.clone(), *blob));
        }
    }
    files.sort();
    files
}

/// A text blob.
fn text(desk: &Desk<'_>, id: BlobId) -> Result<String, Failed> {
    let bytes = desk.blobs().get(id)?;
    String::from_utf8(bytes).map_err(|e| Failed::World(WorldFailed(format!("blob {id}: {e}"))))
}

/// An event with what made it necessary.
fn caused(cause: Seq, event: Event) -> (Option<Seq>, Event) {
    (Some(cause), event)
}
