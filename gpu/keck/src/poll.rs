//! Waiting for descriptors with a deadline.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::Error;

/// What ended the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The descriptor at this place can be read or is closed.
    At(usize),
    /// Nothing happened in time.
    TimedOut,
}

/// Waits until one of `fds` can be read; the first in order wins.
pub fn wait(fds: &[BorrowedFd<'_>], timeout: Duration) -> Result<Ready, Error> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let millis = u16::try_from(left.as_millis().saturating_add(1)).unwrap_or(u16::MAX);
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        match poll(&mut polled, PollTimeout::from(millis)) {
            Ok(0) if left.is_zero() => return Ok(Ready::TimedOut),
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(Error::errno("waiting for a worker")(error)),
        }
        let happened = polled.iter().position(|p| p.any().unwrap_or(false));
        if let Some(place) = happened {
            return Ok(Ready::At(place));
        }
    }
}
