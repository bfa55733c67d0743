//! Draws API sets.

use events::event::{Actor, Event};
use events::ids::BlobId;
use events::rules::api_table::ApiTable;
use events::rules::work;

use super::{Failed, Shell, caused, text};
use crate::bus::Bus;
use crate::ports::WorldFailed;

/// Reads a run's API table.
pub(super) fn read_table(bus: &Bus, id: BlobId) -> Result<ApiTable, Failed> {
    let text = text(bus, id)?;
    ApiTable::parse(&text).map_err(|e| Failed::World(WorldFailed(e.to_string())))
}

/// Draws all API sets that a step lacks.
#[derive(Default)]
pub(super) struct Sampler {
    table: Option<(BlobId, ApiTable)>,
}

impl Shell for Sampler {
    fn actor(&self) -> Actor {
        Actor::Sampler
    }

    fn work(&mut self, bus: &Bus) -> Result<bool, Failed> {
        let (orders, table) = bus.ask(|state| (work::sets_to_draw(state), state.api_table))?;
        let (false, Some(id)) = (orders.is_empty(), table) else { return Ok(false) };
        if self.table.as_ref().is_none_or(|(held, _)| *held != id) {
            self.table = Some((id, read_table(bus, id)?));
        }
        let Some((_, table)) = &self.table else { return Ok(false) };
        let drawn = bus.ask(|state| {
            orders
                .iter()
                .map(|order| {
                    let event = Event::ApisSampled {
                        set: order.set,
                        step: order.step,
                        index: order.index,
                        seed: order.seed,
                        apis: work::draw_apis(state, table, order.seed),
                    };
                    caused(order.cause, event)
                })
                .collect::<Vec<_>>()
        })?;
        bus.append(Actor::Sampler, drawn)?;
        Ok(true)
    }
}
