//! Packets with file descriptors over Unix sockets, and memory files.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};

use crate::error::Error;

/// Largest packet of JSON that is accepted.
const MAX_PACKET: usize = 192 * 1024;
const PAGE: usize = 4096;
/// Memory from this size on is asked for in large pages.
const LARGE: usize = 4 << 20;
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

/// The content of a memory file that a worker sent; `None` if it is larger than `limit` or shrinks
/// while it is read. Never mapped: a worker that still holds it could cut it under our feet.
pub fn read_memory_file(fd: OwnedFd, limit: u64) -> Option<Vec<u8>> {
    let file = std::fs::File::from(fd);
    let length = file.metadata().ok()?.len();
    if length > limit {
        return None;
    }
    let mut data = zeroes(usize::try_from(length).ok()?);
    file.read_exact_at(&mut data, 0).ok()?;
    Some(data)
}

/// Memory for what is read, in large pages where it is large: they are there sooner.
fn zeroes(length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    let skipped = data.as_ptr().align_offset(PAGE);
    if length > LARGE && skipped < length {
        // SAFETY: the range lies in the vector's own memory; the advice changes no content.
        unsafe {
            libc::madvise(
                data.as_mut_ptr().add(skipped).cast(),
                (length - skipped) / PAGE * PAGE,
                libc::MADV_HUGEPAGE,
            );
        }
    }
    data
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
