//! One process owns a log: an exclusive `flock` on `<run>/lock`, which holds the owner's id.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;

use events::log::LogError;

use crate::error::io;

const NAME: &str = "lock";

/// Held as long as the log is owned.
#[derive(Debug)]
pub(crate) struct OwnerLock {
    file: File,
}

impl OwnerLock {
    /// Takes the lock of the run in `dir`, or says who has it.
    pub fn take(dir: &Path) -> Result<Self, LogError> {
        let path = dir.join(NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(io("cannot open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let owner = owner_in(&mut file).unwrap_or_else(|| "unknown".into());
                return Err(LogError::Owned { path: dir.display().to_string(), owner });
            }
            Err(TryLockError::Error(e)) => return Err(io("cannot lock", &path)(e)),
        }
        let pid = std::process::id().to_string();
        // A full disk must not keep anyone from opening: the id is for people only.
        let _ = file.set_len(0).and_then(|()| file.write_all(pid.as_bytes()));
        Ok(Self { file })
    }
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        let _ = self.file.set_len(0);
    }
}

fn owner_in(file: &mut File) -> Option<String> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let pid = text.trim();
    (!pid.is_empty()).then(|| pid.to_owned())
}

/// Whether a process that may own the run in `dir` is alive. Takes no lock, so it never gets in an
/// owner's way; the id of a dead owner that was given to another process counts as alive.
pub(crate) fn may_be_owned(dir: &Path) -> bool {
    let Ok(mut file) = File::open(dir.join(NAME)) else { return false };
    let Some(pid) = owner_in(&mut file) else { return false };
    pid.parse::<u32>().is_ok() && Path::new("/proc").join(pid).exists()
}
