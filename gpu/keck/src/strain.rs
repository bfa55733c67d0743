//! Workers that linger on the device. A kernel that never ends takes half of a device from the
//! others, and its end stops them all for seconds: what they do meanwhile says little about them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The longest that is waited for a device without lingerers.
const SETTLES: Duration = Duration::from_secs(60);
const LOOKS: Duration = Duration::from_millis(5);

/// How many linger now, and how many ever did.
#[derive(Debug, Default)]
pub(crate) struct Strain {
    now: AtomicUsize,
    ever: AtomicU64,
}

/// One that lingers, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lingerer(Arc<Strain>);

/// A moment, to be compared with a later one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    now: usize,
    ever: u64,
}

impl Strain {
    pub fn lingerer(self: &Arc<Self>) -> Lingerer {
        self.now.fetch_add(1, Ordering::SeqCst);
        self.ever.fetch_add(1, Ordering::SeqCst);
        Lingerer(Arc::clone(self))
    }

    pub fn moment(&self) -> Moment {
        Moment { now: self.now.load(Ordering::SeqCst), ever: self.ever.load(Ordering::SeqCst) }
    }

    /// Whether others than one that lingers itself did so at `since` or later.
    pub fn by_others(&self, since: Moment) -> bool {
        since.now > 0 || self.moment().ever > since.ever + 1
    }

    pub fn is_none(&self) -> bool {
        self.now.load(Ordering::SeqCst) == 0
    }

    /// Waits until nobody lingers.
    pub fn settle(&self) {
        let start = Instant::now();
        while !self.is_none() && start.elapsed() < SETTLES {
            std::thread::sleep(LOOKS);
        }
    }
}

impl Drop for Lingerer {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_is_not_disturbed() {
        let strain = Arc::new(Strain::default());
        let before = strain.moment();
        let own = strain.lingerer();
        assert!(!strain.by_others(before) && !strain.is_none());
        let other = strain.lingerer();
        assert!(strain.by_others(before));
        drop(other);
        assert!(strain.by_others(before), "it was there");
        drop(own);
        assert!(strain.is_none());
        let after = strain.moment();
        let _own = strain.lingerer();
        assert!(!strain.by_others(after));
    }
}
