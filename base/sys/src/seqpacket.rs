//! Packets with file descriptors, over `SOCK_SEQPACKET` sockets.
//!
//! It receives by `recvmsg`: the available safe wrappers do not return descriptors received with truncated
//! control data, which would stay open for ever.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::clock;
use crate::fd::{above_standard, made};

/// Maximum descriptors of one packet (`SCM_MAX_FD`). With room for all of them, the kernel closes none
/// itself.
pub const FDS_MAX: usize = 253;
// SAFETY: CMSG_SPACE only computes.
const CONTROL_BYTES: usize =
    unsafe { libc::CMSG_SPACE((FDS_MAX * size_of::<RawFd>()) as libc::c_uint) } as usize;

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// Bytes of it in the buffer. 0: it was empty, or the other side has closed the socket.
    pub length: usize,
    /// The received descriptors, none below 3.
    pub fds: Vec<OwnedFd>,
    /// Whether no descriptor was lost because of this process's limit.
    pub complete: bool,
}

/// Makes a pair of connected sockets.
///
/// # Errors
/// Those of the kernel.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are new and have no other owner.
    let [one, other] = fds.map(|fd| unsafe { made(fd) });
    Ok((one?, other?))
}

/// Sends one packet, the concatenation of the parts. `flags` are those of `sendmsg`; a signal does not
/// interrupt the call, and it raises no SIGPIPE.
///
/// # Errors
/// `WouldBlock`: with `MSG_DONTWAIT` and no room. `InvalidInput`: more than [`FDS_MAX`] descriptors. Others:
/// the other side has closed the socket, or those of the kernel.
pub fn send(socket: RawFd, parts: &[IoSlice<'_>], fds: &[RawFd], flags: i32) -> io::Result<()> {
    if fds.len() > FDS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control = MaybeUninit::<Control>::uninit();
    // SAFETY: all fields of a msghdr may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // `IoSlice` has the layout of `iovec`, by its documentation.
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len() as _;
    if !fds.is_empty() {
        let bytes = size_of_val(fds) as u32;
        message.msg_control = control
            .write(Control([0; CONTROL_BYTES]))
            .0
            .as_mut_ptr()
            .cast();
        // SAFETY: the buffer has room for FDS_MAX descriptors, and is aligned for the header.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let to = libc::CMSG_DATA(header);
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), to, bytes as usize);
        }
    }
    loop {
        // SAFETY: the message points to buffers that outlive the call.
        let sent = unsafe {
            crate::uncancelled::sendmsg(socket, &raw const message, flags | libc::MSG_NOSIGNAL)
        };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Receives one packet with its descriptors. `flags` are those of `recvmsg`.
///
/// # Errors
/// `WouldBlock`: with `MSG_DONTWAIT` and no packet. Others: those of the kernel.
pub fn receive(socket: RawFd, buffer: &mut [u8], flags: i32) -> io::Result<Packet> {
    let mut control = MaybeUninit::<Control>::uninit();
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all fields of a msghdr may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message points to two buffers of the stated sizes that outlive the call.
    let got = unsafe { crate::uncancelled::recvmsg(socket, &raw mut message, flags) };
    let length = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has just filled this message, and no descriptor was taken from it.
    let arrived = unsafe { take_fds(&message) };
    let expected = arrived.len();
    let fds: Vec<OwnedFd> = arrived
        .into_iter()
        .filter_map(|fd| above_standard(fd).ok())
        .collect();
    let complete = fds.len() == expected && message.msg_flags & libc::MSG_CTRUNC == 0;
    Ok(Packet {
        length,
        fds,
        complete,
    })
}

/// Takes ownership of every descriptor of a message, even if the message is invalid.
///
/// # Safety
/// `message` is as `recvmsg` left it, its control buffer is alive, and no descriptor in it has been taken before.
unsafe fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the message is as `recvmsg` left it; so is every step of the walk.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give null or a header inside the control buffer, which is
        // aligned for it.
        let (level, kind, length) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len as usize,
            )
        };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN only computes.
            let overhead = unsafe { libc::CMSG_LEN(0) } as usize;
            // SAFETY: the data of the header follow it in the same buffer.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            for place in 0..length.saturating_sub(overhead) / size_of::<RawFd>() {
                // SAFETY: `length` bounds the data that the kernel has written.
                let fd = unsafe { data.add(place).read_unaligned() };
                // SAFETY: the kernel made this descriptor for this process, and it has no other owner.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    fds
}

/// Waits until the socket is readable or closed. False on timeout.
pub fn wait(socket: RawFd, time: Duration) -> bool {
    let wanted = libc::pollfd {
        fd: socket,
        events: libc::POLLIN,
        revents: 0,
    };
    clock::poll(&mut [wanted], Some(time)) > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd::Identity;
    use std::os::fd::AsRawFd;

    #[test]
    fn packets_keep_their_bounds_and_descriptors() {
        let (ours, theirs) = pair().unwrap();
        let (ours, theirs) = (ours.as_raw_fd(), theirs.as_raw_fd());
        let mut buffer = [0; 8];
        let none = receive(ours, &mut buffer, libc::MSG_DONTWAIT);
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!wait(ours, Duration::ZERO));
        for count in [0, 1, 100, FDS_MAX] {
            let parts = [IoSlice::new(b"ab"), IoSlice::new(b"c")];
            send(theirs, &parts, &vec![theirs; count], 0).unwrap();
            send(theirs, &parts[1..], &[], 0).unwrap();
            assert!(wait(ours, Duration::ZERO));
            let packet = receive(ours, &mut buffer, 0).unwrap();
            assert_eq!(&buffer[..packet.length], b"abc");
            assert!(packet.complete);
            assert_eq!(packet.fds.len(), count);
            for fd in packet.fds {
                assert_eq!(Identity::of(fd.as_raw_fd()), Identity::of(theirs));
            }
            let packet = receive(ours, &mut buffer, 0).unwrap();
            assert_eq!((packet.length, packet.fds.len()), (1, 0));
        }
        let many = send(theirs, &[IoSlice::new(b"x")], &[theirs; FDS_MAX + 1], 0);
        assert_eq!(many.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn the_end_of_the_other_side_is_seen() {
        let (ours, theirs) = pair().unwrap();
        drop(theirs);
        assert!(wait(ours.as_raw_fd(), Duration::ZERO));
        assert_eq!(receive(ours.as_raw_fd(), &mut [0; 8], 0).unwrap().length, 0);
        assert!(send(ours.as_raw_fd(), &[IoSlice::new(b"x")], &[], 0).is_err());
    }
}
