//! Exit codes and the errors that carry them.

use std::process::ExitCode;

use events::config::BadConfig;
use events::log::LogError;

/// What a program ends with. The README has the same table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Ok = 0,
    /// The answer is no: an audit disagrees, a kernel is not right, a module is not valid.
    No = 1,
    /// The call or the config is not right.
    Usage = 2,
    /// The world failed: no python, no engine, no space, port in use.
    World = 3,
    /// The log or a blob is damaged.
    Damaged = 4,
    /// Another process owns the log.
    Owned = 5,
    /// The run is paused; the reason was printed.
    Paused = 6,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// A usage error: names what was given and the fix.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The code that an error ends with, from its causes.
pub fn code_of(error: &anyhow::Error) -> Exit {
    for cause in error.chain() {
        if cause.is::<Usage>() || cause.is::<BadConfig>() {
            return Exit::Usage;
        }
        let log = cause.downcast_ref::<LogError>().or_else(|| {
            match cause.downcast_ref::<actors::Error>() {
                Some(actors::Error::Log(error)) => Some(error),
                _ => None,
            }
        });
        match log {
            Some(
                LogError::Damaged { .. }
                | LogError::Blob { .. }
                | LogError::Archive { .. }
                | LogError::Newer { .. },
            ) => return Exit::Damaged,
            Some(LogError::Owned { .. } | LogError::InUse { .. }) => return Exit::Owned,
            // Refused by this program, not by the system: another call is what helps.
            Some(LogError::Io { cause, .. })
                if cause.kind() == std::io::ErrorKind::InvalidInput
                    && cause.raw_os_error().is_none() =>
            {
                return Exit::Usage;
            }
            Some(LogError::Io { .. } | LogError::DiskFull { .. }) => return Exit::World,
            None => {}
        }
        if cause.is::<events::state::Illegal>() {
            return Exit::Damaged;
        }
    }
    Exit::World
}
