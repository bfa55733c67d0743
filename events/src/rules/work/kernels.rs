//! Kernels that a step lacks: to write, to build, to measure.

use super::{Missing, modules_in_order, proposals_to_write, sets_to_draw};
use crate::config::RunConfig;
use crate::event::{CompileOutcome, Validity};
use crate::ids::{BlobId, KernelId, ModuleId, Role, Seq, StepRef, seed_at};
use crate::outcome::Backend;
use crate::rules::control::sampling_step;
use crate::state::{PoolEntry, RunState};

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
        Role::Coder => state
            .config
            .iter()
            .flat_map(|config| coder_batch(&state.pool, config, step))
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
pub fn coder_batch<'a>(
    pool: &'a [PoolEntry],
    config: &RunConfig,
    step: StepRef,
) -> Vec<&'a PoolEntry> {
    let size = config.coder.policy.batch_prompts.get() as usize;
    let distance = |entry: &PoolEntry| {
        let centred = 2 * i64::from(entry.correct) - i64::from(entry.of);
        // Compared as fractions without rounding: |2c − n| / n at a common denominator.
        (centred.unsigned_abs() * 720_720) / u64::from(entry.of.max(1))
    };
    let by_information = |fresh: bool| {
        let mut entries: Vec<&PoolEntry> =
            pool.iter().filter(|e| (e.round == step.round) == fresh).collect();
        entries.sort_by_key(|entry| (distance(entry), entry.rank));
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
