//! Rank 0 starts the other ranks: its own program with its own command line.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::star::Star;

/// The environment variable that says which rank a process was started as.
pub const RANK: &str = "KERNELZERO_RANK";

/// Starts ranks 1 to `world - 1`, each with a socket to this process as its standard input and nothing as
/// its output. They die with this process's calling thread.
///
/// # Errors
/// One cannot be started or does not answer within the deadline.
pub fn start(world: usize, deadline: Duration) -> Result<Star> {
    let failed = |e: std::io::Error| Error::Start(e.to_string());
    let program = std::env::current_exe().map_err(failed)?;
    let mut others = Vec::new();
    for rank in 1..world {
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let child = Command::new(&program)
            .args(std::env::args_os().skip(1))
            .env(RANK, rank.to_string())
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        others.push((ours, Some(child)));
    }
    Star::hub(others, deadline)
}

/// The links of a process that [`start`] started; `None` in any other.
///
/// # Errors
/// The variable [`RANK`] is set and rank 0 is not behind standard input.
pub fn join(world: usize, deadline: Duration) -> Result<Option<Star>> {
    let Some(word) = std::env::var_os(RANK) else { return Ok(None) };
    let rank = word.to_str().and_then(|w| w.parse().ok()).filter(|r| (1..world).contains(r));
    let Some(rank) = rank else {
        let text = format!("{RANK}={} is no rank of {world}: unset it", word.to_string_lossy());
        return Err(Error::Start(text));
    };
    // The kernel ends us with rank 0; the end of the socket says the same a little later.
    // SAFETY: this call takes a signal number and touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let hub = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let hub = hub.map_err(|e| Error::Start(format!("standard input: {e}")))?;
    Star::spoke(rank, world, hub, deadline).map(Some)
}
