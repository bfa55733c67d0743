//! Weights that were stored, or are not needed any more.

use super::{Outcome, refuse, require};
use crate::ids::{BlobId, PolicyVersion};
use crate::state::{Checkpoint, RunState};

pub(super) fn saved(
    state: &mut RunState,
    policy: PolicyVersion,
    files: Vec<(String, BlobId)>,
) -> Outcome {
    let next = PolicyVersion { steps: state.version(policy.role).steps + 1, ..policy };
    require(state.open.started.is_some(), "no step was started")?;
    require(next == policy, "these are not the weights of the open step")?;
    require(!state.checkpoints.contains_key(&policy), "this checkpoint was already saved")?;
    state.checkpoints.insert(policy, Checkpoint { policy, files });
    Ok(())
}

pub(super) fn dropped(state: &mut RunState, policy: PolicyVersion, files: &[String]) -> Outcome {
    let in_use = policy.steps >= state.version(policy.role).steps;
    let Some(checkpoint) = state.checkpoints.get_mut(&policy) else {
        return refuse("there is no such checkpoint");
    };
    require(!in_use, "these weights are in use")?;
    checkpoint.files.retain(|(name, _)| !files.contains(name));
    if checkpoint.files.is_empty() {
        state.checkpoints.remove(&policy);
    }
    Ok(())
}
