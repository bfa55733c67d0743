//! What the log adds up to: enough of the past to know what must follow, and sums of the rest.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::config::RunConfig;
use crate::event::{CompileOutcome, Event, InitialPolicy, Validity};
use crate::ids::{
    ApiSetId, BlobId, Digest, GroupId, KernelId, ModuleId, PolicyVersion, Role, RunId, Seq, StepRef,
};
use crate::outcome::Measurement;

mod apply;
mod stored;
mod totals;

pub use stored::FOLD;
pub use totals::{Tally, Totals};

/// Where the run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Position {
    /// Nothing was recorded yet.
    #[default]
    Empty,
    /// Between rounds, after `done` of them.
    Between {
        /// Rounds that are over.
        done: u32,
    },
    /// In a round, between its phases.
    InRound {
        /// From 1.
        round: u32,
        /// The phase that must start next; `None` when both are over.
        next: Option<Role>,
    },
    /// In a phase.
    InPhase {
        /// The step that is open; `step.step` counts those taken in the phase.
        step: StepRef,
        /// The event that opened it.
        since: Seq,
    },
    /// All is done.
    Finished,
}

/// An API set of the open step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetEntry {
    /// Its id.
    pub id: ApiSetId,
    /// Where it was recorded.
    pub seq: Seq,
    /// What the prompt asks for, in its order.
    pub apis: Vec<String>,
    /// Modules proposed so far, by index.
    pub modules: BTreeMap<u32, ModuleId>,
}

/// A module of the open step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModuleEntry {
    /// Index of its API set in the step.
    pub set: u32,
    /// Where it was recorded.
    pub seq: Seq,
    /// Its code.
    pub source: Option<BlobId>,
    /// The answer in full.
    pub sample: BlobId,
    /// Where its verdict was recorded, and what it is.
    pub validity: Option<(Seq, Validity)>,
}

/// A kernel of the open step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelEntry {
    /// What it translates.
    pub module: ModuleId,
    /// Where it was recorded.
    pub seq: Seq,
    /// Its code.
    pub source: Option<BlobId>,
    /// The answer in full.
    pub sample: BlobId,
    /// Where its build was recorded, and what came out.
    pub compiled: Option<(Seq, CompileOutcome)>,
    /// Where its measurement was recorded, and what was observed.
    pub measured: Option<(Seq, Measurement)>,
}

/// A group of the open step that has its scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoredGroup {
    /// Where it was recorded.
    pub seq: Seq,
    /// Advantage and answer of each member, in order of index.
    pub members: Vec<(f64, BlobId)>,
}

impl ScoredGroup {
    /// Whether some member carries a gradient.
    pub fn has_signal(&self) -> bool {
        self.members.iter().any(|(advantage, _)| *advantage != 0.0)
    }
}

/// Everything that the open step has so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenStep {
    /// API sets by index; empty in Coder phases.
    pub sets: BTreeMap<u32, SetEntry>,
    /// Modules proposed in this step.
    pub modules: BTreeMap<ModuleId, ModuleEntry>,
    /// Kernels by module and index.
    pub kernels: BTreeMap<(ModuleId, u32), KernelId>,
    /// Kernels.
    pub kernel: BTreeMap<KernelId, KernelEntry>,
    /// Groups that have their scores.
    pub scored: BTreeMap<GroupId, ScoredGroup>,
    /// Where the step was started, and its groups.
    pub started: Option<(Seq, Vec<GroupId>)>,
}

/// A valid module that the Coder may train on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolEntry {
    /// Its id.
    pub module: ModuleId,
    /// The id that it would have in a run without branches, by [`crate::config::Ties`] with the run's name
    /// in it or none: who is equal otherwise is chosen by it, so that a branch chooses as its parent would.
    pub rank: ModuleId,
    /// Its code.
    pub source: BlobId,
    /// Where its verdict was recorded.
    pub validated: Seq,
    /// The APIs that were asked for.
    pub apis: Vec<String>,
    /// The round it was proposed in.
    pub round: u32,
    /// Kernels that were right when it was proposed.
    pub correct: u32,
    /// Kernels that were judged when it was proposed.
    pub of: u32,
}

/// A resume point of one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Which weights.
    pub policy: PolicyVersion,
    /// File name and blob; sorted by name.
    pub files: Vec<(String, BlobId)>,
}

/// A setting that will have another value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// It acts when the first step at or after this one opens.
    pub from: StepRef,
    /// Its dotted name in the config.
    pub key: String,
    /// As TOML writes it.
    pub value: Option<String>,
}

/// What was taken out of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Excluded {
    /// Modules.
    pub modules: BTreeSet<ModuleId>,
    /// Kernels, those of excluded modules included.
    pub kernels: BTreeSet<KernelId>,
    /// Code of modules and kernels.
    pub sources: BTreeSet<Digest>,
}

