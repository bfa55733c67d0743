//! Work as questions to the state: asked for minus done, in order of coordinates and never of
//! arrival. Start, steady work and restart are one path.

mod kernels;

use std::collections::BTreeMap;

use super::api_table::{ApiTable, Draw};
use super::control::sampling_step;
use crate::ids::{ApiSetId, BlobId, ModuleId, Role, Seq, StepRef, seed_at};
use crate::state::RunState;
pub use kernels::{
    BuildOrder, KernelOrder, MeasureOrder, Task, coder_batch, kernels_per_task, kernels_to_build,
    kernels_to_measure, kernels_to_write, tasks,
};

/// An API set that a step lacks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SetOrder {
    /// Its id.
    pub set: ApiSetId,
    /// The step.
    pub step: StepRef,
    /// From 0 within the step.
    pub index: u32,
    /// Seed of the draw.
    pub seed: u64,
    /// What makes it necessary.
    pub cause: Seq,
}

/// API sets that the open Proposer step lacks.
pub fn sets_to_draw(state: &RunState) -> Vec<SetOrder> {
    let (Some((step, cause)), Some(branch), Some(config)) =
        (sampling_step(state), state.branch(), state.config.as_ref())
    else {
        return Vec::new();
    };
    if step.role != Role::Proposer {
        return Vec::new();
    }
    (0..config.proposer.policy.batch_prompts.get())
        .filter(|index| !state.open.sets.contains_key(index))
        .map(|index| SetOrder {
            set: ApiSetId::at(branch, step, index),
            step,
            index,
            seed: seed_at(state.seed(), "api-set", step, index),
            cause,
        })
        .collect()
}

/// The APIs of one order: those that were asked for, else a draw weighted by what the Coder failed at
/// in the round before.
pub fn draw_apis(state: &RunState, table: &ApiTable, order: &SetOrder) -> Vec<String> {
    draw_weighted(state, table, &api_factors(state, table), order)
}

/// How APIs are weighted in this round, in the order of the table.
pub(super) fn api_factors(state: &RunState, table: &ApiTable) -> Vec<f64> {
    let Some(config) = state.config.as_ref() else { return Vec::new() };
    let weakness = config.sampler.weakness.get();
    let weights: BTreeMap<String, f64> = state
        .tallies_before
        .iter()
        .map(|(api, tally)| (api.clone(), 1.0 + weakness * (1.0 - tally.share())))
        .collect();
    table.factors(&weights)
}

/// [`draw_apis`] with the weights of [`api_factors`].
pub(super) fn draw_weighted(
    state: &RunState,
    table: &ApiTable,
    factors: &[f64],
    order: &SetOrder,
) -> Vec<String> {
    let asked = state.proposed.get(&order.step).and_then(|sets| sets.get(order.index as usize));
    if let Some(apis) = asked {
        return apis.clone();
    }
    let Some(config) = state.config.as_ref() else { return Vec::new() };
    let sizes = (config.sampler.apis_min.get(), config.sampler.apis_max.get());
    table.draw(Draw { seed: order.seed, sizes, factors })
}

/// Samples that one prompt lacks: index in the group, id, seed.
pub type Missing<Id> = Vec<(u32, Id, u64)>;

/// Modules that one API set lacks.
#[derive(Clone, Debug, PartialEq)]
pub struct ProposalOrder {
    /// The API set.
    pub set: ApiSetId,
    /// Its APIs, in the prompt's order.
    pub apis: Vec<String>,
    /// What makes it necessary.
    pub cause: Seq,
    /// What is lacking.
    pub missing: Missing<ModuleId>,
}

/// Modules that the open Proposer step lacks, once all its API sets are drawn.
pub fn proposals_to_write(state: &RunState) -> Vec<ProposalOrder> {
    let (Some((step, _)), Some(config)) = (sampling_step(state), state.config.as_ref()) else {
        return Vec::new();
    };
    if step.role != Role::Proposer || !sets_to_draw(state).is_empty() {
        return Vec::new();
    }
    let group = config.proposer.policy.group_size.get();
    let order = |(place, set): (&u32, &crate::state::SetEntry)| ProposalOrder {
        set: set.id,
        apis: set.apis.clone(),
        cause: set.seq,
        missing: (0..group)
            .filter(|index| !set.modules.contains_key(index))
            .map(|index| {
                let seed = seed_at(state.seed(), "module", step, place * group + index);
                (index, ModuleId::at(set.id, step, index), seed)
            })
            .collect(),
    };
    state.open.sets.iter().map(order).filter(|order| !order.missing.is_empty()).collect()
}

/// A module that lacks a verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidationOrder {
    /// Which.
    pub module: ModuleId,
    /// Its code, if the answer had any.
    pub source: Option<BlobId>,
    /// The APIs that it was asked to use.
    pub asked: Vec<String>,
    /// Seed of the random inputs.
    pub seed: u64,
    /// What makes it necessary.
    pub cause: Seq,
}

/// Modules of the open step in order of coordinates, with their place among all of the step.
fn modules_in_order(state: &RunState) -> Vec<(u32, ModuleId)> {
    let group = state.config.as_ref().map_or(1, |c| c.proposer.policy.group_size.get());
    let sets = state.open.sets.iter();
    sets.flat_map(|(place, set)| {
        set.modules.iter().map(move |(index, module)| (place * group + index, *module))
    })
    .collect()
}

/// Modules that lack a verdict.
pub fn modules_to_validate(state: &RunState) -> Vec<ValidationOrder> {
    let Some((step, _)) = sampling_step(state) else { return Vec::new() };
    modules_in_order(state)
        .into_iter()
        .filter_map(|(place, module)| {
            let entry = state.open.modules.get(&module).filter(|m| m.validity.is_none())?;
            Some(ValidationOrder {
                module,
                source: entry.source,
                asked: state.open.sets.get(&entry.set).map(|s| s.apis.clone()).unwrap_or_default(),
                seed: seed_at(state.seed(), "validation", step, place),
                cause: entry.seq,
            })
        })
        .collect()
}
