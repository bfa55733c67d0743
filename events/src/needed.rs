//! Which blobs a log needs, and which of them its run needs to go on.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Event;
use crate::ids::{BlobId, PolicyVersion};
use crate::state::RunState;

/// All blobs that the events seen so far name, without files of checkpoints that were dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    named: BTreeSet<BlobId>,
    checkpoints: BTreeMap<PolicyVersion, Vec<(String, BlobId)>>,
}

impl Needed {
    /// The next event of the log.
    pub fn see(&mut self, event: &Event) {
        if !self.see_checkpoint(event) {
            self.named.extend(event.blobs());
        }
    }

    /// The next event, if only checkpoints are asked for; whether it was about one.
    pub fn see_checkpoint(&mut self, event: &Event) -> bool {
        match event {
            Event::CheckpointSaved { policy, files } => {
                self.checkpoints.entry(*policy).or_default().extend(files.iter().cloned());
                true
            }
            Event::CheckpointDropped { policy, files } => {
                let kept = self.checkpoints.entry(*policy).or_default();
                kept.retain(|(name, _)| !files.contains(name));
                true
            }
            _ => false,
        }
    }

    /// The blobs, sorted.
    pub fn blobs(self) -> BTreeSet<BlobId> {
        let mut all = self.named;
        all.extend(self.checkpoints.into_values().flatten().map(|(_, blob)| blob));
        all
    }
}

/// What the actors of a run at `state` may read, sorted: the table, weights that are in use or kept, and
/// what the open step and the Coder's pool hold. All else is only for who looks back.
pub fn to_go_on(state: &RunState) -> BTreeSet<BlobId> {
    let initial = state.initial.iter().flat_map(|policy| &policy.files);
    let saved = state.checkpoints.values().flat_map(|checkpoint| &checkpoint.files);
    let modules = state.open.modules.values().flat_map(|m| [Some(m.sample), m.source]);
    let kernels = state.open.kernel.values().flat_map(|k| [Some(k.sample), k.source]);
    initial
        .chain(saved)
        .map(|(_, blob)| *blob)
        .chain(state.api_table)
        .chain(modules.chain(kernels).flatten())
        .chain(state.pool.iter().map(|task| task.source))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Digest, Role};

    #[test]
    fn files_that_were_dropped_are_not_needed_unless_something_else_names_them() {
        let policy = |steps| PolicyVersion { role: Role::Coder, steps };
        let file = |name: &str, of: &[u8]| (name.to_owned(), Digest::of(of));
        let saved = |steps, files| Event::CheckpointSaved { policy: policy(steps), files };
        let mut needed = Needed::default();
        needed.see(&saved(1, vec![file("config", b"c"), file("model", b"1")]));
        needed.see(&saved(2, vec![file("config", b"c"), file("model", b"2")]));
        let files = vec!["config".to_owned(), "model".to_owned()];
        needed.see(&Event::CheckpointDropped { policy: policy(1), files });
        assert_eq!(needed.blobs(), [Digest::of(b"c"), Digest::of(b"2")].into());
    }
}
