//! Appends that wait for each other. While one is being made durable others arrive; whoever gets the
//! writer next writes all of them as one batch, with one sync. Each is still whole or not there at
//! all, since the batch is.

use std::io::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use events::event::{Draft, Recorded};
use events::log::LogError;

type Done = Result<Vec<Recorded>, LogError>;

/// One append in the queue.
#[derive(Debug, Default)]
pub(crate) struct Place {
    drafts: Mutex<Vec<Draft>>,
    done: Mutex<Option<Done>>,
}

impl Place {
    /// What came of it, once.
    pub fn done(&self) -> Option<Done> {
        lock(&self.done).take()
    }
}

/// Appends that nobody has written yet, in the order in which they will be.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Vec<Arc<Place>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// Adds an append of `drafts`.
    pub fn enter(&self, drafts: Vec<Draft>) -> Arc<Place> {
        let place = Arc::new(Place { drafts: Mutex::new(drafts), done: Mutex::new(None) });
        lock(&self.waiting).push(place.clone());
        place
    }

    /// Writes all that wait as one batch. Called by who has the writer; if it fails, it fails for all.
    pub fn write_all(&self, write: impl FnOnce(Vec<Draft>) -> Done) {
        let group = std::mem::take(&mut *lock(&self.waiting));
        let mut drafts = Vec::new();
        let mut sizes = Vec::with_capacity(group.len());
        for place in &group {
            let mut own = std::mem::take(&mut *lock(&place.drafts));
            sizes.push(own.len());
            if drafts.is_empty() {
                drafts = own;
            } else {
                drafts.append(&mut own);
            }
        }
        match write(drafts) {
            Ok(records) if group.len() == 1 => *lock(&group[0].done) = Some(Ok(records)),
            Ok(records) => {
                let mut records = records.into_iter();
                for (place, size) in group.iter().zip(sizes) {
                    *lock(&place.done) = Some(Ok(records.by_ref().take(size).collect()));
                }
            }
            Err(error) => {
                for place in group.iter().skip(1) {
                    *lock(&place.done) = Some(Err(again(&error)));
                }
                if let Some(first) = group.first() {
                    *lock(&first.done) = Some(Err(error));
                }
            }
        }
    }
}

/// The same error for the next one that it concerns.
fn again(error: &LogError) -> LogError {
    match error {
        LogError::DiskFull { path, last } => LogError::DiskFull { path: path.clone(), last: *last },
        LogError::Io { action, path, cause } => {
            let cause = match cause.raw_os_error() {
                Some(code) => Error::from_raw_os_error(code),
                None => Error::new(cause.kind(), cause.to_string()),
            };
            LogError::Io { action, path: path.clone(), cause }
        }
        other => LogError::Io {
            action: "cannot append",
            path: String::new(),
            cause: Error::other(other.to_string()),
        },
    }
}
