//! Who uses the device: many at once to be checked, one alone to be timed.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

thread_local! {
    /// Whether this thread has the device alone for all that it does.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// The lease of one device.
#[derive(Debug, Default)]
pub(crate) struct Lease(RwLock<()>);

/// Held until dropped.
#[derive(Debug)]
pub(crate) enum Held<'a> {
    /// With others.
    Shared { _guard: RwLockReadGuard<'a, ()>, _since: Since },
    /// Alone.
    Alone { _guard: RwLockWriteGuard<'a, ()>, _since: Since },
    /// This thread has it alone already.
    Already,
}

/// For people who ask who keeps the device from whom.
#[derive(Debug)]
pub(crate) struct Since {
    start: Instant,
    alone: bool,
}

impl Since {
    fn now(alone: bool) -> Self {
        Self { start: Instant::now(), alone }
    }
}

impl Drop for Since {
    fn drop(&mut self) {
        let us = self.start.elapsed().as_micros() as u64;
        tracing::trace!(alone = self.alone, us, "had the device");
    }
}

/// The device for one thread alone, whatever it asks for meanwhile.
#[derive(Debug)]
pub(crate) struct Whole<'a> {
    _held: Held<'a>,
    // It speaks of the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl Lease {
    /// Together with others. Never asked for twice by one thread.
    pub fn shared(&self) -> Held<'_> {
        if ALONE.get() {
            return Held::Already;
        }
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Held::Shared { _guard: guard, _since: Since::now(false) }
    }

    /// Alone: waits until the others have ended what they do, and holds new ones back.
    pub fn alone(&self) -> Held<'_> {
        if ALONE.get() {
            return Held::Already;
        }
        let start = Instant::now();
        let guard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        tracing::trace!(us = start.elapsed().as_micros() as u64, "waited for the device");
        Held::Alone { _guard: guard, _since: Since::now(true) }
    }

    /// Alone for all that this thread does until the result is dropped.
    pub fn whole(&self) -> Whole<'_> {
        let held = self.alone();
        ALONE.set(true);
        Whole { _held: held, _thread: PhantomData }
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        if !matches!(self._held, Held::Already) {
            ALONE.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn whoever_has_the_whole_device_may_ask_again() {
        let lease = Lease::default();
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            let whole = lease.whole();
            let (_shared, _alone) = (lease.shared(), lease.alone());
            scope.spawn(|| {
                let _shared = lease.shared();
                sender.send(()).unwrap();
            });
            assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
            drop(whole);
            receiver.recv_timeout(Duration::from_secs(5)).unwrap();
        });
        // And then it asks like everyone else.
        assert!(matches!(lease.shared(), Held::Shared { .. }));
    }
}
