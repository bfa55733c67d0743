//! The head file: position and hash of the last acknowledged record, kept outside the log's folder
//! so that neither a lost record nor a re-chained edit goes unseen. Written in place after every
//! durable append, without a sync of its own but the first: it may lag behind, never run ahead.
//!
//! ```text
//! seq u64 | hash 32 | CRC-32 u32      little-endian
//! ```

use std::fs;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use events::ids::{Digest, Seq};
use events::log::LogError;

use crate::disk;
use crate::error::{damaged, io};
use crate::segment::sync_dir;

const LENGTH: usize = 44;

/// How the head kept outside compares with the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadState {
    /// It names the last record.
    Matches,
    /// It names this earlier record, with the right hash: the owner died in between.
    Lags(Seq),
    /// There is none.
    Missing,
}

/// The last acknowledged record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub seq: u64,
    pub hash: Digest,
}

impl Head {
    /// The file's bytes.
    pub fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..40].copy_from_slice(&self.hash.0);
        let crc = crc32fast::hash(&bytes[..40]);
        bytes[40..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (seq, rest) = bytes.split_first_chunk::<8>()?;
        let (hash, rest) = rest.split_first_chunk::<32>()?;
        let head = Self { seq: u64::from_le_bytes(*seq), hash: Digest(*hash) };
        let crc: [u8; 4] = rest.try_into().ok()?;
        (u32::from_le_bytes(crc) == crc32fast::hash(&bytes[..40])).then_some(head)
    }
}

/// The file; absent, empty or all zero (made just when the power went) means that no head is known.
#[derive(Debug)]
pub(crate) struct HeadFile {
    path: PathBuf,
}

impl HeadFile {
    /// `<home>/heads/<run-id>` for the run folder `<home>/runs/<run-id>`.
    pub fn of_run(dir: &Path) -> Result<Self, LogError> {
        let home = dir.parent().and_then(Path::parent);
        let (Some(home), Some(name)) = (home, dir.file_name()) else {
            return Err(crate::error::refused("cannot open", dir, "this is not a run's folder"));
        };
        Ok(Self { path: home.join("heads").join(name) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn read(&self) -> Result<Option<Head>, LogError> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io("cannot read", &self.path)(e)),
        };
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let what = "the head kept outside the log is damaged: restore this file, or make it empty to \
                    accept the log as it is";
        Head::decode(&bytes).map(Some).ok_or_else(|| damaged(&self.path, 0, 0, what))
    }

    /// Opens the file for writing, making it and its folder where needed.
    pub fn open(&self) -> Result<disk::File, LogError> {
        if let Some(dir) = self.path.parent() {
            disk::create_dir_all(dir).map_err(io("cannot create", dir))?;
        }
        disk::File::open_or_create(&self.path).map_err(io("cannot open", &self.path))
    }

    /// Makes `file` durable under its name. From then on a write over it is one block in its place,
    /// so that a loss of power leaves an older head at worst, and never none.
    pub fn sync(&self, file: &disk::File) -> Result<(), LogError> {
        file.sync_all().map_err(io("cannot sync", &self.path))?;
        self.path.parent().map_or(Ok(()), sync_dir)
    }
}

/// Writes `head` over the old one.
pub(crate) fn write(file: &disk::File, head: Head) -> Result<(), Error> {
    file.write_all_at(&head.encode(), 0)
}
