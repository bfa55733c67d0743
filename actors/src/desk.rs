//! The bus as an actor sees it during one piece of work.

use events::event::{Actor, Event, Recorded};
use events::ids::Seq;
use events::log::Blobs;
use events::state::RunState;

use crate::bus::{Bus, Error};
use crate::shells::Failed;

/// What is appended here was decided with the settings of when the work began: if one has changed
/// since, or the run was paused, nothing is appended and the work is asked for again. So every event
/// is what `audit` decides from everything before it, however long the work took.
pub struct Desk<'a> {
    bus: &'a Bus,
    /// Where a setting had last changed when the work began.
    settings: Seq,
}

impl<'a> Desk<'a> {
    /// Begins a piece of work.
    pub fn new(bus: &'a Bus) -> Result<Self, Error> {
        Ok(Self { bus, settings: bus.ask(|state| state.settings)? })
    }

    /// Asks the state a question; see [`Bus::ask`].
    pub fn ask<T>(&self, question: impl FnOnce(&RunState) -> T) -> Result<T, Error> {
        self.bus.ask(question)
    }

    /// Appends what the work came to, or fails with [`Failed::Stale`].
    pub fn append(&self, actor: Actor, events: Vec<(Option<Seq>, Event)>) -> Result<(), Failed> {
        let mut stale = false;
        self.bus.decide(actor, |state| {
            stale = state.settings != self.settings || state.paused.is_some();
            if stale { Vec::new() } else { events }
        })?;
        if stale { Err(Failed::Stale) } else { Ok(()) }
    }

    /// Decides and appends at once; see [`Bus::decide`]. Whatever the settings are now is right.
    pub fn decide(
        &self,
        actor: Actor,
        decision: impl FnOnce(&RunState) -> Vec<(Option<Seq>, Event)>,
    ) -> Result<Vec<Recorded>, Error> {
        self.bus.decide(actor, decision)
    }

    /// Where large data lives.
    pub fn blobs(&self) -> &dyn Blobs {
        self.bus.blobs()
    }
}
