//! Appends that wait for each other. While one is being made durable others arrive; whoever is next
//! writes all of them as one batch, with one sync. Each is still whole or not there at all, since the
//! batch is.

use std::io::Error;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use events::event::{Draft, Recorded};
use events::log::LogError;

type Done = Result<Vec<Recorded>, LogError>;
/// What came of one append, once it is known.
type Place = Arc<Mutex<Option<Done>>>;

#[derive(Debug, Default)]
struct Line {
    /// Appends that nobody writes yet, in the order in which they will be.
    waiting: Vec<(Vec<Draft>, Place)>,
    /// Whether someone is writing.
    writing: bool,
}

/// The appends of a log.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    line: Mutex<Line>,
    turn: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held while writing; then it is the turn of those who came meanwhile.
struct Turn<'a>(&'a Queue);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.line).writing = false;
        self.0.turn.notify_all();
    }
}

impl Queue {
    /// Appends `drafts`, together with what waits already if it is this one's turn to `write`; if that
    /// fails, it fails for all. `None` if a panic kept it from being written.
    pub fn append(
        &self,
        drafts: Vec<Draft>,
        write: impl FnOnce(Vec<Draft>) -> Done,
    ) -> Option<Done> {
        let place = Place::default();
        let mut line = lock(&self.line);
        line.waiting.push((drafts, place.clone()));
        while line.writing {
            line = self.turn.wait(line).unwrap_or_else(PoisonError::into_inner);
            if let Some(done) = lock(&place).take() {
                return Some(done);
            }
        }
        line.writing = true;
        let group = std::mem::take(&mut line.waiting);
        drop(line);
        let _turn = Turn(self);
        write_all(group, write);
        lock(&place).take()
    }
}

fn write_all(mut group: Vec<(Vec<Draft>, Place)>, write: impl FnOnce(Vec<Draft>) -> Done) {
    let sizes: Vec<usize> = group.iter().map(|(drafts, _)| drafts.len()).collect();
    let mut all = Vec::new();
    for (drafts, _) in &mut group {
        if all.is_empty() { all = std::mem::take(drafts) } else { all.append(drafts) }
    }
    let mut written = write(all);
    for (at, ((_, place), size)) in group.iter().zip(sizes).enumerate().rev() {
        let done = match &mut written {
            // From the end: what is left for the first, often the only one, is not copied.
            Ok(records) if at > 0 => Ok(records.split_off(records.len() - size)),
            Ok(records) => Ok(std::mem::take(records)),
            Err(error) => Err(again(error)),
        };
        *lock(place) = Some(done);
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
