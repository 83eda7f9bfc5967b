//! Packets with descriptors over `SOCK_SEQPACKET` sockets. No call blocks: a socket belongs to two
//! processes, and the other one must not be able to hold this one up.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

use vipl_plugin_sdk::shm::made;

/// Descriptors that one packet brings at most.
pub const FDS_MAX: usize = 3;
const CONTROL_BYTES: usize = 64;

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Makes a pair of connected sockets.
///
/// # Errors
/// Those of the kernel.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors, which are ours if the call succeeds.
    unsafe {
        if libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let (one, other) = (made(fds[0]), made(fds[1]));
        Ok((one?, other?))
    }
}

/// Sends one packet.
///
/// # Errors
/// `WouldBlock`: the other side does not read. Others: it has gone.
pub fn send(socket: RawFd, packet: &[u8], fds: &[RawFd]) -> io::Result<()> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec {
        iov_base: packet.as_ptr().cast_mut().cast(),
        iov_len: packet.len(),
    };
    // SAFETY: the message points to valid memory; the control buffer has room for FDS_MAX descriptors.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let bytes = size_of_val(&fds[..fds.len().min(FDS_MAX)]) as u32;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let to = libc::CMSG_DATA(header);
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), to, bytes as usize);
        }
        libc::sendmsg(
            socket,
            &raw const message,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Takes one packet: its bytes, and the descriptors that came with it. 0 bytes: the other side has gone.
///
/// # Errors
/// `WouldBlock`: there is none.
pub fn receive(socket: RawFd, packet: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec {
        iov_base: packet.as_mut_ptr().cast(),
        iov_len: packet.len(),
    };
    let mut fds = Vec::new();
    // SAFETY: the message points to valid memory; descriptors that the kernel has put there are ours.
    let received = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let received = libc::recvmsg(socket, &raw mut message, flags);
        let mut header = if received < 0 {
            std::ptr::null_mut()
        } else {
            libc::CMSG_FIRSTHDR(&raw const message)
        };
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for place in 0..bytes / size_of::<RawFd>() {
                    let from = libc::CMSG_DATA(header).cast::<RawFd>().add(place);
                    fds.push(made(from.read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        received
    };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    let fds: io::Result<_> = fds.into_iter().collect();
    Ok((received as usize, fds?))
}

/// Waits until the socket has something, or has gone. False: the time has run out.
pub fn wait(socket: RawFd, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd {
        fd: socket,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&raw mut poll, 1, timeout_ms) > 0 }
}
