//! Reads the frames of one segment in order.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use events::ids::Digest;
use events::log::LogError;

use crate::digests::digests;
use crate::error::io;
use crate::frame::{FRAME, Frame, PAYLOAD_MAX, crc_of};
use crate::segment::Segment;

const CHUNK: usize = 256 << 10;
/// Most records that are hashed together.
const TOGETHER: usize = 64;

/// What lies at the cursor.
pub(crate) enum Step<'b> {
    /// A frame whose checksum holds.
    Frame {
        frame: Frame,
        /// Where it starts.
        offset: u64,
        payload: &'b [u8],
        /// Of the payload.
        hash: Digest,
    },
    /// The end, exactly.
    End,
    /// Something that is not a whole frame.
    Bad { offset: u64, what: String },
}

/// A position in a segment, with what was read ahead.
pub(crate) struct Cursor<'a> {
    segment: &'a Segment,
    /// Nothing at or after this offset is looked at.
    end: u64,
    /// Offset of the next frame.
    offset: u64,
    /// Bytes from `offset - used` on.
    buffer: Vec<u8>,
    used: usize,
    /// Of the payloads that come next, as far as they were hashed.
    hashes: VecDeque<Digest>,
}

impl<'a> Cursor<'a> {
    pub fn new(segment: &'a Segment, offset: u64, end: u64) -> Self {
        let (buffer, hashes) = (Vec::new(), VecDeque::new());
        Self { segment, end, offset, buffer, used: 0, hashes }
    }

    /// Offset of what [`Cursor::next`] will look at.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Looks at the next frame and passes it.
    pub fn next(&mut self) -> Result<Step<'_>, LogError> {
        let offset = self.offset;
        if offset >= self.end {
            return Ok(Step::End);
        }
        let bad = |what: &str| Ok(Step::Bad { offset, what: what.to_owned() });
        if !self.fill(FRAME)? {
            return bad("the record is cut off");
        }
        let frame = Frame::read(&self.buffer[self.used..]);
        if frame.length as usize > PAYLOAD_MAX {
            return bad("the record's length is impossible");
        }
        let whole = FRAME + frame.length as usize;
        if !self.fill(whole)? {
            return bad("the record is cut off");
        }
        let start = self.used;
        if crc_of(&self.buffer[start..start + whole]) != frame.crc {
            return bad("the record's checksum differs");
        }
        if self.hashes.is_empty() {
            self.hash_ahead();
        }
        self.used += whole;
        self.offset += whole as u64;
        let payload = &self.buffer[start + FRAME..start + whole];
        let hash = self.hashes.pop_front().unwrap_or_else(|| Digest::of(payload));
        Ok(Step::Frame { frame, offset, payload, hash })
    }

    /// Hashes what lies whole in the buffer, in frames by what their lengths say: nobody sees the hash
    /// of one before its checksum was found to hold, and a frame that does not is the last one.
    fn hash_ahead(&mut self) {
        let mut payloads = Vec::with_capacity(TOGETHER);
        let mut rest = &self.buffer[self.used..];
        while payloads.len() < TOGETHER && rest.len() >= FRAME {
            let whole = FRAME + Frame::read(rest).length as usize;
            let Some((frame, after)) = rest.split_at_checked(whole) else { break };
            payloads.push(&frame[FRAME..]);
            rest = after;
        }
        self.hashes.extend(digests(&payloads));
    }

    /// Sees to it that `wanted` bytes from `offset` on are in the buffer; false if there are fewer.
    fn fill(&mut self, wanted: usize) -> Result<bool, LogError> {
        if self.buffer.len() - self.used >= wanted {
            return Ok(true);
        }
        self.buffer.drain(..self.used);
        self.used = 0;
        let left = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX);
        let target = wanted.max(CHUNK).min(left);
        let mut have = self.buffer.len();
        self.buffer.resize(target.max(have), 0);
        while have < target {
            let at = self.offset + have as u64;
            match self.segment.file.read_at(&mut self.buffer[have..target], at) {
                Ok(0) => break,
                Ok(read) => have += read,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(io("cannot read", &self.segment.path)(e)),
            }
        }
        self.buffer.truncate(have);
        Ok(have >= wanted)
    }
}
