//! What must hold from one record to the next: seq, batch, hash chain.

use events::event::{Recorded, SCHEMA};
use events::ids::{Digest, Seq};
use events::log::LogError;

use crate::codec::{CodecError, decode};
use crate::error::damaged;
use crate::frame::Frame;
use crate::segment::Segment;

/// Where a walk over records stands.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// Seq that must come next.
    pub next: u64,
    /// Hash of the record before, where it is known.
    pub hash: Option<Digest>,
    /// Records of the open batch passed so far, and its size; `(0, 0)` between batches.
    batch: (u32, u32),
}

impl Walk {
    /// A walk that starts with a batch's first record.
    pub fn new(next: u64, hash: Option<Digest>) -> Self {
        Self { next, hash, batch: (0, 0) }
    }

    /// Whether no batch is open.
    pub fn is_between_batches(&self) -> bool {
        self.batch == (0, 0)
    }

    /// Checks the record at `offset` against what came before, and passes it. `hash` is that of its
    /// stored bytes.
    pub fn pass(
        &mut self,
        segment: &Segment,
        offset: u64,
        frame: Frame,
        payload: &[u8],
        hash: Digest,
    ) -> Result<Recorded, LogError> {
        let bad = |what: String| damaged(&segment.path, offset, self.next, what);
        let record = decode(payload).map_err(|error| match error {
            CodecError::Newer(found) => {
                LogError::Newer { seq: Seq(frame.seq), found, known: SCHEMA }
            }
            CodecError::Damaged(what) => bad(what),
        })?;
        if frame.seq != self.next || record.seq.0 != frame.seq {
            return Err(bad(format!("here lies record {} ({} inside)", frame.seq, record.seq)));
        }
        let (passed, count) = self.batch;
        if frame.index != passed
            || frame.index >= frame.count
            || (passed > 0 && count != frame.count)
        {
            return Err(bad(format!("{} of {} does not go on a batch", frame.index, frame.count)));
        }
        if self.hash.is_some_and(|hash| hash != record.previous) {
            return Err(bad("the chain is broken: the record before has another hash".into()));
        }
        self.batch = if frame.is_last() { (0, 0) } else { (passed + 1, frame.count) };
        self.next += 1;
        self.hash = Some(hash);
        Ok(record)
    }
}
