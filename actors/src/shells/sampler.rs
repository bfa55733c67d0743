//! Draws API sets.

use events::event::{Actor, Event};
use events::ids::BlobId;
use events::rules::api_table::ApiTable;
use events::rules::work;

use super::{Failed, Shell, caused, text};
use crate::bus::Bus;
use crate::ports::WorldFailed;

/// A run's API table, read once.
#[derive(Default)]
pub(super) struct Table(Option<(BlobId, ApiTable)>);

impl Table {
    /// The table that `id` names.
    pub(super) fn get(&mut self, bus: &Bus, id: BlobId) -> Result<&ApiTable, Failed> {
        let held = match self.0.take() {
            Some(held) if held.0 == id => held,
            Some(_) | None => {
                let table = ApiTable::parse(&text(bus, id)?);
                (id, table.map_err(|e| WorldFailed(e.to_string()))?)
            }
        };
        Ok(&self.0.insert(held).1)
    }
}

/// Draws all API sets that a step lacks.
#[derive(Default)]
pub(super) struct Sampler {
    table: Table,
}

impl Shell for Sampler {
    fn actor(&self) -> Actor {
        Actor::Sampler
    }

    fn work(&mut self, bus: &Bus) -> Result<bool, Failed> {
        let (orders, table) = bus.ask(|state| (work::sets_to_draw(state), state.api_table))?;
        let (false, Some(id)) = (orders.is_empty(), table) else { return Ok(false) };
        let table = self.table.get(bus, id)?;
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
