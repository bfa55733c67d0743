//! Samples that are taken out of the run.

use super::{Outcome, require};
use crate::ids::{BlobId, Digest, KernelId, ModuleId};
use crate::state::{Excluded, Position, RunState};

impl Excluded {
    /// A module that was written just now.
    pub(super) fn join_module(&mut self, module: ModuleId, source: Option<BlobId>) {
        if source.is_some_and(|source| self.sources.contains(&source)) {
            self.modules.insert(module);
        }
    }

    /// A kernel that was written just now.
    pub(super) fn join_kernel(
        &mut self,
        kernel: KernelId,
        module: ModuleId,
        source: Option<BlobId>,
    ) {
        let known = source.is_some_and(|source| self.sources.contains(&source));
        if known || self.modules.contains(&module) {
            self.kernels.insert(kernel);
        }
    }
}

/// What has its scores keeps them, so whoever excludes something branches before it was scored.
pub(super) fn exclude(
    state: &mut RunState,
    modules: Vec<ModuleId>,
    kernels: Vec<KernelId>,
    sources: Vec<Digest>,
) -> Outcome {
    require(state.position != Position::Finished, "the run is over")?;
    require(state.open.started.is_none(), "the step's batch is closed")?;
    let excluded = &mut state.excluded;
    excluded.modules.extend(modules);
    excluded.kernels.extend(kernels);
    excluded.sources.extend(sources);
    let of_modules = state.open.kernel.iter().filter(|(_, k)| excluded.modules.contains(&k.module));
    excluded.kernels.extend(of_modules.map(|(kernel, _)| *kernel));
    let samples = |id: &BlobId| {
        let in_modules = state.open.modules.iter();
        let in_kernels = state.open.kernel.iter();
        in_modules.filter(|(m, _)| excluded.modules.contains(m)).any(|(_, m)| m.sample == *id)
            || in_kernels
                .filter(|(k, _)| excluded.kernels.contains(k))
                .any(|(_, k)| k.sample == *id)
    };
    let scored = state.open.scored.values().flat_map(|group| &group.members);
    let fed = scored.into_iter().any(|(_, sample)| samples(sample));
    require(
        !fed,
        "a group of the open step has its scores from it: branch before they were given",
    )?;
    let pool = &mut state.pool;
    pool.retain(|entry| !excluded.modules.contains(&entry.module));
    Ok(())
}
