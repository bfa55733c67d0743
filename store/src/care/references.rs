//! Which blobs are needed, and by how many runs.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use events::ids::{BlobId, Seq};
use events::log::LogError;
use events::needed::Needed;

use crate::file_log::{FileLog, OpenMode};
use crate::home::Home;

/// Blobs that events name, each with the number of runs whose own records name it. Records that a
/// branch shares with its parent are the parent's: the parent is there as long as the branch is. But
/// what the parent dropped of checkpoints after they parted, the branch still has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    runs: BTreeMap<BlobId, u32>,
}

impl References {
    /// Those of all runs of a home. Fails if a log cannot be read to its end: who does not know all
    /// references knows none.
    pub fn of_home(home: &Home) -> Result<Self, LogError> {
        let mut all = Self::default();
        for run in home.runs()? {
            all.add(&home.open_run(run, OpenMode::ReadOnly)?)?;
        }
        Ok(all)
    }

    /// Adds those of one run's own records.
    pub fn add(&mut self, log: &FileLog) -> Result<(), LogError> {
        let own = log.base().map_or(1, |base| base.at.0 + 1);
        let last = log.own_view()?.last;
        self.add_up_to(log, own, last)
    }

    /// Adds those of the records from `from` to `last`.
    pub(crate) fn add_up_to(
        &mut self,
        log: &FileLog,
        from: u64,
        last: u64,
    ) -> Result<(), LogError> {
        let mut needed = Needed::default();
        log.scan(Seq(1), |record, _| {
            if record.seq.0 > last {
                return ControlFlow::Break(());
            }
            if record.seq.0 < from {
                needed.see_checkpoint(&record.event);
            } else {
                needed.see(&record.event);
            }
            ControlFlow::Continue(())
        })?;
        for blob in needed.blobs() {
            *self.runs.entry(blob).or_default() += 1;
        }
        Ok(())
    }

    /// In how many runs a blob is named.
    pub fn count(&self, blob: BlobId) -> u32 {
        self.runs.get(&blob).copied().unwrap_or(0)
    }

    /// All blobs that are named, sorted.
    pub fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        self.runs.keys().copied()
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}
