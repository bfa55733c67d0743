//! What the end of a log is: whole batches, a torn tail, or damage.
//!
//! A crash can only leave the last batch incomplete, and that batch was never acknowledged. All
//! else that does not fit is damage: a bad record that the head file knows, or one that a later
//! batch follows (later batches are written only after earlier ones are durable).

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use events::ids::{Digest, Seq};
use events::log::LogError;

use crate::cursor::{Cursor, Step};
use crate::error::{damaged, io};
use crate::frame::{FRAME, Frame, HEADER, crc_of};
use crate::head::Head;
use crate::lineage::View;
use crate::segment::{self, Segment};
use crate::walk::Walk;

const DIFFERS: &str = "the chain differs from the head kept outside the log";

/// Opens the segments in `log` and finds the log's last whole batch. `before` and `hash` are the
/// ancestor's last record. Changes nothing; what is left over is the caller's to cut or ignore.
pub(crate) fn open_view(
    log: &Path,
    (before, hash): (u64, Digest),
    head: Option<Head>,
    bound: u64,
) -> Result<View, LogError> {
    let mut firsts = segment::list(log)?;
    if let Some(first) = torn_header(log, &firsts, head)? {
        firsts.retain(|f| *f != first);
    }
    let segments = firsts.iter().map(|first| Segment::open(log, *first).map(Arc::new));
    let segments: Vec<_> = segments.collect::<Result<_, _>>()?;
    let mut view = View::after(Seq(before), hash);
    view.segments = Arc::new(segments);
    view.check_start(log)?;
    if let Some(last) = view.segments.last() {
        let header = last.header;
        if header.first == before + 1 && header.previous != hash {
            return Err(damaged(&last.path, 20, header.first, "it goes on another record"));
        }
        (view.last, view.hash, view.end) = (header.first - 1, header.previous, HEADER as u64);
    }
    advance(&mut view, log, head, bound)?;
    Ok(view)
}

/// The last segment, if its creation was cut off before anything of it was acknowledged.
pub(crate) fn torn_header(
    log: &Path,
    firsts: &[u64],
    head: Option<Head>,
) -> Result<Option<u64>, LogError> {
    let Some(last) = firsts.last() else { return Ok(None) };
    let path = log.join(segment::name(*last));
    let length = path.metadata().map_err(io("cannot read", &path))?.len();
    let acknowledged = head.is_some_and(|head| head.seq >= *last);
    Ok((length < HEADER as u64 && !acknowledged).then_some(*last))
}

/// Moves the view's end over all whole batches that follow, up to `bound`, and into new segments.
/// `head` must have been read before the segments.
pub(crate) fn advance(
    view: &mut View,
    log: &Path,
    head: Option<Head>,
    bound: u64,
) -> Result<(), LogError> {
    check_head(view, log, head)?;
    loop {
        let Some(segment) = view.segments.last().cloned() else {
            if !open_next(view, log)? {
                break;
            }
            continue;
        };
        if view.last < bound {
            advance_in(view, &segment, head, bound)?;
        }
        if view.last >= bound || !open_next(view, log)? {
            break;
        }
    }
    if let Some(head) = head.filter(|head| head.seq > view.last) {
        let (path, offset) = match view.segments.last() {
            Some(segment) => (segment.path.as_path(), view.end),
            None => (log, 0),
        };
        let what = format!("an acknowledged record is lost: records up to #{} were", head.seq);
        return Err(damaged(path, offset, view.last + 1, what));
    }
    Ok(())
}

fn check_head(view: &View, log: &Path, head: Option<Head>) -> Result<(), LogError> {
    let Some(head) = head.filter(|head| head.seq == view.last && head.hash != view.hash) else {
        return Ok(());
    };
    let path = view.segments.last().map_or(log, |s| s.path.as_path());
    Err(damaged(path, view.end, head.seq, DIFFERS))
}

fn open_next(view: &mut View, log: &Path) -> Result<bool, LogError> {
    let first = view.last + 1;
    if view.segments.last().is_some_and(|s| s.header.first >= first) {
        return Ok(false);
    }
    let whole = log.join(segment::name(first)).metadata().is_ok_and(|m| m.len() >= HEADER as u64);
    if !whole {
        return Ok(false);
    }
    let segment = Segment::open(log, first)?;
    if segment.header.previous != view.hash {
        return Err(damaged(&segment.path, 20, first, "it goes on another record"));
    }
    Arc::make_mut(&mut view.segments).push(Arc::new(segment));
    view.end = HEADER as u64;
    Ok(true)
}

fn advance_in(
    view: &mut View,
    segment: &Segment,
    head: Option<Head>,
    bound: u64,
) -> Result<(), LogError> {
    let end = segment.len()?;
    let mut cursor = Cursor::new(segment, view.end, end);
    let mut walk = Walk::new(view.last + 1, Some(view.hash));
    let mut start = view.end;
    while view.last < bound {
        let seq = walk.next;
        let (offset, frame, payload, hash) = match cursor.next()? {
            Step::Frame { frame, offset, payload, hash } => (offset, frame, payload, hash),
            Step::End if walk.is_between_batches() => return Ok(()),
            Step::End => return torn(view, segment, head, (end, seq), "the batch is cut off"),
            Step::Bad { offset, what } => return torn(view, segment, head, (offset, seq), &what),
        };
        if frame.index == 0 {
            start = offset;
        }
        walk.pass(segment, offset, frame, payload, hash)?;
        if head.is_some_and(|head| head.seq == seq && head.hash != hash) {
            return Err(damaged(&segment.path, offset, seq, DIFFERS));
        }
        if frame.is_last() {
            segment.remember(seq - u64::from(frame.index), start);
            (view.last, view.hash, view.end) = (seq, hash, cursor.offset());
        }
    }
    Ok(())
}

/// Decides whether what lies at `offset` is a torn tail, which is fine.
fn torn(
    view: &View,
    segment: &Segment,
    head: Option<Head>,
    (offset, seq): (u64, u64),
    what: &str,
) -> Result<(), LogError> {
    if head.is_some_and(|head| head.seq > view.last) {
        return Err(damaged(
            &segment.path,
            offset,
            seq,
            format!("{what}, but it was acknowledged"),
        ));
    }
    if let Some(later) = later_batch(segment, (offset, seq), view.last + 1)? {
        let what = format!("{what}, but record {later} of a later batch follows");
        return Err(damaged(&segment.path, offset, seq, what));
    }
    Ok(())
}

/// A whole record after `offset`, where record `seq` should be, that belongs to a later batch than
/// the one that starts with `batch`. Looks at every byte, since lengths cannot be trusted there.
fn later_batch(
    segment: &Segment,
    (offset, seq): (u64, u64),
    batch: u64,
) -> Result<Option<u64>, LogError> {
    let length = segment.len()?.saturating_sub(offset);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    if let Err(e) = segment.file.read_exact_at(&mut bytes, offset) {
        // The owner took back a failed append meanwhile.
        let shrunk = e.kind() == ErrorKind::UnexpectedEof;
        return if shrunk { Ok(None) } else { Err(io("cannot read", &segment.path)(e)) };
    }
    let most = seq.saturating_add(length / FRAME as u64);
    for at in 1..bytes.len().saturating_sub(FRAME) {
        let rest = &bytes[at..];
        let frame = Frame::read(rest);
        let later = frame.batch().is_some_and(|b| b > batch) && frame.seq <= most;
        let whole = FRAME + frame.length as usize;
        if later && rest.len() >= whole && crc_of(&rest[..whole]) == frame.crc {
            return Ok(Some(frame.seq));
        }
    }
    Ok(None)
}
