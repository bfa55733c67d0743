//! Does again a sample of what a run did to the world (builds, measurements, gradient steps) and
//! compares. What cannot be done again is counted as that, never as agreement.

mod choose;
mod redo;

use std::collections::BTreeMap;

use anyhow::Result;
use events::ids::{ModuleId, Seq};
use serde::Serialize;
use store::FileLog;

use crate::audit::Since;
pub use redo::World;

/// What is done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A build by the judge; sources that static rules refuse are not built.
    Build,
    /// A measurement of a built kernel.
    Measurement,
    /// A gradient step.
    Step,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Build, Kind::Measurement, Kind::Step];
}

/// What came of one.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The same as recorded: the build and its key, the verdict, all digests of the checkpoint.
    Agrees,
    /// Something else; the text says what.
    Differs(String),
    /// It cannot be done again here; the text says what is lacking.
    NotRedoable(String),
    /// The world failed at it.
    Failed(String),
}

/// New times over recorded ones, medians of a kernel and of its reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// The candidate's.
    pub candidate: f64,
    /// The reference's.
    pub reference: f64,
}

/// One effect that was done again, or not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Redone {
    /// The event that recorded it.
    pub seq: Seq,
    /// What it was.
    pub kind: Kind,
    /// The module that it was about; none for steps.
    pub task: Option<ModuleId>,
    /// What came of it.
    pub outcome: Outcome,
    /// Measurements: whether all that was observed of values is the same to the bit.
    pub same_values: bool,
    /// Measurements that were timed both times.
    pub ratios: Option<Ratios>,
    /// Steps: the digest of the weights, as it came out now.
    pub weights: Option<String>,
}

/// How many came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// In the part of the log that was looked at.
    pub all: u64,
    /// Of them in the sample.
    pub sampled: u64,
    /// The same as recorded.
    pub agree: u64,
    /// Something else.
    pub differ: u64,
    /// Cannot be done again.
    pub not_redoable: u64,
    /// The world failed.
    pub failed: u64,
}

/// Everything that was done again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effects {
    /// What the sample was drawn with.
    pub seed: u64,
    /// By kind.
    pub counts: BTreeMap<Kind, Count>,
    /// By task: verdicts that flipped, and measurements that were made again.
    pub flips: BTreeMap<ModuleId, (u64, u64)>,
    /// Each of the sample, in order of the log.
    pub redone: Vec<Redone>,
}

/// Which effects are done again.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// So many of each kind; all, if there are fewer.
    pub count: usize,
    /// Which ones: the same seed takes the same ones of the same log.
    pub seed: u64,
    /// From where on.
    pub since: Since,
}

/// Does a sample again. Nothing is written to the run or to its blobs.
pub fn effects(log: &FileLog, sampling: Sampling, world: &mut World<'_>) -> Result<Effects> {
    let (jobs, all) = choose::choose(log, sampling)?;
    let redone: Vec<Redone> = jobs.into_iter().map(|job| world.redo(job)).collect();
    let mut counts: BTreeMap<Kind, Count> = BTreeMap::new();
    let mut flips: BTreeMap<ModuleId, (u64, u64)> = BTreeMap::new();
    for kind in Kind::ALL {
        counts.entry(kind).or_default().all = all.get(&kind).copied().unwrap_or(0);
    }
    for one in &redone {
        let count = counts.entry(one.kind).or_default();
        count.sampled += 1;
        match &one.outcome {
            Outcome::Agrees => count.agree += 1,
            Outcome::Differs(_) => count.differ += 1,
            Outcome::NotRedoable(_) => count.not_redoable += 1,
            Outcome::Failed(_) => count.failed += 1,
        }
        let judged = matches!(one.outcome, Outcome::Agrees | Outcome::Differs(_));
        if let (Kind::Measurement, Some(task), true) = (one.kind, one.task, judged) {
            let (flipped, made) = flips.entry(task).or_default();
            *flipped += u64::from(one.outcome != Outcome::Agrees);
            *made += 1;
        }
    }
    Ok(Effects { seed: sampling.seed, counts, flips, redone })
}

impl Effects {
    /// The sum over all kinds.
    pub fn total(&self) -> Count {
        let add = |a: Count, b: &Count| Count {
            all: a.all + b.all,
            sampled: a.sampled + b.sampled,
            agree: a.agree + b.agree,
            differ: a.differ + b.differ,
            not_redoable: a.not_redoable + b.not_redoable,
            failed: a.failed + b.failed,
        };
        self.counts.values().fold(Count::default(), add)
    }
}
