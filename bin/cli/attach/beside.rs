//! What passes lines to an attached program, each in a thread of its own.

use std::io::{self, BufReader, Write};
use std::process::ChildStdin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use actors::attached::{DAEMON_ENDS, Feed, Reply};
use anyhow::Result;
use events::ids::Seq;
use events::log::Log;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use store::FileLog;

use super::POLL;
use crate::attach::client::next;

/// How long a program that was sent away may go on.
const GRACE: Duration = Duration::from_secs(10);

/// What the threads beside the program share.
pub(super) struct Beside {
    /// Its standard input until it is closed.
    pub input: Mutex<Option<ChildStdin>>,
    /// The daemon writes no more events.
    pub daemon_gone: AtomicBool,
    /// The program wants no more.
    pub left: AtomicBool,
    /// Why the daemon sent it away, if it did.
    pub why: Mutex<Option<String>>,
}

impl Beside {
    fn input(&self) -> MutexGuard<'_, Option<ChildStdin>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line to the program; whether it takes any more.
    pub fn send(&self, reply: &Reply) -> bool {
        let mut input = self.input();
        let taken = input.as_mut().is_some_and(|input| {
            let written: io::Result<()> = input.write_all(reply.to_line().as_bytes());
            written.and_then(|()| input.flush()).is_ok()
        });
        if !taken {
            *input = None;
        }
        taken
    }

    pub fn because(&self, why: &str) {
        let mut known = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_with(|| why.to_owned());
    }

    /// Why the daemon sent it away, if it did so before its own end.
    pub fn sent_away(&self) -> Option<String> {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        why.clone().filter(|why| why != DAEMON_ENDS)
    }

    /// Ends a program that was sent away and goes on: one that does not read would never know.
    pub fn see_off(&self, process: Pid) {
        let mut since = None;
        while !self.left.load(Ordering::SeqCst) {
            if self.sent_away().is_some() {
                let since = *since.get_or_insert_with(Instant::now);
                let signal = match since.elapsed() {
                    waited if waited > GRACE + GRACE => Some(Signal::SIGKILL),
                    waited if waited > GRACE => Some(Signal::SIGTERM),
                    _ => None,
                };
                if let Some(signal) = signal {
                    let _ = kill(process, signal);
                }
            }
            std::thread::sleep(POLL);
        }
    }

    /// Passes on what the daemon answers.
    pub fn answers(&self, mut lines: BufReader<std::os::unix::net::UnixStream>) {
        while let Ok(Some(reply)) = next(&mut lines) {
            match reply {
                Reply::Answer(_) => {
                    self.send(&reply);
                }
                Reply::End { why } => self.because(&why),
                _ => {}
            }
        }
        self.daemon_gone.store(true, Ordering::SeqCst);
    }

    /// Passes on events until the log is over or the program takes no more.
    pub fn events(&self, log: &FileLog, mut feed: Feed, last: Seq) -> Result<()> {
        let mut catching_up = true;
        while !self.left.load(Ordering::SeqCst) {
            let gone = self.daemon_gone.load(Ordering::SeqCst);
            let read = feed.next(log as &dyn Log)?;
            let dry = read.is_none();
            for recorded in read.into_iter().flatten() {
                if !self.send(&Reply::Event(Box::new(recorded))) {
                    return Ok(());
                }
            }
            if catching_up && (dry || feed.after() >= last) {
                catching_up = false;
                self.send(&Reply::CaughtUp(last));
            }
            if dry && gone {
                let said = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let why = said.unwrap_or_else(|| "the daemon ended".to_owned());
                self.send(&Reply::End { why });
                *self.input() = None;
                return Ok(());
            }
            if dry {
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }
}
