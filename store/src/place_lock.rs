//! Who makes something at a place: a file beside it that is locked meanwhile, and goes away with the lock.

use std::fs::TryLockError;
use std::io::Error;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use events::log::LogError;

use crate::disk;
use crate::error::{io, refused};

/// Held as long as the value lives. A process that is killed lets it go; its file is then the next one's.
#[derive(Debug)]
pub(crate) struct PlaceLock {
    path: PathBuf,
    _file: disk::File,
}

impl PlaceLock {
    /// Waits for whoever has it.
    pub fn wait(path: &Path) -> Result<Self, LogError> {
        let failed = io("cannot lock", path);
        loop {
            let file = disk::File::open_or_create(path).map_err(&failed)?;
            file.inner().lock().map_err(&failed)?;
            if is_at(&file, path).map_err(&failed)? {
                return Ok(Self { path: path.to_owned(), _file: file });
            }
        }
    }

    /// For making `place`; refused while another process makes it.
    pub fn of(place: &Path) -> Result<Self, LogError> {
        let mut path = place.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let failed = io("cannot lock", &path);
        loop {
            let file = disk::File::open_or_create(&path).map_err(&failed)?;
            match file.inner().try_lock() {
                Ok(()) if is_at(&file, &path).map_err(&failed)? => {
                    return Ok(Self { path, _file: file });
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let why = "another process is making it just now";
                    return Err(refused("cannot create", place, why));
                }
                Err(TryLockError::Error(e)) => return Err(failed(e)),
            }
        }
    }
}

/// Whether the file has its name still: whoever had the lock before takes the name away.
fn is_at(file: &disk::File, path: &Path) -> Result<bool, Error> {
    let held = file.inner().metadata()?;
    Ok(path.metadata().is_ok_and(|there| (there.dev(), there.ino()) == (held.dev(), held.ino())))
}

impl Drop for PlaceLock {
    fn drop(&mut self) {
        let _ = disk::remove_file(&self.path);
    }
}
