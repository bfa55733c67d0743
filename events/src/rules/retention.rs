//! Which checkpoints are kept.
//!
//! Without a setting, all. With `trainer.keep-last` the newest so many of each policy are, beside them
//! those that `trainer.keep-every` names, and those that phases ended with: a round can always be done
//! again. The weights in use are among the newest, so what an open step needs is never dropped.

use crate::event::Event;
use crate::state::{Checkpoint, RunState};

/// The drop that is due, if any: the oldest first, one at a time.
pub fn due(state: &RunState) -> Option<Event> {
    let trainer = &state.config.as_ref()?.trainer;
    let last = trainer.keep_last?.get();
    let kept_too = |steps: u32| trainer.keep_every.is_some_and(|n| steps.is_multiple_of(n.get()));
    let goes = |checkpoint: &&Checkpoint| {
        let policy = checkpoint.policy;
        let newest = state.version(policy.role).steps;
        policy.steps.saturating_add(last) <= newest
            && !kept_too(policy.steps)
            && !state.phase_ends.contains(&policy)
    };
    let checkpoint = state.checkpoints.values().find(goes)?;
    let files = checkpoint.files.iter().map(|(name, _)| name.clone()).collect();
    Some(Event::CheckpointDropped { policy: checkpoint.policy, files })
}
