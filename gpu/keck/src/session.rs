//! One worker and the questions put to it, each with a deadline.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::Error;
use crate::poll::{Ready, wait};
use crate::strain::Lingerer;
use crate::wire::{self, Content, Handed};
use crate::zygote::Forked;

/// Printed text that is kept of one worker.
const LOG_MAX: usize = 64 * 1024;

/// And at least this long.
const STARVED_LEAST: Duration = Duration::from_secs(30);
/// A killed worker is gone after this long, even if the driver has much to clear up.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A worker that waits for a processor gets at most this many times its deadline.
const STARVED: u32 = 10;

/// A worker; killed when dropped.
#[derive(Debug)]
pub struct Session {
    forked: Forked,
    file_limit: u64,
    log: Vec<u8>,
    /// It has lingered on the device, from then to its end.
    pub lingers: Option<Lingerer>,
    /// It passed a deadline while others lingered, or while it waited for the disk: that says nothing of
    /// it.
    pub disturbed: bool,
    /// Pages that it had read from the disk when it was last asked.
    pages_read: u64,
}

/// What a worker says, with the memory files that came along.
#[derive(Debug)]
pub struct Reply {
    /// The packet.
    pub value: Value,
    /// Content of the memory files by name.
    pub blobs: Vec<(String, Content)>,
}

impl Reply {
    /// Takes the memory file of a name.
    pub fn take(&mut self, name: &str) -> Option<Content> {
        let place = self.blobs.iter().position(|(n, _)| n == name)?;
        Some(self.blobs.swap_remove(place).1)
    }
}

/// How a question ended.
#[derive(Debug)]
pub enum Answer {
    /// The worker answered.
    Said(Reply),
    /// The deadline passed; the worker was killed.
    TimedOut,
    /// The worker ended, or sent something that is no answer.
    Gone(&'static str),
}

impl Session {
    /// Takes over a forked worker once it is confined and its device is open. Until then no code of
    /// a candidate exists in it, so whatever goes wrong is the world's fault.
    pub fn start(forked: Forked, file_limit: u64, timeout: Duration) -> Result<Self, Error> {
        let mut session = Self {
            forked,
            file_limit,
            log: Vec::new(),
            lingers: None,
            disturbed: false,
            pages_read: 0,
        };
        match session.hear(timeout)? {
            Answer::Said(reply) if reply.value["ready"] == true => Ok(session),
            Answer::TimedOut => Err(Error::Overloaded("a worker did not get ready".to_owned())),
            _ => {
                let printed = session.printed();
                let last = printed.lines().rfind(|line| !line.trim().is_empty());
                let last = last.unwrap_or("it said nothing");
                Err(Error::WorkerDied(format!("before it was ready: {last}")))
            }
        }
    }

