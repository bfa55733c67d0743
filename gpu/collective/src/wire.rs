//! One socket between two ranks. A frame is its length (8 bytes, little-endian) and that many bytes.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::error::{Error, Loss, Result};

/// A frame is a request or a few numbers; what is longer is no frame.
const FRAME_MAX: u64 = 1 << 32;

/// A socket to rank `to`.
pub(crate) struct Wire {
    stream: UnixStream,
    to: usize,
}

impl Wire {
    pub(crate) fn new(stream: UnixStream, to: usize) -> Self {
        Wire { stream, to }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    fn lost(&self, error: &std::io::Error) -> Error {
        use std::io::ErrorKind::{
            BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock,
        };
        let problem = match error.kind() {
            WouldBlock | TimedOut => Loss::Silent,
            UnexpectedEof | BrokenPipe | ConnectionReset => Loss::Ended(None),
            _ => Loss::Broken(error.to_string()),
        };
        Error::Lost { rank: self.to, problem }
    }

    /// How long a byte may take to come or go; `None` is for ever.
    pub(crate) fn patience(&self, time: Option<Duration>) -> Result<()> {
        let both = self.stream.set_read_timeout(time).and(self.stream.set_write_timeout(time));
        both.map_err(|e| self.lost(&e))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).map_err(|e| self.lost(&e))
    }

    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<()> {
        self.stream.read_exact(into).map_err(|e| self.lost(&e))
    }

    pub(crate) fn send(&mut self, frame: &[u8]) -> Result<()> {
        self.write(&(frame.len() as u64).to_le_bytes())?;
        self.write(frame)
    }

    pub(crate) fn receive(&mut self) -> Result<Vec<u8>> {
        let ended = Error::Lost { rank: self.to, problem: Loss::Ended(None) };
        self.receive_if_any()?.ok_or(ended)
    }

    /// The next frame; `None` if the other side has ended before one.
    pub(crate) fn receive_if_any(&mut self) -> Result<Option<Vec<u8>>> {
        let mut length = [0; 8];
        let first = loop {
            match self.stream.read(&mut length) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other.map_err(|e| self.lost(&e))?,
            }
        };
        if first == 0 {
            return Ok(None);
        }
        self.read(&mut length[first..])?;
        let length = u64::from_le_bytes(length);
        if length > FRAME_MAX {
            let problem = Loss::Broken(format!("a frame of {length} bytes"));
            return Err(Error::Lost { rank: self.to, problem });
        }
        let mut frame = vec![0; length as usize];
        self.read(&mut frame)?;
        Ok(Some(frame))
    }
}
