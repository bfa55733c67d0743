//! Reading records across segments and, in a fork, across the runs it came from.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use events::event::Recorded;
use events::ids::{Digest, Seq};
use events::log::LogError;

use crate::cursor::{Cursor, Step};
use crate::error::damaged;
use crate::segment::Segment;
use crate::walk::Walk;

/// The part of one run's log that may be read: records after `before` up to `last`.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Rising; the first one starts with `before + 1`.
    pub segments: Arc<Vec<Arc<Segment>>>,
    /// Last record that belongs to an ancestor; 0 without one.
    pub before: u64,
    /// Last record; equal to `before` if there is none.
    pub last: u64,
    /// Hash of the last record.
    pub hash: Digest,
    /// Where the last record ends in the last segment, or any later offset.
    pub end: u64,
}

impl View {
    /// Nothing yet, after the record `at` of an ancestor with this hash.
    pub fn after(at: Seq, hash: Digest) -> Self {
        Self { segments: Arc::default(), before: at.0, last: at.0, hash, end: 0 }
    }

    /// Checks that the log starts where it must.
    pub fn check_start(&self, dir: &Path) -> Result<(), LogError> {
        let wanted = self.before + 1;
        match self.segments.first() {
            Some(first) if first.header.first != wanted => {
                Err(damaged(dir, 0, wanted, format!("the segment of record {wanted} is missing")))
            }
            None if self.last > self.before => {
                Err(damaged(dir, 0, wanted, "all segments are missing"))
            }
            _ => Ok(()),
        }
    }
}

/// One record with its place.
pub(crate) struct Item<'a> {
    pub record: Recorded,
    /// Hash of its stored bytes.
    pub hash: Digest,
    pub segment: &'a Segment,
    /// Where its frame starts in the segment.
    pub offset: u64,
}

/// Gives `each` the records from `from` on, in order, checked: length, CRC, seq, batch, chain.
/// `views` are those of the ancestors and of the run itself, oldest first.
pub(crate) fn walk(
    views: &[View],
    from: u64,
    each: &mut dyn FnMut(Item<'_>) -> ControlFlow<()>,
) -> Result<(), LogError> {
    let mut known = None;
    for view in views.iter().filter(|v| v.last >= from) {
        let after = view.segments.partition_point(|s| s.header.first <= from);
        for at in after.saturating_sub(1)..view.segments.len() {
            if view.segments[at].header.first > view.last {
                break;
            }
            match walk_segment(view, at, from, known, each)? {
                (_, ControlFlow::Break(())) => return Ok(()),
                (hash, ControlFlow::Continue(())) => known = hash,
            }
        }
    }
    Ok(())
}

type Walked = (Option<Digest>, ControlFlow<()>);

fn walk_segment(
    view: &View,
    at: usize,
    from: u64,
    known: Option<Digest>,
    each: &mut dyn FnMut(Item<'_>) -> ControlFlow<()>,
) -> Result<Walked, LogError> {
    let segment = &*view.segments[at];
    let next = view.segments.get(at + 1).map(|s| s.header.first);
    let last = next.map_or(view.last, |n| view.last.min(n - 1));
    let sealed = next.is_some_and(|n| last == n - 1);
    let end = if next.is_some() { segment.len()? } else { view.end };
    let (start, offset) = segment.place_before(from);
    let mut walk = Walk::new(start, None);
    if start == segment.header.first {
        if known.is_some_and(|hash| hash != segment.header.previous) {
            let what = "the chain is broken: the segment before ends with another hash";
            return Err(damaged(&segment.path, 20, start, what));
        }
        walk.hash = Some(segment.header.previous);
    }
    let mut cursor = Cursor::new(segment, offset, end);
    while walk.next <= last {
        let seq = walk.next;
        let (offset, frame, payload, hash) = match cursor.next()? {
            Step::Frame { frame, offset, payload, hash } => (offset, frame, payload, hash),
            Step::Bad { offset, what } => return Err(damaged(&segment.path, offset, seq, what)),
            Step::End => return Err(damaged(&segment.path, end, seq, "the record is missing")),
        };
        let record = walk.pass(segment, offset, frame, payload, hash)?;
        if frame.index == 0 {
            segment.remember(seq, offset);
        }
        if seq >= from && each(Item { record, hash, segment, offset }).is_break() {
            return Ok((None, ControlFlow::Break(())));
        }
    }
    if sealed && !(walk.is_between_batches() && cursor.offset() == end) {
        let what = "more bytes than records: the next segment starts too early";
        return Err(damaged(&segment.path, cursor.offset(), walk.next, what));
    }
    Ok((walk.hash, ControlFlow::Continue(())))
}

/// The record at `seq` and its hash, if it is there.
pub(crate) fn record_at(views: &[View], seq: u64) -> Result<Option<(Recorded, Digest)>, LogError> {
    let mut found = None;
    if seq > 0 {
        walk(views, seq, &mut |item| {
            found = Some((item.record, item.hash));
            ControlFlow::Break(())
        })?;
    }
    Ok(found)
}
