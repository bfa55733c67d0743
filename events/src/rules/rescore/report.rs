//! What changes, step by step.

use serde::Serialize;

use super::lines::{Line, Reward};
use crate::event::Verdict;
use crate::ids::{GroupId, StepRef};

/// How verdicts of modules or kernels differ. `before` and `after` count valid or right ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Flips {
    /// All of the step.
    pub all: u64,
    /// Right by the rules of the run.
    pub before: u64,
    /// Right by the other rules.
    pub after: u64,
    /// Wrong before, right now.
    pub gained: u64,
    /// Right before, wrong now.
    pub lost: u64,
    /// Neither, but with another reason, place or speed-up.
    pub otherwise: u64,
    /// Nothing was measured that would tell.
    pub unknown: u64,
}

impl Flips {
    /// Counts one; `after` is `None` if it is unknown.
    pub(super) fn count(&mut self, before: bool, after: Option<bool>, same: bool) {
        self.all += 1;
        self.before += u64::from(before);
        self.after += u64::from(after == Some(true));
        match (before, after) {
            (_, None) => self.unknown += 1,
            (false, Some(true)) => self.gained += 1,
            (true, Some(false)) => self.lost += 1,
            (true, Some(true)) | (false, Some(false)) => self.otherwise += u64::from(!same),
        }
    }

    pub(super) fn verdict(&mut self, before: &Verdict, after: Option<&Verdict>) {
        let right = after.map(Verdict::is_correct);
        self.count(before.is_correct(), right, after == Some(before));
    }

    fn changes(&self) -> u64 {
        self.gained + self.lost + self.otherwise + self.unknown
    }

    fn add(&mut self, other: &Self) {
        self.all += other.all;
        self.before += other.before;
        self.after += other.after;
        self.gained += other.gained;
        self.lost += other.lost;
        self.otherwise += other.otherwise;
        self.unknown += other.unknown;
    }
}

/// Rewards of the samples that were scored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Rewards {
    /// Samples scored before, and their sum.
    pub before: (u64, f64),
    /// Samples whose reward is known now, and their sum.
    pub after: (u64, f64),
    /// Rewards that differ.
    pub changed: u64,
    /// Rewards that are not known.
    pub unknown: u64,
    /// Advantages that differ.
    pub advantages_changed: u64,
    /// Advantages that are not known.
    pub advantages_unknown: u64,
}

impl Rewards {
    pub(super) fn line(&mut self, before: &Line, after: &Line) {
        if let Reward::Is(reward) = before.reward {
            self.before = (self.before.0 + 1, self.before.1 + reward);
        }
        match after.reward {
            Reward::Is(reward) => self.after = (self.after.0 + 1, self.after.1 + reward),
            Reward::Unscored => {}
            Reward::Unknown => self.unknown += 1,
        }
        let known = after.reward != Reward::Unknown;
        self.changed += u64::from(known && after.reward != before.reward);
        match after.advantage {
            None => self.advantages_unknown += 1,
            advantage => self.advantages_changed += u64::from(advantage != before.advantage),
        }
    }

    /// Mean reward before and after; `None` where no sample has one, and where some are unknown: those
    /// are not like the others, so the mean of the rest would mislead.
    pub fn means(&self) -> (Option<f64>, Option<f64>) {
        let mean = |(count, sum): (u64, f64)| (count > 0).then(|| sum / count as f64);
        (mean(self.before), mean(self.after).filter(|_| self.unknown == 0))
    }

    fn add(&mut self, other: &Self) {
        let sum = |a: (u64, f64), b: (u64, f64)| (a.0 + b.0, a.1 + b.1);
        self.before = sum(self.before, other.before);
        self.after = sum(self.after, other.after);
        self.changed += other.changed;
        self.unknown += other.unknown;
        self.advantages_changed += other.advantages_changed;
        self.advantages_unknown += other.advantages_unknown;
    }
}

/// Groups of a step, and those with a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Signal {
    /// Groups that were scored.
    pub all: u64,
    /// With a signal before.
    pub before: u64,
    /// With a signal now.
    pub after: u64,
    /// Not known.
    pub unknown: u64,
    /// Of a module that is not valid now, so there would be no group.
    pub dropped: u64,
}

/// What the gradient step is taken on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Batch {
    /// Groups in the batch before.
    pub before: u64,
    /// Groups that are in it now and were not.
    pub entered: Vec<GroupId>,
    /// Groups that were in it and are not.
    pub left: Vec<GroupId>,
    /// Groups of which it is not known.
    pub unknown: u64,
    /// Modules that the Coder's batch would have and for which no kernels were drawn in this step.
    pub not_drawn: u64,
    /// Which modules the Coder's batch would have is not known.
    pub selection_unknown: bool,
}

/// What changes in one step. Samples stay as they were drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Row {
    /// Which.
    pub step: StepRef,
    /// Verdicts of its modules.
    pub modules: Flips,
    /// Verdicts of its kernels.
    pub kernels: Flips,
    /// Rewards and advantages.
    pub rewards: Rewards,
    /// Groups with a signal.
    pub signal: Signal,
    /// The batch.
    pub batch: Batch,
}

impl Row {
    pub(super) fn new(step: StepRef) -> Self {
        Self {
            step,
            modules: Flips::default(),
            kernels: Flips::default(),
            rewards: Rewards::default(),
            signal: Signal::default(),
            batch: Batch::default(),
        }
    }

    /// Whether anything is other than recorded, or unknown.
    pub fn changes(&self) -> bool {
        let rewards = &self.rewards;
        let batch = &self.batch;
        let counts = [
            self.modules.changes(),
            self.kernels.changes(),
            rewards.changed + rewards.unknown,
            rewards.advantages_changed + rewards.advantages_unknown,
            self.signal.unknown + self.signal.dropped,
            (batch.entered.len() + batch.left.len()) as u64 + batch.unknown + batch.not_drawn,
        ];
        batch.selection_unknown || counts.iter().any(|count| *count > 0)
    }

    /// Adds the counts of another step. The groups of batches are left out: they belong to a step.
    pub fn add(&mut self, other: &Self) {
        self.modules.add(&other.modules);
        self.kernels.add(&other.kernels);
        self.rewards.add(&other.rewards);
        self.signal.all += other.signal.all;
        self.signal.before += other.signal.before;
        self.signal.after += other.signal.after;
        self.signal.unknown += other.signal.unknown;
        self.signal.dropped += other.signal.dropped;
    }
}
