//! The appending side of an owned log.

use std::io::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use events::event::{Draft, Recorded, SCHEMA};
use events::ids::{Digest, Seq};
use events::log::LogError;

use crate::codec;
use crate::disk;
use crate::error::{io, is_full, refused, write_error};
use crate::frame::{self, FRAME, HEADER, Header, PAYLOAD_MAX};
use crate::head::{self, Head};
use crate::lineage::View;
use crate::segment::{self, Segment};

/// Encoding space that is kept between appends, in bytes.
const KEEP: usize = 1 << 20;

#[derive(Debug)]
struct Open {
    segment: Arc<Segment>,
    file: disk::File,
    end: u64,
}

/// Where the next batch goes.
#[derive(Debug)]
pub(crate) struct Writer {
    log: PathBuf,
    segment_bytes: u64,
    open: Option<Open>,
    last: u64,
    hash: Digest,
    head: disk::File,
    /// A failed write could not be taken back, or a sync failed: only reading the file again can
    /// tell what it holds.
    poisoned: bool,
    buffer: Vec<u8>,
}

impl Writer {
    /// Goes on after `view`, whose last segment must be cut to its end.
    pub fn new(log: PathBuf, view: &View, head: disk::File, bytes: u64) -> Result<Self, LogError> {
        let open = match view.segments.last() {
            None => None,
            Some(segment) => {
                let file = segment.writable()?;
                // What a dead owner wrote may not have reached the device yet.
                file.sync_data().map_err(io("cannot sync", &segment.path))?;
                Some(Open { segment: segment.clone(), file, end: view.end })
            }
        };
        let (last, hash) = (view.last, view.hash);
        let buffer = Vec::new();
        let (segment_bytes, poisoned) = (bytes, false);
        Ok(Self { log, segment_bytes, open, last, hash, head, poisoned, buffer })
    }

    /// Makes `drafts` (at least one) durable as one batch.
    pub fn append(&mut self, drafts: Vec<Draft>) -> Result<Vec<Recorded>, LogError> {
        if self.poisoned {
            let why = "an earlier failed write may have left bytes behind: open the log again";
            return Err(io("cannot append to", &self.log)(Error::other(why)));
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let encoded = self.encode(drafts, &mut buffer);
        let written = encoded.and_then(|done| self.write(&buffer).map(|start| (done, start)));
        if buffer.capacity() <= KEEP {
            self.buffer = buffer;
        }
        let ((records, hash), start) = written?;
        if let Some(open) = &self.open {
            open.segment.remember(self.last + 1, start);
        }
        self.last += records.len() as u64;
        self.hash = hash;
        self.write_head();
        Ok(records)
    }

    /// Shows what is durable now.
    pub fn publish(&self, view: &mut View) {
        let Some(open) = &self.open else { return };
        if !view.segments.last().is_some_and(|last| Arc::ptr_eq(last, &open.segment)) {
            Arc::make_mut(&mut view.segments).push(open.segment.clone());
        }
        (view.last, view.hash, view.end) = (self.last, self.hash, open.end);
    }

    /// Notes the last record outside the log. If that fails the head lags, which is allowed.
    pub fn write_head(&self) {
        let _ = head::write(&self.head, Head { seq: self.last, hash: self.hash });
    }

    /// The file of the head.
    pub fn head(&self) -> &disk::File {
        &self.head
    }

    /// Whether a failed write could not be taken back.
    #[cfg(test)]
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    fn encode(
        &self,
        drafts: Vec<Draft>,
        buffer: &mut Vec<u8>,
    ) -> Result<(Vec<Recorded>, Digest), LogError> {
        let no = |why: String| refused("cannot append to", &self.log, why);
        let count = u32::try_from(drafts.len()).map_err(|_| no("the batch is too large".into()))?;
        let at_unix_ms = now_unix_ms();
        let mut records = Vec::with_capacity(drafts.len());
        let mut previous = self.hash;
        for (index, Draft { cause, actor, event }) in (0..count).zip(drafts) {
            let seq = Seq(self.last + 1 + u64::from(index));
            let record =
                Recorded { seq, at_unix_ms, cause, actor, schema: SCHEMA, previous, event };
            let start = frame::begin(buffer);
            codec::encode_into(&record, buffer).map_err(|e| no(format!("{e:?}")))?;
            let payload = &buffer[start + FRAME..];
            if payload.len() > PAYLOAD_MAX {
                return Err(no(format!("{} bytes are too long for an event", payload.len())));
            }
            previous = Digest::of(payload);
            frame::finish(buffer, start, seq.0, index, count);
            records.push(record);
        }
        Ok((records, previous))
    }

    /// Writes a whole batch; returns where it starts.
    fn write(&mut self, bytes: &[u8]) -> Result<u64, LogError> {
        let (last, limit) = (self.last, self.segment_bytes);
        let fits = |end: u64| end + bytes.len() as u64 <= limit || end == HEADER as u64;
        if !self.open.as_ref().is_some_and(|open| fits(open.end)) {
            self.open = Some(self.roll()?);
        }
        let Some(open) = &mut self.open else {
            return Err(refused("cannot append to", &self.log, "no segment is open"));
        };
        let start = open.end;
        let failed = match open.file.write_all_at(bytes, start) {
            Err(e) => Some((e, false)),
            Ok(()) => open.file.sync_data().err().map(|e| (e, true)),
        };
        let Some((error, while_syncing)) = failed else {
            open.end += bytes.len() as u64;
            return Ok(start);
        };
        let undone = open.file.set_len(start).and_then(|()| open.file.sync_data());
        self.poisoned = undone.is_err() || (while_syncing && !is_full(&error));
        Err(write_error(&open.segment.path, last, error))
    }

    fn roll(&mut self) -> Result<Open, LogError> {
        let header = Header { first: self.last + 1, previous: self.hash };
        match Segment::create(&self.log, header) {
            Ok((segment, file)) => {
                Ok(Open { segment: Arc::new(segment), file, end: HEADER as u64 })
            }
            Err(error) => {
                self.poisoned = segment::discard(&self.log, header.first).is_err();
                Err(write_error(&self.log, self.last, error))
            }
        }
    }
}

fn now_unix_ms() -> u64 {
    let since = disk::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Cuts a segment to `end` durably.
pub(crate) fn cut(path: &Path, file: &disk::File, end: u64) -> Result<(), LogError> {
    file.set_len(end).and_then(|()| file.sync_all()).map_err(io("cannot cut", path))
}
