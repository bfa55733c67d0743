//! Bytes of a segment file. All numbers are little-endian.
//!
//! ```text
//! header  magic 8 | version u32 | first seq u64 | hash of the record before 32 | CRC-32 u32
//! frame   length u32 | CRC-32 u32 | seq u64 | index u32 | count u32 | payload
//! ```
//!
//! `index` of `count` is the record's place in its batch: a batch counts only when it is whole, and
//! what follows a hole tells whether it was written together with it. The CRC (IEEE polynomial)
//! covers everything of the frame but itself.

use events::ids::Digest;

/// Bytes of a segment's header.
pub(crate) const HEADER: usize = 56;
/// Bytes of a frame before its payload.
pub(crate) const FRAME: usize = 24;
/// Longest payload, in bytes.
pub(crate) const PAYLOAD_MAX: usize = 64 << 20;

const MAGIC: &[u8; 8] = b"KZLOG\r\n\x1a";
/// Version of this layout.
pub(crate) const VERSION: u32 = 1;

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Seq of its first record.
    pub first: u64,
    /// Hash of the record before the first.
    pub previous: Digest,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.first.to_le_bytes());
        bytes[20..52].copy_from_slice(&self.previous.0);
        let crc = crc32fast::hash(&bytes[..52]);
        bytes[52..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The version of the layout, if it is a newer program's.
    pub fn newer(bytes: &[u8; HEADER]) -> Option<u32> {
        let sound = &bytes[..8] == MAGIC && u32_at(bytes, 52) == crc32fast::hash(&bytes[..52]);
        Some(u32_at(bytes, 8)).filter(|version| sound && *version > VERSION)
    }

    /// The header in `bytes`, or the offset and the nature of what is wrong.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, (u64, String)> {
        if &bytes[..8] != MAGIC {
            return Err((0, "this is not a segment of a log".into()));
        }
        if u32_at(bytes, 52) != crc32fast::hash(&bytes[..52]) {
            return Err((0, "the header's checksum differs".into()));
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err((8, format!("segment version {version}, this program knows {VERSION}")));
        }
        let mut previous = [0; 32];
        previous.copy_from_slice(&bytes[20..52]);
        Ok(Self { first: u64_at(bytes, 12), previous: Digest(previous) })
    }
}

/// A frame without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Bytes of the payload.
    pub length: u32,
    /// CRC-32 of the rest.
    pub crc: u32,
    /// Position of the record.
    pub seq: u64,
    /// From 0 within the batch.
    pub index: u32,
    /// Records in the batch.
    pub count: u32,
}

impl Frame {
    /// Reads the first [`FRAME`] bytes, unchecked.
    pub fn read(bytes: &[u8]) -> Self {
        Self {
            length: u32_at(bytes, 0),
            crc: u32_at(bytes, 4),
            seq: u64_at(bytes, 8),
            index: u32_at(bytes, 16),
            count: u32_at(bytes, 20),
        }
    }

    /// Seq of the first record of its batch, if the frame can be one at all.
    pub fn batch(&self) -> Option<u64> {
        let fits = self.length as usize <= PAYLOAD_MAX && self.index < self.count;
        if fits { self.seq.checked_sub(u64::from(self.index)) } else { None }
    }

    /// Whether it ends its batch.
    pub fn is_last(&self) -> bool {
        self.index.checked_add(1) == Some(self.count)
    }
}

/// CRC of a whole frame: `bytes` starts at the frame and ends with its payload.
pub(crate) fn crc_of(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..4]);
    hasher.update(&bytes[8..]);
    hasher.finalize()
}

/// Reserves a frame at the end of `bytes`; returns where it starts, for [`finish`].
pub(crate) fn begin(bytes: &mut Vec<u8>) -> usize {
    let start = bytes.len();
    bytes.resize(start + FRAME, 0);
    start
}

/// Fills in the frame at `start`, whose payload is everything after it.
pub(crate) fn finish(bytes: &mut [u8], start: usize, seq: u64, index: u32, count: u32) {
    let frame = &mut bytes[start..];
    let length = (frame.len() - FRAME) as u32;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame[8..16].copy_from_slice(&seq.to_le_bytes());
    frame[16..20].copy_from_slice(&index.to_le_bytes());
    frame[20..24].copy_from_slice(&count.to_le_bytes());
    let crc = crc_of(frame);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}
