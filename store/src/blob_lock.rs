//! Who uses the blobs of a home. A blob is stored before the event that names it is appended, so
//! nobody may remove blobs while others have them open: users hold `<blobs>/lock` together, a
//! collection holds it alone. The lock goes with its process.

use std::fs::{File, TryLockError};
use std::path::Path;

use events::log::LogError;

use crate::disk;
use crate::error::io;

const NAME: &str = "lock";

/// Held as long as the value lives.
#[derive(Debug)]
pub(crate) struct BlobLock {
    _file: File,
}

impl BlobLock {
    /// A user's; waits for a collection to end.
    pub fn shared(dir: &Path) -> Result<Self, LogError> {
        let file = open(dir)?;
        file.lock_shared().map_err(io("cannot lock", dir))?;
        Ok(Self { _file: file })
    }

    /// A user's, if the file is there and may be opened.
    pub fn if_there(dir: &Path) -> Option<Self> {
        let file = File::open(dir.join(NAME)).ok()?;
        file.lock_shared().ok()?;
        Some(Self { _file: file })
    }

    /// A collection's; `None` while anyone uses the blobs.
    pub fn alone(dir: &Path) -> Result<Option<Self>, LogError> {
        let file = open(dir)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(io("cannot lock", dir)(e)),
        }
    }
}

fn open(dir: &Path) -> Result<File, LogError> {
    let path = dir.join(NAME);
    let file = disk::File::open_or_create(&path).map(disk::File::into_inner);
    file.map_err(io("cannot open", &path))
}
