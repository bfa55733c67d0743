//! Begins and ends runs, rounds and phases.

use events::event::{Actor, Event, InitialPolicy};
use events::ids::{BlobId, RunId};
use events::rules::control;

use super::{Failed, Shell};
use crate::bus::{Bus, Error};
use crate::desk::Desk;

/// What a new run starts from.
#[derive(Clone, Debug)]
pub struct Start {
    /// Its name.
    pub run: RunId,
    /// Its settings as canonical TOML.
    pub config: String,
    /// Version of the program.
    pub code: String,
    /// What it runs on.
    pub environment: Vec<(String, String)>,
    /// The API table.
    pub api_table: BlobId,
    /// The first weights.
    pub policies: Vec<InitialPolicy>,
}

/// Records the beginning of a run in an empty log.
pub fn start(bus: &Bus, start: Start) -> Result<(), Error> {
    let event = Event::RunStarted {
        run: start.run,
        config: start.config,
        code: start.code,
        environment: start.environment,
        api_table: start.api_table,
        policies: start.policies,
    };
    bus.append(Actor::RunControl, vec![(None, event)]).map(drop)
}

/// Begins and ends rounds and phases, and ends the run.
pub(super) struct RunControl;

impl Shell for RunControl {
    fn actor(&self) -> Actor {
        Actor::RunControl
    }

    fn work(&mut self, desk: &Desk<'_>) -> Result<bool, Failed> {
        let recorded = desk.decide(Actor::RunControl, |state| {
            control::next(state).map(|event| (Some(state.last), event)).into_iter().collect()
        })?;
        for event in recorded.iter().map(|recorded| &recorded.event) {
            tracing::info!(event = event.name(), ?event, "run control");
        }
        Ok(!recorded.is_empty())
    }
}