/// What a run's events add up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Last applied position.
    pub last: Seq,
    /// The run and its branches, oldest first; the last one names new things.
    pub lineage: Vec<RunId>,
    /// The run's settings.
    #[serde(with = "stored")]
    pub config: Option<RunConfig>,
    /// The table that API sets are drawn from.
    pub api_table: Option<BlobId>,
    /// Version of the static rules in use, where it was recorded.
    pub purity_policy: Option<u32>,
    /// The weights it started from; the KL reference.
    pub initial: Vec<InitialPolicy>,
    /// Where it stands.
    pub position: Position,
    /// Why it does not go on, if it does not.
    pub paused: Option<String>,
    /// Optimizer steps taken, by policy.
    pub steps: BTreeMap<Role, u32>,
    /// Newest checkpoints, and older ones that still have files: by version.
    pub checkpoints: BTreeMap<PolicyVersion, Checkpoint>,
    /// What nobody is rewarded for.
    pub excluded: Excluded,
    /// Weights that phases ended with: they are kept.
    pub phase_ends: BTreeSet<PolicyVersion>,
    /// The open step.
    pub open: OpenStep,
    /// Modules for the Coder, oldest first.
    pub pool: Vec<PoolEntry>,
    /// Kernels judged in this round, by API.
    pub tallies: BTreeMap<String, Tally>,
    /// The same of the round before.
    pub tallies_before: BTreeMap<String, Tally>,
    /// How often the world failed at a piece of work since it last succeeded at anything.
    pub failures: BTreeMap<String, u32>,
    /// Sums over the whole run.
    pub totals: Totals,
    /// Weights of the newest update, by policy.
    pub weights: BTreeMap<Role, Digest>,
    /// Where a setting last got another value, other than when a policy is frozen: what was decided
    /// before with the old one does not hold any more.
    pub settings: Seq,
    /// Changes that wait for their step, in the order in which they will act.
    pub planned: Vec<Planned>,
    /// API sets that were asked for: by step, then by index.
    pub proposed: BTreeMap<StepRef, Vec<Vec<String>>>,
}

/// An event cannot follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seq} {event} cannot follow: {why}")]
pub struct Illegal {
    /// Where.
    pub seq: Seq,
    /// What.
    pub event: &'static str,
    /// Why not.
    pub why: String,
}

impl RunState {
    /// The branch that new ids are made in.
    pub fn branch(&self) -> Option<RunId> {
        self.lineage.last().copied()
    }

    /// Root of every random stream.
    pub fn seed(&self) -> u64 {
        self.config.as_ref().map_or(0, |config| config.seed.get())
    }

    /// The weights in use.
    pub fn version(&self, role: Role) -> PolicyVersion {
        PolicyVersion { role, steps: self.steps.get(&role).copied().unwrap_or(0) }
    }

    /// Whether `role` takes no more gradient steps. It counts its own steps, and still samples.
    pub fn is_frozen(&self, role: Role) -> bool {
        let at = self.config.as_ref().and_then(|config| config.policy(role).freeze_at_step);
        at.is_some_and(|at| self.version(role).steps >= at)
    }

    /// The first step that has not opened: the one after the open step, also where the phase will be
    /// over by then. `None` before the run starts and after its end.
    pub fn next_step(&self) -> Option<StepRef> {
        let first = |round, role| Some(StepRef { round, role, step: 0 });
        match self.position {
            Position::InPhase { step, .. } => Some(StepRef { step: step.step + 1, ..step }),
            Position::InRound { round, next: Some(role) } => first(round, role),
            Position::InRound { round: done, next: None } | Position::Between { done } => {
                first(done + 1, Role::Proposer)
            }
            Position::Empty | Position::Finished => None,
        }
    }

    /// The open step, while there is one and the run is not paused.
    pub fn open_step(&self) -> Option<(StepRef, Seq)> {
        match self.position {
            Position::InPhase { step, since } if self.paused.is_none() => Some((step, since)),
            Position::InPhase { .. }
            | Position::Empty
            | Position::Between { .. }
            | Position::InRound { .. }
            | Position::Finished => None,
        }
    }

    /// Remembers what happened. An event that cannot follow is an error and changes nothing
    /// that a caller may go on with: the state is to be thrown away.
    pub fn apply(&mut self, seq: Seq, event: &Event) -> Result<(), Illegal> {
        self.apply_owned(seq, event.clone())
    }

    /// [`RunState::apply`] for who does not need the event any more.
    pub fn apply_owned(&mut self, seq: Seq, event: Event) -> Result<(), Illegal> {
        let name = event.name();
        apply::apply(self, seq, event).map_err(|why| Illegal { seq, event: name, why: why.into() })
    }
}
