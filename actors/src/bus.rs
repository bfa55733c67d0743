//! One fold of the log, shared by all actors of a process, and the only way to append.
//!
//! A fold for each actor would be eight times the memory for the same answers; what keeps actors
//! apart is that they see each other only through events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use events::event::{Actor, Draft, Event, Recorded};
use events::ids::Seq;
use events::log::{Blobs, Log, LogError};
use events::state::{Illegal, RunState};

/// The bus cannot go on. The log holds everything that was acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or writing failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// An event cannot follow: a bug of this program, or a log made by another.
    #[error(transparent)]
    Illegal(#[from] Illegal),
    /// An earlier append failed, so the state in memory is ahead of the log.
    #[error("an earlier append failed: start again")]
    Poisoned,
}

/// Called after each append; must not block.
type Listener = Box<dyn Fn() + Send>;

/// The log, its fold and its listeners.
pub struct Bus {
    log: Arc<dyn Log>,
    blobs: Arc<dyn Blobs>,
    state: Mutex<Option<RunState>>,
    listeners: Mutex<Vec<Listener>>,
    stopping: AtomicBool,
}

/// Records read at a time while folding.
const READ_LIMIT: usize = 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Folds a whole log. The same function serves start, `replay` and tests.
pub fn fold(log: &dyn Log) -> Result<RunState, Error> {
    fold_on(RunState::default(), log)
}

/// Folds what comes after `state`, which is the fold of the events before.
pub fn fold_on(mut state: RunState, log: &dyn Log) -> Result<RunState, Error> {
    loop {
        let read = log.read_after(state.last, READ_LIMIT)?;
        if read.is_empty() {
            return Ok(state);
        }
        for recorded in read {
            state.apply_owned(recorded.seq, recorded.event)?;
        }
    }
}

impl Bus {
    /// Folds what the log holds.
    pub fn open(log: Arc<dyn Log>, blobs: Arc<dyn Blobs>) -> Result<Self, Error> {
        let state = fold(log.as_ref())?;
        Ok(Self::at(state, log, blobs))
    }

    /// The same for who has the fold of all that the log holds already.
    pub fn at(state: RunState, log: Arc<dyn Log>, blobs: Arc<dyn Blobs>) -> Self {
        Self {
            log,
            blobs,
            state: Mutex::new(Some(state)),
            listeners: Mutex::new(Vec::new()),
            stopping: AtomicBool::new(false),
        }
    }

    /// Asks the state a question. Must be quick: everyone waits.
    pub fn ask<T>(&self, question: impl FnOnce(&RunState) -> T) -> Result<T, Error> {
        lock(&self.state).as_ref().map(question).ok_or(Error::Poisoned)
    }

    /// Makes `events` durable as one, applies them, then wakes everyone. On an error the state is
    /// dropped: whoever appends again gets [`Error::Poisoned`], and a restart folds the log anew.
    pub fn append(
        &self,
        actor: Actor,
        events: Vec<(Option<Seq>, Event)>,
    ) -> Result<Vec<Recorded>, Error> {
        self.decide(actor, |_| events)
    }

    /// Appends what `decision` makes of the state, with nobody in between: for what is decided from
    /// the state alone, and quickly. An empty decision appends nothing.
    pub fn decide(
        &self,
        actor: Actor,
        decision: impl FnOnce(&RunState) -> Vec<(Option<Seq>, Event)>,
    ) -> Result<Vec<Recorded>, Error> {
        let recorded = {
            let mut slot = lock(&self.state);
            let events = decision(slot.as_ref().ok_or(Error::Poisoned)?);
            if events.is_empty() {
                return Ok(Vec::new());
            }
            let mut state = slot.take().ok_or(Error::Poisoned)?;
            for (seq, (_, event)) in (state.last.0 + 1..).zip(&events) {
                state.apply(Seq(seq), event)?;
            }
            let drafts =
                events.into_iter().map(|(cause, event)| Draft { cause, actor, event }).collect();
            let recorded = self.log.append(drafts)?;
            *slot = Some(state);
            recorded
        };
        for event in &recorded {
            tracing::debug!(seq = event.seq.0, event = event.event.name(), "appended");
        }
        self.wake();
        Ok(recorded)
    }

    /// Where large data lives.
    pub fn blobs(&self) -> &dyn Blobs {
        self.blobs.as_ref()
    }

    /// The log itself, for readers.
    pub fn log(&self) -> &dyn Log {
        self.log.as_ref()
    }

    /// Calls `listener` after each append.
    pub fn listen(&self, listener: impl Fn() + Send + 'static) {
        lock(&self.listeners).push(Box::new(listener));
    }

    /// Tells everyone to look again.
    pub fn wake(&self) {
        for listener in lock(&self.listeners).iter() {
            listener();
        }
    }

    /// No new work is begun from now on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether no new work is to be begun.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}
