//! How many may do something at once, and workers that wait for their next use.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::judge::lock;
use crate::session::Session;

/// A number of places.
#[derive(Debug)]
pub(crate) struct Places {
    free: Mutex<usize>,
    freed: Condvar,
}

/// One that is taken; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place<'a>(&'a Places);

impl Places {
    pub fn new(count: usize) -> Self {
        Self { free: Mutex::new(count), freed: Condvar::new() }
    }

    /// Waits for a free one.
    pub fn take(&self) -> Place<'_> {
        let mut free = lock(&self.free);
        while *free == 0 {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *lock(&self.0.free) += 1;
        self.0.freed.notify_one();
    }
}

/// Workers with their reference loaded, by what was loaded. The one that has waited longest goes
/// when there are too many.
#[derive(Debug)]
pub(crate) struct Parked {
    most: usize,
    waiting: Mutex<VecDeque<(blake3::Hash, Session)>>,
}

impl Parked {
    pub fn new(most: usize) -> Self {
        Self { most, waiting: Mutex::new(VecDeque::new()) }
    }

    pub fn put(&self, key: blake3::Hash, session: Session) {
        let mut waiting = lock(&self.waiting);
        waiting.push_back((key, session));
        let gone = if waiting.len() > self.most { waiting.pop_front() } else { None };
        // Its end is waited for without the lock.
        drop(waiting);
        drop(gone);
    }

    /// Ends them all, for the memory that they hold.
    pub fn clear(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.into_iter().for_each(|(_, session)| session.end());
    }

    pub fn take(&self, key: &blake3::Hash) -> Option<Session> {
        let mut waiting = lock(&self.waiting);
        let place = waiting.iter().position(|(parked, _)| parked == key)?;
        waiting.remove(place).map(|(_, session)| session)
    }
}
