//! Every change that the store makes to files. Nothing else in this crate writes (`clippy.toml` holds
//! that), so a test can make each of them fail, die in the middle, or be lost with the power:
//! `faults.rs`, which is in no build but the tests of this crate. sled's own files are not written
//! here; the index can be thrown away at any time.
#![allow(clippy::disallowed_methods, reason = "this is where they are allowed")]

use std::fs;
use std::io::{Error, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

#[cfg(test)]
use crate::faults::{change, clock};

/// What is about to happen to a file or folder.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "only tests look, and not at all of it")]
pub(crate) enum Change<'a> {
    /// A file appears, or is emptied.
    Create(&'a Path),
    /// Bytes are written at an offset.
    Write(&'a Path, u64, &'a [u8]),
    /// A file gets this length.
    Resize(&'a Path, u64),
    /// What was written to a file becomes durable.
    Sync(&'a Path),
    /// A file or folder gets another name.
    Rename(&'a Path, &'a Path),
    /// A file goes away.
    Remove(&'a Path),
    /// A folder goes away with all that is in it.
    RemoveFolder(&'a Path),
    /// A folder appears, with those above it.
    Folder(&'a Path),
    /// The names in a folder become durable.
    SyncFolder(&'a Path),
    /// Everything becomes durable.
    SyncAll(&'a Path),
}

#[cfg(not(test))]
#[inline(always)]
fn change<T>(_: Change<'_>, act: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    act()
}

#[cfg(not(test))]
#[inline(always)]
fn clock(now: SystemTime) -> SystemTime {
    now
}

/// The time, for people and for the age of blobs.
pub(crate) fn now() -> SystemTime {
    clock(SystemTime::now())
}

/// A file that may be written.
#[derive(Debug)]
pub(crate) struct File {
    file: fs::File,
    path: PathBuf,
    /// Where [`Write`] goes on.
    end: u64,
}

impl File {
    /// A new file, or an old one emptied.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let file = change(Change::Create(path), || fs::File::create(path))?;
        Ok(Self { file, path: path.to_owned(), end: 0 })
    }

    /// A file that must not be there yet.
    pub fn create_new(path: &Path) -> Result<Self, Error> {
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create_new(true);
        let file = change(Change::Create(path), || options.open(path))?;
        Ok(Self { file, path: path.to_owned(), end: 0 })
    }

    /// A file as it is, to be read too; made if it is not there.
    pub fn open_or_create(path: &Path) -> Result<Self, Error> {
        let mut options = fs::OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = if path.exists() {
            options.open(path)?
        } else {
            change(Change::Create(path), || options.open(path))?
        };
        Ok(Self { file, path: path.to_owned(), end: 0 })
    }

    /// A file as it is.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = fs::OpenOptions::new().write(true).open(path)?;
        Ok(Self { file, path: path.to_owned(), end: 0 })
    }

    /// The file itself, for all that does not change it.
    pub fn inner(&self) -> &fs::File {
        &self.file
    }

    /// The file itself, for who only locks it.
    pub fn into_inner(self) -> fs::File {
        self.file
    }

    pub fn write_all_at(&self, bytes: &[u8], at: u64) -> Result<(), Error> {
        change(Change::Write(&self.path, at, bytes), || self.file.write_all_at(bytes, at))
    }

    pub fn set_len(&self, length: u64) -> Result<(), Error> {
        change(Change::Resize(&self.path, length), || self.file.set_len(length))
    }

    pub fn sync_data(&self) -> Result<(), Error> {
        change(Change::Sync(&self.path), || self.file.sync_data())
    }

    pub fn sync_all(&self) -> Result<(), Error> {
        change(Change::Sync(&self.path), || self.file.sync_all())
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.write_all_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Writes a whole file, not durably.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    File::create(path)?.write_all(bytes)
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    change(Change::Rename(from, to), || fs::rename(from, to))
}

pub(crate) fn remove_file(path: &Path) -> Result<(), Error> {
    change(Change::Remove(path), || fs::remove_file(path))
}

pub(crate) fn remove_dir_all(path: &Path) -> Result<(), Error> {
    change(Change::RemoveFolder(path), || fs::remove_dir_all(path))
}

pub(crate) fn create_dir(path: &Path) -> Result<(), Error> {
    change(Change::Folder(path), || fs::create_dir(path))
}

pub(crate) fn create_dir_all(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Ok(());
    }
    change(Change::Folder(path), || fs::create_dir_all(path))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), Error> {
    change(Change::SyncFolder(path), || fs::File::open(path)?.sync_all())
}

/// Makes everything durable on the disk that holds `path`, which is much faster than file by file.
pub(crate) fn sync_disk(path: &Path) -> Result<(), Error> {
    change(Change::SyncAll(path), || Ok(nix::unistd::syncfs(fs::File::open(path)?)?))
}
