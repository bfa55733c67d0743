//! Sets, modules and kernels of the open step.

use super::{Outcome, Refusal, in_step, refuse, require};
use crate::event::{Answer, CompileOutcome, Validity};
use crate::ids::{ApiSetId, KernelId, ModuleId, Role, Seq, StepRef};
use crate::outcome::Measurement;
use crate::state::{KernelEntry, ModuleEntry, RunState, SetEntry};

pub(super) fn sampled(
    state: &mut RunState,
    seq: Seq,
    (id, step, index): (ApiSetId, StepRef, u32),
    apis: Vec<String>,
) -> Outcome {
    in_step(state, step)?;
    require(step.role == Role::Proposer, "API sets belong to Proposer phases")?;
    let entry = SetEntry { id, seq, apis, modules: Default::default() };
    require(state.open.sets.insert(index, entry).is_none(), "the set was drawn already")
}

pub(super) fn proposed(
    state: &mut RunState,
    seq: Seq,
    (module, set, index): (ModuleId, ApiSetId, u32),
    answer: &Answer,
) -> Outcome {
    let Some((place, entry)) = state.open.sets.iter_mut().find(|(_, s)| s.id == set) else {
        return refuse("its API set is not in the open step");
    };
    require(entry.modules.insert(index, module).is_none(), "this module was proposed already")?;
    let record = ModuleEntry {
        set: *place,
        seq,
        source: answer.source,
        sample: answer.sample,
        validity: None,
    };
    state.excluded.join_module(module, answer.source);
    state.open.modules.insert(module, record);
    *state.totals.tokens.entry(Role::Proposer).or_default() += u64::from(answer.tokens);
    Ok(())
}

pub(super) fn validated(
    state: &mut RunState,
    seq: Seq,
    module: ModuleId,
    validity: Validity,
) -> Outcome {
    let Some(entry) = state.open.modules.get_mut(&module) else {
        return refuse("the module is not in the open step");
    };
    require(entry.validity.is_none(), "the module was validated already")?;
    state.totals.modules.add(validity == Validity::Valid);
    entry.validity = Some((seq, validity));
    Ok(())
}

pub(super) fn written(
    state: &mut RunState,
    seq: Seq,
    (kernel, module, step, index): (KernelId, ModuleId, StepRef, u32),
    answer: &Answer,
) -> Outcome {
    in_step(state, step)?;
    let known = match step.role {
        Role::Proposer => {
            let entry = state.open.modules.get(&module);
            entry.is_some_and(|m| matches!(m.validity, Some((_, Validity::Valid))))
        }
        // The newest first: most tasks are of this round.
        Role::Coder => state.pool.iter().rev().any(|p| p.module == module),
    };
    require(known, "its module is not a valid one of the step")?;
    require(
        state.open.kernels.insert((module, index), kernel).is_none(),
        "this kernel was written already",
    )?;
    let record = KernelEntry {
        module,
        seq,
        source: answer.source,
        sample: answer.sample,
        compiled: None,
        measured: None,
    };
    state.excluded.join_kernel(kernel, module, answer.source);
    state.open.kernel.insert(kernel, record);
    *state.totals.tokens.entry(Role::Coder).or_default() += u64::from(answer.tokens);
    Ok(())
}

pub(super) fn compiled(
    state: &mut RunState,
    seq: Seq,
    kernel: KernelId,
    outcome: CompileOutcome,
) -> Outcome {
    let entry = known_kernel(state, kernel)?;
    require(entry.compiled.is_none(), "the kernel was compiled already")?;
    entry.compiled = Some((seq, outcome));
    Ok(())
}

pub(super) fn measured(
    state: &mut RunState,
    seq: Seq,
    kernel: KernelId,
    measurement: Measurement,
) -> Outcome {
    let entry = known_kernel(state, kernel)?;
    require(entry.compiled.is_some(), "the kernel was not compiled")?;
    require(entry.measured.is_none(), "the kernel was measured already")?;
    entry.measured = Some((seq, measurement));
    Ok(())
}

fn known_kernel(state: &mut RunState, kernel: KernelId) -> Result<&mut KernelEntry, Refusal> {
    state.open.kernel.get_mut(&kernel).ok_or(Refusal::Known("the kernel is not in the open step"))
}
