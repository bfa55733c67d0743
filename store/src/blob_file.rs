//! One blob's file: a byte that says how the content is stored, then the content.

use std::fs::{self, File, TryLockError};
use std::io::{Error, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use events::ids::Digest;

use crate::disk;

/// Content of this many bytes and more is stored as it is.
pub(crate) const BIG: u64 = 8 << 20;

const RAW: u8 = 0;
const ZSTD: u8 = 1;
const LEVEL: i32 = 3;
const CHUNK: usize = 1 << 20;

/// Writes content that is in memory; compressed, if that is smaller.
pub(crate) fn write(out: &mut dyn Write, bytes: &[u8]) -> Result<(), Error> {
    if (bytes.len() as u64) < BIG {
        let packed = zstd::bulk::compress(bytes, LEVEL)?;
        if packed.len() < bytes.len() {
            out.write_all(&[ZSTD])?;
            return out.write_all(&packed);
        }
    }
    out.write_all(&[RAW])?;
    out.write_all(bytes)
}

/// Copies content as it is; returns its hash.
pub(crate) fn write_stream(out: &mut dyn Write, from: &mut dyn Read) -> Result<Digest, Error> {
    out.write_all(&[RAW])?;
    copy(from, out).map_err(|failed| match failed {
        Failed::Reading(e) | Failed::Writing(e) => e,
    })
}

/// Why content could not be read.
pub(crate) enum ReadError {
    /// There is no file.
    Missing,
    /// It is not what was stored.
    Damaged,
    /// The file could not be read.
    Reading(Error),
    /// The content could not be written to where it was wanted.
    Writing(Error),
}

/// Writes the content of the file at `path` to `out` and compares its hash with `id`.
pub(crate) fn read(path: &Path, id: Digest, out: &mut dyn Write) -> Result<(), ReadError> {
    let mut file = File::open(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => ReadError::Missing,
        _ => ReadError::Reading(e),
    })?;
    let mut form = [0];
    file.read_exact(&mut form).map_err(|_| ReadError::Damaged)?;
    let found = match form[0] {
        RAW => copy(&mut file, out),
        ZSTD => {
            let unpacked = zstd::Decoder::new(file).map_err(ReadError::Reading)?;
            // Nothing longer was ever compressed: a damaged file must not fill the memory.
            copy(&mut unpacked.take(BIG), out).map_err(|failed| match failed {
                Failed::Reading(e) if e.raw_os_error().is_none() => Failed::Reading(not_packed()),
                other => other,
            })
        }
        _ => return Err(ReadError::Damaged),
    };
    match found {
        Ok(found) if found == id => Ok(()),
        Ok(_) => Err(ReadError::Damaged),
        Err(Failed::Reading(e)) if e.kind() == ErrorKind::InvalidData => Err(ReadError::Damaged),
        Err(Failed::Reading(e)) => Err(ReadError::Reading(e)),
        Err(Failed::Writing(e)) => Err(ReadError::Writing(e)),
    }
}

fn not_packed() -> Error {
    Error::new(ErrorKind::InvalidData, "not what was compressed")
}

/// Which side of a copy failed.
pub(crate) enum Failed {
    /// Where it came from.
    Reading(Error),
    /// Where it was to go.
    Writing(Error),
}

/// Copies everything; returns its hash.
pub(crate) fn copy(from: &mut dyn Read, to: &mut dyn Write) -> Result<Digest, Failed> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(Digest(*hasher.finalize().as_bytes())),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                to.write_all(&buffer[..read]).map_err(Failed::Writing)?;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(Failed::Reading(e)),
        }
    }
}

/// A file that goes away unless it is kept. Its lock tells a sweep that its writer lives.
pub(crate) struct Temporary {
    pub file: disk::File,
    path: PathBuf,
}

impl Temporary {
    /// A new, empty file in `dir`.
    pub fn create(dir: &Path) -> Result<Self, Error> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!("{}-{count}", std::process::id()));
            let file = match disk::File::create_new(&path) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            // A sweep may have come between making and locking it.
            let locked = file.inner().try_lock().is_ok();
            if locked && file.inner().metadata()?.nlink() > 0 {
                return Ok(Self { file, path });
            }
        }
    }

    /// Where it lies until it is kept.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the content its name; making it durable is the caller's to do.
    pub fn name(self, path: &Path) -> Result<(), Error> {
        disk::rename(&self.path, path)
    }

    /// Makes the content durable and gives it its name.
    pub fn keep(self, path: &Path) -> Result<(), Error> {
        self.file.sync_all()?;
        disk::rename(&self.path, path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After `keep` there is nothing under this name any more.
        let _ = disk::remove_file(&self.path);
    }
}

/// Removes the temporary files in `dir` whose writers are gone.
pub(crate) fn sweep(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let file = match File::open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            opened => opened?,
        };
        match file.try_lock() {
            Ok(()) => disk::remove_file(&path)?,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
    Ok(())
}
