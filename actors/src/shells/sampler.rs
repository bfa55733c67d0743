//! Draws API sets.

use events::event::{Actor, Event};
use events::ids::BlobId;
use events::rules::api_table::ApiTable;
use events::rules::work;

use super::{Failed, Shell, caused, text};
use crate::desk::Desk;
use crate::ports::WorldFailed;

/// A run's API table, read once.
#[derive(Default)]
pub(super) struct Table(Option<(BlobId, ApiTable)>);

impl Table {
    /// The table that `id` names.
    pub(super) fn get(&mut self, desk: &Desk<'_>, id: BlobId) -> Result<&ApiTable, Failed> {
        let held = match self.0.take() {
            Some(held) if held.0 == id => held,
            Some(_) | None => {
                let table = ApiTable::parse(&text(desk, id)?);
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

    fn work(&mut self, desk: &Desk<'_>) -> Result<bool, Failed> {
        let (orders, table) = desk.ask(|state| (work::sets_to_draw(state), state.api_table))?;
        let (false, Some(id)) = (orders.is_empty(), table) else { return Ok(false) };
        let table = self.table.get(desk, id)?;
        let drawn = desk.ask(|state| {
            orders
                .iter()
                .map(|order| {
                    let event = Event::ApisSampled {
                        set: order.set,
                        step: order.step,
                        index: order.index,
                        seed: order.seed,
                        apis: work::draw_apis(state, table, order),
                    };
                    caused(order.cause, event)
                })
                .collect::<Vec<_>>()
        })?;
        desk.append(Actor::Sampler, drawn)?;
        Ok(true)
    }
}