    /// Puts a question and waits for its answer.
    pub fn ask(
        &mut self,
        question: Value,
        blobs: &[(&str, Handed<'_>)],
        timeout: Duration,
    ) -> Result<Answer, Error> {
        self.put(question, blobs)?;
        self.hear(timeout)
    }

    /// Puts a question. That the worker has gone is noticed when it is heard.
    pub fn put(&mut self, mut question: Value, blobs: &[(&str, Handed<'_>)]) -> Result<(), Error> {
        self.pages_read = self.major_faults();
        question["blobs"] = blobs.iter().map(|(name, _)| *name).collect();
        let mut files: Vec<OwnedFd> = Vec::new();
        let mut fds = Vec::new();
        for (_, handed) in blobs {
            match handed {
                Handed::File(file) => fds.push(file.as_raw_fd()),
                Handed::Bytes(data) => {
                    let file = wire::memory_file(data)?;
                    fds.push(file.as_raw_fd());
                    files.push(file);
                }
            }
        }
        let packet = question.to_string();
        let _ = wire::send(self.forked.socket.as_fd(), packet.as_bytes(), &fds);
        Ok(())
    }

    /// Answers something that the worker said in between.
    pub fn tell(&self, packet: &str) {
        // One that has gone is noticed when it is heard.
        let _ = wire::send(self.forked.socket.as_fd(), packet.as_bytes(), &[]);
    }

    /// Waits for what the worker says; kills it at the deadline.
    pub fn hear(&mut self, timeout: Duration) -> Result<Answer, Error> {
        if let Some(answer) = self.listen(timeout)? {
            return Ok(answer);
        }
        self.disturbed |= self.major_faults() > self.pages_read;
        self.kill();
        Ok(Answer::TimedOut)
    }

    /// Waits for what the worker says; none at the deadline.
    pub fn listen(&mut self, timeout: Duration) -> Result<Option<Answer>, Error> {
        let start = Instant::now();
        let delay_before = self.waited_for_cpu();
        let mut printing = true;
        loop {
            // Time in which the worker could run but got no processor is not its own.
            let delay = self.waited_for_cpu().saturating_sub(delay_before);
            let elapsed = start.elapsed();
            let left = timeout.saturating_sub(elapsed.saturating_sub(delay));
            if left.is_zero() {
                return Ok(None);
            }
            if elapsed > timeout * STARVED + STARVED_LEAST {
                self.kill();
                return Err(Error::Overloaded("a worker got no processor".to_owned()));
            }
            let mut fds = vec![self.forked.socket.as_fd(), self.forked.handle.as_fd()];
            if printing {
                fds.push(self.forked.log.as_fd());
            }
            match wait(&fds, left)? {
                Ready::At(0) => return Ok(Some(self.packet())),
                Ready::At(2) => printing = self.drain_log(),
                Ready::At(_) => return Ok(Some(Answer::Gone("it ended without an answer"))),
                // There may be time left if the worker had to wait; the next turn sees it.
                Ready::TimedOut => {}
            }
        }
    }

    /// How long the worker's main thread was ready to run but did not; zero if that is unknown.
    fn waited_for_cpu(&self) -> Duration {
        let nanoseconds = || -> Option<u64> {
            self.about_process("schedstat")?.split_whitespace().nth(1)?.parse().ok()
        };
        Duration::from_nanos(nanoseconds().unwrap_or(0))
    }

    /// Pages that the worker has read from the disk; zero if that is unknown.
    fn major_faults(&self) -> u64 {
        let pages = || -> Option<u64> {
            let stat = self.about_process("stat")?;
            // The name of the program, in brackets, may hold anything.
            stat.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
        };
        pages().unwrap_or(0)
    }

    fn about_process(&self, file: &str) -> Option<String> {
        let handle = self.forked.handle.as_raw_fd();
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{handle}")).ok()?;
        let pid = about.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim();
        std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()
    }

    fn packet(&mut self) -> Answer {
        let Ok((packet, fds)) = wire::receive(self.forked.socket.as_fd()) else {
            return Answer::Gone("its socket failed");
        };
        if packet.is_empty() {
            return Answer::Gone("it ended without an answer");
        }
        let Ok(value) = serde_json::from_slice::<Value>(&packet) else {
            return Answer::Gone("it sent bytes that are no answer");
        };
        let names = value["blobs"].as_array().cloned().unwrap_or_default();
        if names.len() != fds.len() {
            return Answer::Gone("it named other files than it sent");
        }
        let mut blobs = Vec::with_capacity(fds.len());
        for (name, fd) in names.iter().zip(fds) {
            let (Some(name), Some(data)) = (name.as_str(), Content::of(fd, self.file_limit)) else {
                return Answer::Gone(
                    "it handed over more bytes than it may, or can still change them",
                );
            };
            blobs.push((name.to_owned(), data));
        }
        Answer::Said(Reply { value, blobs })
    }

    /// Reads what the worker printed, keeps the first part; false when the pipe is closed.
    fn drain_log(&mut self) -> bool {
        let mut buffer = [0; 8192];
        loop {
            match nix::unistd::read(&self.forked.log, &mut buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    let room = LOG_MAX.saturating_sub(self.log.len()).min(count);
                    self.log.extend_from_slice(&buffer[..room]);
                }
                Err(nix::Error::EINTR) => {}
                Err(_) => return true,
            }
        }
    }

    /// What the worker printed so far. For people: nothing is ever decided from it.
    pub fn printed(&mut self) -> String {
        self.drain_log();
        String::from_utf8_lossy(&self.log).into_owned()
    }

    /// Tells workers apart in the judge's own log.
    pub fn id(&self) -> i32 {
        self.forked.handle.as_raw_fd()
    }

    /// Ends the worker and waits until it has given back what it held, device memory too.
    pub fn end(self) {
        self.kill();
        let _ = wait(&[self.forked.handle.as_fd()], END_TIMEOUT);
    }

    fn kill(&self) {
        // SAFETY: a plain system call on a descriptor that this struct owns.
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.forked.handle.as_raw_fd(),
                libc::SIGKILL,
                std::ptr::null::<libc::c_void>(),
                0,
            );
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.kill();
    }
}
