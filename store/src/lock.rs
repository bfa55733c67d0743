//! One process owns a log: an exclusive `flock` on `<run>/lock`, which holds the owner's id.

use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::Path;

use events::log::LogError;

use crate::disk;
use crate::error::io;

const NAME: &str = "lock";

/// Held as long as the log is owned.
#[derive(Debug)]
pub(crate) struct OwnerLock {
    file: disk::File,
}

impl OwnerLock {
    /// Takes the lock of the run in `dir`, or says who has it.
    pub fn take(dir: &Path) -> Result<Self, LogError> {
        let path = dir.join(NAME);
        let file = disk::File::open_or_create(&path).map_err(io("cannot open", &path))?;
        match file.inner().try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let owner = owner_in(file.inner()).unwrap_or_else(|| "unknown".into());
                return Err(LogError::Owned { path: dir.display().to_string(), owner });
            }
            Err(TryLockError::Error(e)) => return Err(io("cannot lock", &path)(e)),
        }
        let pid = std::process::id().to_string();
        // A full disk must not keep anyone from opening: the id is for people only.
        let _ = file.set_len(0).and_then(|()| file.write_all_at(pid.as_bytes(), 0));
        Ok(Self { file })
    }
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        let _ = self.file.set_len(0);
    }
}

fn owner_in(mut file: &File) -> Option<String> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let pid = text.trim();
    (!pid.is_empty()).then(|| pid.to_owned())
}

/// The process that owns the run in `dir`. Takes no lock, so it never gets in an owner's way: the
/// process that the lock file names must have that very file open. A number that a dead owner left
/// and another process got does not count.
pub fn owner(dir: &Path) -> Option<u32> {
    let path = dir.join(NAME);
    let pid: u32 = owner_in(&File::open(&path).ok()?)?.parse().ok()?;
    let path = path.canonicalize().ok()?;
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        // Another user's process may not be looked into: it is there, so it may be the owner.
        return Path::new("/proc").join(pid.to_string()).exists().then_some(pid);
    };
    let mut open = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    open.any(|file| file == path).then_some(pid)
}
