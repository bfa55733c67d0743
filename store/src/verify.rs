//! Checking a whole log.

use std::ops::ControlFlow;
use std::path::Path;

use events::event::Recorded;
use events::ids::{Digest, Seq};
use events::log::{Log, LogError};

use crate::file_log::{FileLog, OpenMode};
use crate::head::HeadState;

/// What a whole log is, if nothing is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Events, with those shared with ancestors.
    pub events: u64,
    /// Segment files that were read, ancestors' too.
    pub segments: usize,
    /// Bytes in those files.
    pub bytes: u64,
    /// The last record.
    pub head: (Seq, Digest),
    /// How the head kept outside compares. `Missing` means that nothing speaks for the last records.
    pub outside: HeadState,
    /// Bytes of an incomplete batch at the end, which was never acknowledged.
    pub torn_bytes: u64,
}

/// Reads the whole log of the run in `dir` without changing anything: headers, lengths, CRCs,
/// gapless order, whole batches, the hash chain (across forks too) and the head kept outside. Gives
/// `each` every event, until it breaks; the checks go on to the end either way.
///
/// Fails with the first damage, naming file, byte and record.
pub fn verify(
    dir: &Path,
    mut each: impl FnMut(&Recorded, Digest) -> ControlFlow<()>,
) -> Result<Report, LogError> {
    let log = FileLog::open(dir, OpenMode::ReadOnly)?;
    let head = log.head();
    let (mut events, mut last) = (0, (Seq(0), Digest::default()));
    let mut wanted = true;
    log.scan(Seq(1), |record, hash| {
        if record.seq > head.0 {
            return ControlFlow::Break(());
        }
        events += 1;
        last = (record.seq, hash);
        wanted = wanted && each(record, hash).is_continue();
        ControlFlow::Continue(())
    })?;
    if last != head || events != head.0.0 {
        let what = format!("the log ends with {}, not with {}", last.0, head.0);
        return Err(crate::error::damaged(dir, 0, last.0.0, what));
    }
    let (mut segments, mut bytes) = (0, 0);
    for segment in log.views()?.iter().flat_map(|view| view.segments.iter()) {
        segments += 1;
        bytes += segment.len()?;
    }
    let recovery = log.recovery();
    let torn_bytes = recovery.cut.as_ref().map_or(0, |cut| cut.bytes);
    Ok(Report { events, segments, bytes, head, outside: recovery.outside, torn_bytes })
}
