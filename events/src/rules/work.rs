//! Work as questions to the state: asked for minus done, in order of coordinates and never of
//! arrival. Start, steady work and restart are one path.

use std::collections::BTreeMap;

use super::api_table::{ApiTable, Draw};
use super::control::sampling_step;
use crate::event::{CompileOutcome, Validity};
use crate::ids::{ApiSetId, BlobId, KernelId, ModuleId, Role, Seq, StepRef, seed_at};
use crate::outcome::Backend;
use crate::state::{PoolEntry, RunState};

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

/// The APIs of one order, weighted by what the Coder failed at in the round before.
pub fn draw_apis(state: &RunState, table: &ApiTable, seed: u64) -> Vec<String> {
    let Some(config) = state.config.as_ref() else { return Vec::new() };
    let weakness = config.sampler.weakness.get();
    let weights: BTreeMap<String, f64> = state
        .tallies_before
        .iter()
        .map(|(api, tally)| (api.clone(), 1.0 + weakness * (1.0 - tally.share())))
        .collect();
    let sizes = (config.sampler.apis_min.get(), config.sampler.apis_max.get());
    table.draw(Draw { seed, sizes, weights: &weights })
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

/// A module that kernels are written for in the open step.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Which.
    pub module: ModuleId,
    /// Its code.
    pub source: BlobId,
    /// Place among all of the step.
    pub place: u32,
    /// Where its verdict was recorded.
    pub validated: Seq,
}

/// The open step's tasks: the valid modules it proposed, or the Coder's batch from the pool.
/// Empty until all modules of the step have their verdicts.
pub fn tasks(state: &RunState) -> Vec<Task> {
    let Some((step, _)) = state.open_step() else { return Vec::new() };
    match step.role {
        Role::Proposer => {
            let waiting = !sets_to_draw(state).is_empty()
                || !proposals_to_write(state).is_empty()
                || state.open.modules.values().any(|m| m.validity.is_none());
            if waiting {
                return Vec::new();
            }
            modules_in_order(state)
                .into_iter()
                .filter_map(|(place, module)| {
                    let entry = state.open.modules.get(&module)?;
                    match (&entry.validity, entry.source) {
                        (Some((validated, Validity::Valid)), Some(source)) => {
                            Some(Task { module, source, place, validated: *validated })
                        }
                        _ => None,
                    }
                })
                .collect()
        }
        Role::Coder => coder_batch(state, step)
            .into_iter()
            .zip(0..)
            .map(|(entry, place)| Task {
                module: entry.module,
                source: entry.source,
                place,
                validated: entry.validated,
            })
            .collect(),
    }
}

/// The Coder's batch of modules: of this round, most informative first (share of right kernels
/// nearest to one half, then by id), with the set share of older ones.
fn coder_batch(state: &RunState, step: StepRef) -> Vec<&PoolEntry> {
    let Some(config) = state.config.as_ref() else { return Vec::new() };
    let size = config.coder.policy.batch_prompts.get() as usize;
    let distance = |entry: &PoolEntry| {
        let centred = 2 * i64::from(entry.correct) - i64::from(entry.of);
        // Compared as fractions without rounding: |2c − n| / n at a common denominator.
        (centred.unsigned_abs() * 720_720) / u64::from(entry.of.max(1))
    };
    let by_information = |fresh: bool| {
        let mut entries: Vec<&PoolEntry> =
            state.pool.iter().filter(|e| (e.round == step.round) == fresh).collect();
        entries.sort_by_key(|entry| (distance(entry), entry.module));
        entries
    };
    let (fresh, old) = (by_information(true), by_information(false));
    let replay = (size * config.coder.pool.replay_percent.get() as usize).div_ceil(100);
    let replay = if fresh.is_empty() { size } else { replay }.min(old.len());
    let turn = step.step as usize;
    let mut batch = window(&fresh, turn, size - replay);
    batch.extend(window(&old, turn, replay));
    batch
}

/// The `turn`-th run of `count` entries, going round, each at most once.
fn window<'a>(entries: &[&'a PoolEntry], turn: usize, count: usize) -> Vec<&'a PoolEntry> {
    let count = count.min(entries.len());
    (0..count).map(|i| entries[(turn * count + i) % entries.len()]).collect()
}

