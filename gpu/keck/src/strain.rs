//! Workers that linger on the device. A kernel that never ends takes half of a device from the
//! others, and its end stops them all for seconds: what they do meanwhile says little about them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::judge::lock;

/// The longest that is waited for a device without lingerers.
const SETTLES: Duration = Duration::from_secs(20);
const LOOKS: Duration = Duration::from_millis(5);

/// Who lingers now, by number in the order in which they began to.
#[derive(Debug, Default)]
pub(crate) struct Strain(Mutex<Lingering>);

#[derive(Debug, Default)]
struct Lingering {
    now: BTreeSet<u64>,
    ever: u64,
}

/// One that lingers, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lingerer {
    number: u64,
    strain: Arc<Strain>,
}

/// A moment, to be compared with a later one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    none: bool,
    ever: u64,
}

impl Strain {
    pub fn lingerer(self: &Arc<Self>) -> Lingerer {
        let mut lingering = lock(&self.0);
        lingering.ever += 1;
        let number = lingering.ever;
        lingering.now.insert(number);
        Lingerer { number, strain: Arc::clone(self) }
    }

    pub fn moment(&self) -> Moment {
        let lingering = lock(&self.0);
        Moment { none: lingering.now.is_empty(), ever: lingering.ever }
    }

    /// Whether others than one that lingers itself did so at `since` or later.
    pub fn by_others(&self, since: Moment) -> bool {
        !since.none || self.moment().ever > since.ever + 1
    }

    pub fn is_none(&self) -> bool {
        lock(&self.0).now.is_empty()
    }

    /// Waits until nobody lingers.
    pub fn settle(&self) {
        let start = Instant::now();
        while !self.is_none() && start.elapsed() < SETTLES {
            std::thread::sleep(LOOKS);
        }
    }
}

impl Lingerer {
    /// Whether it has lingered longest. The others may only be held up by it.
    pub fn is_first(&self) -> bool {
        lock(&self.strain.0).now.first() == Some(&self.number)
    }
}

impl Drop for Lingerer {
    fn drop(&mut self) {
        lock(&self.strain.0).now.remove(&self.number);
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
        assert!(!strain.by_others(before) && !strain.is_none() && own.is_first());
        let other = strain.lingerer();
        assert!(strain.by_others(before) && !other.is_first());
        drop(own);
        assert!(strain.by_others(before), "it was there");
        assert!(other.is_first());
        drop(other);
        assert!(strain.is_none());
        let after = strain.moment();
        let _own = strain.lingerer();
        assert!(!strain.by_others(after));
    }
}
