//! One packet in, one packet out, with descriptors beside it.
//!
//! Receiving is done with plain `recvmsg`: the safe wrapper at hand does not give out descriptors that
//! arrived with truncated control data, and they would stay open for ever.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use kagent_proto::{FDS_MAX, MESSAGE_BYTES_MAX};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockFlag, accept4, sendmsg};

/// Room for more descriptors than are allowed, so that one too many is seen and closed by us.
const FDS_ROOM: usize = 2 * FDS_MAX + 2;
// SAFETY: CMSG_SPACE only computes.
const CONTROL_BYTES: usize =
    unsafe { libc::CMSG_SPACE((FDS_ROOM * size_of::<RawFd>()) as libc::c_uint) } as usize;

/// Room for a packet; one byte more than allowed, so that a packet which is too long does not look
/// like one of the right length.
pub(crate) type PacketBuffer = [u8; MESSAGE_BYTES_MAX + 1];

#[repr(C, align(8))]
struct ControlBuffer([u8; CONTROL_BYTES]);

/// What a socket had for us.
#[derive(Debug)]
pub(crate) enum Received {
    /// A packet of so many bytes, with its descriptors; `None` if they were too many or got lost.
    Packet(usize, Option<Vec<OwnedFd>>),
    /// Nothing for now.
    Nothing,
    /// The other end is closed, and everything has been read.
    End,
}

/// Lets in the next process that has knocked.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes one packet from a socket.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut PacketBuffer,
) -> Result<Received, Errno> {
    let mut control = ControlBuffer([0; CONTROL_BYTES]);
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all fields of a msghdr may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message points to two buffers of the stated sizes that outlive the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let got = match Errno::result(got) {
        Err(Errno::EAGAIN) => return Ok(Received::Nothing),
        other => other? as usize,
    };
    // SAFETY: the kernel has just filled this message, and nobody has looked at it before.
    let fds = unsafe { take_fds(&message) };
    if got == 0 && fds.is_empty() && at_end(socket) {
        return Ok(Received::End);
    }
    let whole = message.msg_flags & libc::MSG_CTRUNC == 0 && fds.len() <= FDS_MAX;
    Ok(Received::Packet(got, whole.then_some(fds)))
}

/// Owns every descriptor that came with a message, whatever the message is worth.
///
/// # Safety
///
/// `message` is as `recvmsg` left it, its control buffer is alive, and no descriptor in it has been
/// taken before.
unsafe fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the message is as `recvmsg` left it; so is every step of the walk.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give null or a header inside the control buffer,
        // which is aligned for it.
        let (level, kind, len) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len as usize,
            )
        };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN only computes.
            let overhead = unsafe { libc::CMSG_LEN(0) } as usize;
            // SAFETY: the data of the header lie behind it in the same buffer.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            for i in 0..len.saturating_sub(overhead) / size_of::<RawFd>() {
                // SAFETY: `len` bounds the data that the kernel has written.
                let fd = unsafe { data.add(i).read_unaligned() };
                // SAFETY: the kernel made this descriptor for us and nobody else knows it.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    fds
}

/// Tells an empty packet, which is somebody's mistake, from the end. (The safe `poll` at hand knows
/// nothing of `POLLRDHUP` and drops the answer.)
fn at_end(socket: BorrowedFd<'_>) -> bool {
    let mut set = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one entry, as stated, that outlives the call.
    let ready = unsafe { libc::poll(&raw mut set, 1, 0) };
    let gone = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    ready < 0 || set.revents & gone != 0
}

/// Sends one packet; `Ok(false)` when there is no room for it now.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd]) -> Result<bool, Errno> {
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() {
        &rights[..0]
    } else {
        &rights[..]
    };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    loop {
        let parts = [IoSlice::new(bytes)];
        match sendmsg::<()>(socket.as_raw_fd(), &parts, control, flags, None) {
            Ok(_) => return Ok(true),
            Err(Errno::EAGAIN) => return Ok(false),
            Err(Errno::EINTR) => {}
            Err(cause) => return Err(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::{AddressFamily, Shutdown, SockFlag, SockType, shutdown, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let kind = SockType::SeqPacket;
        socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap()
    }

    #[test]
    fn packets_keep_their_bounds_and_descriptors() {
        let (ours, theirs) = pair();
        let mut buffer = [0; MESSAGE_BYTES_MAX + 1];
        assert!(matches!(
            receive(ours.as_fd(), &mut buffer),
            Ok(Received::Nothing)
        ));
        let fd = theirs.as_raw_fd();
        for count in [0, 1, FDS_MAX, FDS_MAX + 1, FDS_ROOM, FDS_ROOM + 1, 100] {
            assert_eq!(send(theirs.as_fd(), b"abc", &vec![fd; count]), Ok(true));
            let Ok(Received::Packet(3, fds)) = receive(ours.as_fd(), &mut buffer) else {
                panic!("no packet with {count} descriptors");
            };
            let expected = (count <= FDS_MAX).then_some(count);
            assert_eq!(fds.map(|fds| fds.len()), expected, "{count} descriptors");
        }
        // Too long, empty, and the end.
        assert_eq!(send(theirs.as_fd(), &[7; 2000], &[]), Ok(true));
        assert_eq!(send(theirs.as_fd(), &[], &[]), Ok(true));
        let got = receive(ours.as_fd(), &mut buffer);
        assert!(matches!(got, Ok(Received::Packet(len, _)) if len == MESSAGE_BYTES_MAX + 1));
        assert!(matches!(
            receive(ours.as_fd(), &mut buffer),
            Ok(Received::Packet(0, _))
        ));
        // Not by closing it: a process that another test is just starting may have a copy.
        shutdown(theirs.as_raw_fd(), Shutdown::Both).unwrap();
        let got = receive(ours.as_fd(), &mut buffer);
        assert!(matches!(got, Ok(Received::End)), "{got:?}");
    }

    #[test]
    fn no_descriptor_leaks() {
        let open_fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (ours, theirs) = pair();
        let mut buffer = [0; MESSAGE_BYTES_MAX + 1];
        let marker = std::fs::File::open("/dev/null").unwrap();
        let mut leaked = usize::MAX;
        // Other tests of this process open and close descriptors too; a leak shows every time.
        for _ in 0..20 {
            let before = open_fds();
            for count in [FDS_MAX, FDS_ROOM, 50] {
                send(theirs.as_fd(), b"x", &vec![marker.as_raw_fd(); count]).unwrap();
                drop(receive(ours.as_fd(), &mut buffer).unwrap());
            }
            leaked = leaked.min(open_fds().saturating_sub(before));
        }
        assert_eq!(leaked, 0);
    }
}
