//! The fold of a log, kept beside it: who opens a long log folds only what came after. It can be
//! thrown away at any time, and is believed only if its own hash is right, the record that it stands
//! at is in this log, and the very same fold made it. An audit never looks at it.
//!
//! ```text
//! <run>/state   magic 8 | fold u64 | seq u64 | hash of that record 32 | BLAKE3 of all else 32 | state
//! ```
//!
//! Numbers are little-endian, the state is in bincode.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use bincode::config::standard;
use events::ids::{Digest, Seq};
use events::log::LogError;
use events::state::{FOLD, RunState};

use crate::disk;
use crate::error::{damaged, io, refused};
use crate::file_log::{FileLog, OpenMode};
use crate::lineage::record_at;

const NAME: &str = "state";
const MAGIC: &[u8; 8] = b"KZSTATE\n";
const HASH_AT: usize = 56;
const HEADER: usize = HASH_AT + 32;

/// What is kept beside a log.
#[derive(Clone, Debug, PartialEq)]
pub enum Kept {
    /// Nothing that this version of the program made.
    Nothing,
    /// Something that must not be used, and why: it is damaged, or of another log.
    Unusable(String),
    /// The state after the log's first `state.last` events.
    State(Box<RunState>),
}

impl FileLog {
    /// The state that was kept last. It is checked against itself and against the log, but what it says
    /// of the events before it is only as good as who wrote it: a fold of all events can tell.
    ///
    /// Fails only where the log or the file cannot be read.
    pub fn kept(&self) -> Result<Kept, LogError> {
        let path = self.dir().join(NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Kept::Nothing),
            Err(e) => return Err(io("cannot read", &path)(e)),
        };
        let unusable = |why: &str| Ok(Kept::Unusable(format!("{}: {why}", path.display())));
        let Some((header, state)) = bytes.split_first_chunk::<HEADER>() else {
            return unusable("it is cut off");
        };
        if &header[..8] != MAGIC || header[HASH_AT..] != hash_of(&header[..HASH_AT], state).0 {
            return unusable("it is damaged");
        }
        if number(header, 8) != FOLD {
            return Ok(Kept::Nothing);
        }
        let seq = number(header, 16);
        let found = record_at(&self.views()?, seq)?.map(|(_, hash)| hash);
        if found.is_none_or(|hash| hash.0 != header[24..HASH_AT]) {
            return unusable("it is of another log");
        }
        match bincode::serde::decode_from_slice::<RunState, _>(state, standard()) {
            Ok((kept, used)) if used == state.len() && kept.last == Seq(seq) => {
                Ok(Kept::State(Box::new(kept)))
            }
            _ => unusable("it does not decode"),
        }
    }

    /// Keeps `state`, which must be the fold of this log's first `state.last` events, instead of the one
    /// before: whole or not at all. Refused to a reader.
    pub fn keep(&self, state: &RunState) -> Result<(), LogError> {
        let path = self.dir().join(NAME);
        if self.mode == OpenMode::ReadOnly {
            return Err(refused("cannot write", &path, "the log is open for reading only"));
        }
        let Some((_, hash)) = record_at(&self.views()?, state.last.0)? else {
            let what = format!("a state after {} is not of this log", state.last);
            return Err(damaged(self.dir(), 0, state.last.0, what));
        };
        let mut bytes = Vec::from(MAGIC);
        bytes.extend(FOLD.to_le_bytes());
        bytes.extend(state.last.0.to_le_bytes());
        bytes.extend(hash.0);
        bytes.extend([0; 32]);
        bincode::serde::encode_into_std_write(state, &mut bytes, standard())
            .map_err(|e| refused("cannot write", &path, e.to_string()))?;
        let digest = hash_of(&bytes[..HASH_AT], &bytes[HEADER..]);
        bytes[HASH_AT..HEADER].copy_from_slice(&digest.0);
        let temporary = path.with_extension("tmp");
        let written = replace(&temporary, &path, &bytes);
        if written.is_err() {
            let _ = disk::remove_file(&temporary);
        }
        written.map_err(io("cannot write", &path))
    }
}

fn replace(temporary: &Path, path: &Path, bytes: &[u8]) -> Result<(), std::io::Error> {
    let mut file = disk::File::create(temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    disk::rename(temporary, path)
}

fn hash_of(header: &[u8], state: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(state);
    Digest(*hasher.finalize().as_bytes())
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}