/// Kernels that one module lacks.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelOrder {
    /// The module.
    pub module: ModuleId,
    /// Its code.
    pub source: BlobId,
    /// The step.
    pub step: StepRef,
    /// What makes it necessary.
    pub cause: Seq,
    /// What is lacking.
    pub missing: Missing<KernelId>,
}

/// Kernels wanted for each task of the open step.
pub fn kernels_per_task(state: &RunState, role: Role) -> u32 {
    state.config.as_ref().map_or(0, |config| match role {
        Role::Proposer => config.proposer.coder_samples.get(),
        Role::Coder => config.coder.policy.group_size.get(),
    })
}

/// Kernels that the open step lacks.
pub fn kernels_to_write(state: &RunState) -> Vec<KernelOrder> {
    let (Some((step, since)), Some(branch)) = (sampling_step(state), state.branch()) else {
        return Vec::new();
    };
    let count = kernels_per_task(state, step.role);
    let order = |task: Task| KernelOrder {
        module: task.module,
        source: task.source,
        step,
        cause: match step.role {
            Role::Proposer => task.validated,
            Role::Coder => since,
        },
        missing: (0..count)
            .filter(|index| !state.open.kernels.contains_key(&(task.module, *index)))
            .map(|index| {
                let seed = seed_at(state.seed(), "kernel", step, task.place * count + index);
                (index, KernelId::at(branch, task.module, step, index), seed)
            })
            .collect(),
    };
    tasks(state).into_iter().map(order).filter(|order| !order.missing.is_empty()).collect()
}

/// A kernel that lacks a build.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildOrder {
    /// Which.
    pub kernel: KernelId,
    /// Its code, if the answer had any.
    pub source: Option<BlobId>,
    /// What makes it necessary.
    pub cause: Seq,
}

/// Kernels in order of coordinates.
fn kernels_in_order(state: &RunState) -> Vec<(Task, KernelId)> {
    tasks(state)
        .into_iter()
        .flat_map(|task| {
            let range = (task.module, 0)..=(task.module, u32::MAX);
            let kernels = state.open.kernels.range(range);
            kernels.map(move |(_, kernel)| (task.clone(), *kernel)).collect::<Vec<_>>()
        })
        .collect()
}

/// Kernels that lack a build.
pub fn kernels_to_build(state: &RunState) -> Vec<BuildOrder> {
    kernels_in_order(state)
        .into_iter()
        .filter_map(|(_, kernel)| {
            let entry = state.open.kernel.get(&kernel).filter(|k| k.compiled.is_none())?;
            Some(BuildOrder { kernel, source: entry.source, cause: entry.seq })
        })
        .collect()
}

/// A build that lacks a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasureOrder {
    /// Which kernel.
    pub kernel: KernelId,
    /// Its code.
    pub source: BlobId,
    /// The reference's code.
    pub module_source: BlobId,
    /// What it is written in.
    pub backend: Backend,
    /// Seed of the inputs; the same for all kernels of a module in a step.
    pub seed: u64,
    /// Whether it is timed.
    pub timing: bool,
    /// What makes it necessary.
    pub cause: Seq,
}

/// Builds that lack a measurement.
pub fn kernels_to_measure(state: &RunState) -> Vec<MeasureOrder> {
    let (Some((step, _)), Some(config)) = (sampling_step(state), state.config.as_ref()) else {
        return Vec::new();
    };
    kernels_in_order(state)
        .into_iter()
        .filter_map(|(task, kernel)| {
            let entry = state.open.kernel.get(&kernel).filter(|k| k.measured.is_none())?;
            let Some((cause, CompileOutcome::Built { backend, .. })) = &entry.compiled else {
                return None;
            };
            Some(MeasureOrder {
                kernel,
                source: entry.source?,
                module_source: task.source,
                backend: *backend,
                seed: seed_at(state.seed(), "inputs", step, task.place),
                timing: config.judge.timing && step.role == Role::Coder,
                cause: *cause,
            })
        })
        .collect()
}
