//! Making `LogError`s.

use std::io::{Error, ErrorKind};
use std::path::Path;

use events::ids::Seq;
use events::log::LogError;

/// `map_err(io("cannot read", path))`.
pub(crate) fn io(action: &'static str, path: &Path) -> impl Fn(Error) -> LogError + use<> {
    let path = path.display().to_string();
    move |source| LogError::Io { action, path: path.clone(), cause: source }
}

/// The request itself cannot be met.
pub(crate) fn refused(action: &'static str, path: &Path, why: impl Into<String>) -> LogError {
    io(action, path)(Error::new(ErrorKind::InvalidInput, why.into()))
}

/// Stored bytes are not what was written.
pub(crate) fn damaged(path: &Path, offset: u64, seq: u64, what: impl Into<String>) -> LogError {
    let path = path.display().to_string();
    LogError::Damaged { path, offset, seq: Seq(seq), what: what.into() }
}

/// Whether the cause is that no space is left for the file.
pub(crate) fn is_full(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

/// Whether space would help: a full disk, a quota, a limit on file sizes. True for
/// [`LogError::DiskFull`] and for a blob that could not be written, which knows no position.
pub fn is_disk_full(error: &LogError) -> bool {
    match error {
        LogError::DiskFull { .. } => true,
        LogError::Io { cause, .. } => is_full(cause),
        _ => false,
    }
}

/// An error of writing the log, which is intact up to `last`.
pub(crate) fn write_error(path: &Path, last: u64, source: Error) -> LogError {
    let shown = path.display().to_string();
    if is_full(&source) {
        return LogError::DiskFull { path: shown, last: Seq(last) };
    }
    LogError::Io { action: "cannot write", path: shown, cause: source }
}
