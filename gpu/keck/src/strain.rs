//! Workers that linger on the device. A kernel that never ends takes half of a device from the
//! others, and its end stops them all for seconds: what they do meanwhile says little about them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::judge::lock;

/// The longest that is waited for a device without lingerers.
const SETTLES: Duration = Duration::from_secs(20);
const LOOKS: Duration = Duration::from_millis(5);
/// Of more than so many at once none gets its part.
const CROWD: usize = 3;

/// Who lingers now, by number in the order in which they began to.
#[derive(Debug, Default)]
pub(crate) struct Strain(Mutex<Lingering>);

#[derive(Debug, Default)]
struct Lingering {
    now: BTreeSet<u64>,
    ever: u64,
    /// Those among them that are killed and not gone yet, and all that were killed.
    ending: BTreeSet<u64>,
    killed: u64,
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
    calm: bool,
    killed: u64,
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
        Moment { calm: lingering.ending.is_empty(), killed: lingering.killed }
    }

    /// Whether the end of one that hung stopped the others at `since` or later, or many linger. One that
    /// hangs itself has not been killed yet when it asks. That a few linger behind it is no excuse:
    /// its time ran while it was first, and is long enough for a part of a device.
    pub fn by_others(&self, since: Moment) -> bool {
        let lingering = lock(&self.0);
        !since.calm || lingering.killed > since.killed || lingering.now.len() > CROWD
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

    /// It is killed. Until it is dropped, with all that it held, its end may stop the others.
    pub fn is_killed(&self) {
        let mut lingering = lock(&self.strain.0);
        lingering.ending.insert(self.number);
        lingering.killed += 1;
    }
}

impl Drop for Lingerer {
    fn drop(&mut self) {
        let mut lingering = lock(&self.strain.0);
        lingering.now.remove(&self.number);
        lingering.ending.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lingers_first_is_not_disturbed_and_who_sees_its_end_is() {
        let strain = Arc::new(Strain::default());
        let before = strain.moment();
        let own = strain.lingerer();
        let other = strain.lingerer();
        assert!(!strain.by_others(before) && own.is_first() && !other.is_first());
        own.is_killed();
        assert!(strain.by_others(before), "the other");
        let during = strain.moment();
        drop(own);
        assert!(strain.by_others(during), "its end takes time");
        assert!(other.is_first() && !strain.is_none());
        let after = strain.moment();
        drop(other);
        assert!(!strain.by_others(after) && strain.is_none());
        let _crowd: Vec<_> = (0..=CROWD).map(|_| strain.lingerer()).collect();
        assert!(strain.by_others(after));
    }
}
