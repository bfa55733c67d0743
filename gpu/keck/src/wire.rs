//! Packets with file descriptors over Unix sockets, and memory files.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use memmap2::Mmap;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};

use crate::error::Error;

/// Largest packet of JSON that is accepted.
const MAX_PACKET: usize = 192 * 1024;
/// Files from this size on are sealed and mapped; smaller ones are read, so that no descriptor is kept.
const LARGE: u64 = 4 << 20;
/// Most descriptors in one packet.
const MAX_FDS: usize = 16;

/// A pair of connected packet sockets, closed on exec.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Error> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map_err(Error::errno("making a socket pair"))
}

/// A memory file that holds `data`.
pub fn memory_file(data: &[u8]) -> Result<OwnedFd, Error> {
    let fd = memfd_create("keck", MFdFlags::MFD_CLOEXEC)
        .map_err(Error::errno("making a memory file"))?;
    let file = std::fs::File::from(fd);
    file.write_all_at(data, 0).map_err(Error::system("filling a memory file"))?;
    Ok(file.into())
}

/// What a worker handed over, unchangeable from then on.
#[derive(Debug)]
pub struct Content(Kept);

#[derive(Debug)]
enum Kept {
    Read(Vec<u8>),
    /// Nobody can write to the file or cut it any more, so the map is as good as memory of our own.
    Sealed(OwnedFd, Mmap),
}

impl Content {
    /// The content of a memory file that a worker sent; `None` if it is larger than `limit`, shrinks
    /// while it is read, or is large and can still be changed by whoever has made it.
    pub fn of(fd: OwnedFd, limit: u64) -> Option<Self> {
        let file = std::fs::File::from(fd);
        let length = file.metadata().ok()?.len();
        if length > limit {
            return None;
        }
        if length < LARGE {
            let mut data = vec![0; usize::try_from(length).ok()?];
            file.read_exact_at(&mut data, 0).ok()?;
            return Some(Self(Kept::Read(data)));
        }
        let seals = SealFlag::F_SEAL_WRITE
            | SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).ok()?;
        // SAFETY: the seals that the kernel has just set forbid every change of the file.
        let map = unsafe { memmap2::MmapOptions::new().populate().map(&file) }.ok()?;
        (map.len() as u64 <= limit).then(|| Self(Kept::Sealed(file.into(), map)))
    }

    /// As it is handed to another worker.
    pub fn handed(&self) -> Handed<'_> {
        match &self.0 {
            Kept::Read(data) => Handed::Bytes(data),
            Kept::Sealed(file, _) => Handed::File(file.as_fd()),
        }
    }
}

impl Default for Content {
    fn default() -> Self {
        Self(Kept::Read(Vec::new()))
    }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kept::Read(data) => data,
            Kept::Sealed(_, map) => map,
        }
    }
}

/// What a worker is given with a question.
#[derive(Clone, Copy, Debug)]
pub enum Handed<'a> {
    /// Put into a new memory file.
    Bytes(&'a [u8]),
    /// A sealed file.
    File(BorrowedFd<'a>),
}

impl<'a> From<&'a [u8]> for Handed<'a> {
    fn from(data: &'a [u8]) -> Self {
        Self::Bytes(data)
    }
}

/// Sends one packet.
pub fn send(socket: BorrowedFd<'_>, packet: &[u8], fds: &[RawFd]) -> nix::Result<()> {
    let io = [IoSlice::new(packet)];
    let rights = [ControlMessage::ScmRights(fds)];
    let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(socket.as_raw_fd(), &io, control, flags, None).map(|_| ())
}

/// Receives one packet; an empty one means that the other side has gone.
pub fn receive(socket: BorrowedFd<'_>) -> nix::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut packet = vec![0; MAX_PACKET];
    let mut space = nix::cmsg_space!([RawFd; MAX_FDS]);
    let mut fds = Vec::new();
    let length = {
        let mut io = [IoSliceMut::new(&mut packet)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<()>(socket.as_raw_fd(), &mut io, Some(&mut space), flags)?;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(received) = control {
                // SAFETY: the kernel has just made these descriptors for this process.
                fds.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        message.bytes
    };
    packet.truncate(length);
    Ok((packet, fds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(length: u64, flags: MFdFlags) -> OwnedFd {
        let fd = memfd_create("keck", flags).unwrap();
        nix::unistd::ftruncate(&fd, i64::try_from(length).unwrap()).unwrap();
        fd
    }

    #[test]
    fn large_files_are_sealed_for_whoever_holds_them() {
        let fd = file(LARGE, MFdFlags::MFD_ALLOW_SEALING);
        let other = std::fs::File::from(fd.try_clone().unwrap());
        let content = Content::of(fd, LARGE).unwrap();
        assert_eq!(content.len() as u64, LARGE);
        assert!(other.write_all_at(b"changed", 0).is_err());
        assert!(other.set_len(0).is_err() && other.set_len(2 * LARGE).is_err());
        // SAFETY: nobody reads what is mapped.
        assert!(unsafe { memmap2::MmapMut::map_mut(&other) }.is_err());
        assert!(matches!(content.handed(), Handed::File(_)));
    }

    #[test]
    fn files_that_can_still_change_are_refused() {
        let fd = file(LARGE, MFdFlags::MFD_ALLOW_SEALING);
        // SAFETY: nobody reads what is mapped.
        let held = unsafe { memmap2::MmapMut::map_mut(&fd) }.unwrap();
        assert!(Content::of(fd, LARGE).is_none(), "someone still has it mapped to write");
        drop(held);
        assert!(Content::of(file(LARGE, MFdFlags::empty()), LARGE).is_none(), "cannot be sealed");
        assert!(Content::of(file(LARGE + 1, MFdFlags::MFD_ALLOW_SEALING), LARGE).is_none());
        let small = Content::of(file(5, MFdFlags::empty()), 5).unwrap();
        assert_eq!((&*small, matches!(small.handed(), Handed::Bytes(_))), (&[0; 5][..], true));
    }
}
