//! Events for one reader, from the log and at the reader's pace.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use events::event::Recorded;
use events::ids::Seq;
use events::log::{Log, LogError};

use super::Filter;
use crate::bus::Bus;

/// Records looked at in one go.
const LOT: usize = 256;

/// A reader's place in the log. Nothing is kept for it in memory: what it has not taken is in the files.
pub struct Feed {
    /// Everything up to here was looked at.
    after: Seq,
    filter: Filter,
}

impl Feed {
    /// Events after `after` that `filter` lets through.
    pub fn new(after: Seq, filter: Filter) -> Self {
        Self { after, filter }
    }

    /// Everything up to here was looked at.
    pub fn after(&self) -> Seq {
        self.after
    }

    /// The next events, possibly none of them wanted; `None` if the log has no more.
    pub fn next(&mut self, log: &dyn Log) -> Result<Option<Vec<Recorded>>, LogError> {
        let mut read = log.read_after(self.after, LOT)?;
        let Some(last) = read.last() else { return Ok(None) };
        self.after = last.seq;
        read.retain(|recorded| self.filter.fits(recorded));
        Ok(Some(read))
    }
}

/// Rings at each append. Waiting for it misses nothing that came since the last wait.
#[derive(Default)]
pub struct Bell {
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Bell {
    /// A bell that rings at each append to `bus`.
    pub fn of(bus: &Bus) -> Arc<Self> {
        let bell = Arc::new(Self::default());
        let rings = bell.clone();
        bus.listen(move || rings.ring());
        bell
    }

    /// Wakes everyone who waits.
    pub fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// How often it has rung.
    pub fn count(&self) -> u64 {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has rung more often than `seen`, at most a second.
    pub fn wait(&self, seen: u64) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let second = Duration::from_secs(1);
        drop(self.changed.wait_timeout_while(rung, second, |rung| *rung == seen));
    }
}
