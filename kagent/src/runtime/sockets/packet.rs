//! Receiving and sending one packet with its descriptors.
//!
//! Descriptors that processes send are received by a [`helper`](crate::runtime::helpers::program), since
//! closing them may take arbitrarily long. Therefore the agent inspects a packet before it receives it.

use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use kagent_proto::MESSAGE_BYTES_MAX;
use nix::errno::Errno;
use nix::sys::socket::{SockFlag, accept4, setsockopt, sockopt};
use vipl_sys::{clock, seqpacket};

use crate::runtime::error::errno;
use crate::runtime::sockets::option;

/// Socket option (Linux 6.16): whether the other end may send descriptors.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Size of a buffer for a packet: one byte more than allowed, so that a packet that is too long is not taken
/// for one of the correct length.
pub(crate) const PACKET_BYTES: usize = MESSAGE_BYTES_MAX + 1;

/// The result of receiving.
#[derive(Debug)]
pub(crate) enum Received<T> {
    /// A packet of this length, and its attachments.
    Packet(usize, T),
    /// Nothing for now.
    Nothing,
    /// The other end is closed, and everything has been read.
    End,
}

/// Whether a packet carries descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// None, and the packet has been received.
    Nothing,
    /// Some: the packet is still queued.
    Descriptors,
}

/// Descriptors received with a packet.
#[derive(Debug)]
pub(crate) struct Descriptors {
    pub(crate) fds: Vec<OwnedFd>,
    /// None was lost.
    pub(crate) whole: bool,
}

/// Permits or forbids sending descriptors through this socket, and through those that it accepts. Kernels
/// before 6.16 do not support it.
pub(crate) fn allow_descriptors(socket: BorrowedFd<'_>, allow: bool) {
    let allow = libc::c_int::from(allow);
    let _ = option::set(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, &allow);
}

/// Accepts the next pending connection.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Receives one packet, unless it carries descriptors.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8; PACKET_BYTES],
) -> Result<Received<Beside>, Errno> {
    let seen = message(socket, buffer, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    let (_, flags) = match seen {
        Err(Errno::EAGAIN) => return Ok(Received::Nothing),
        other => other?,
    };
    if flags & libc::MSG_CTRUNC != 0 {
        return Ok(Received::Packet(0, Beside::Descriptors));
    }
    // No one else reads this socket, so it is the same packet.
    match message(socket, buffer, libc::MSG_DONTWAIT) {
        Err(Errno::EAGAIN) => Ok(Received::Nothing),
        Ok((0, _)) if at_end(socket) => Ok(Received::End),
        Ok((length, _)) => Ok(Received::Packet(length, Beside::Nothing)),
        Err(cause) => Err(cause),
    }
}

/// Receives one packet with its descriptors. For sockets whose other end is trusted, and for helpers.
pub(crate) fn receive_all<const BYTES: usize>(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8; BYTES],
    wait: bool,
) -> Result<Received<Descriptors>, Errno> {
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    let packet = match seqpacket::receive(socket.as_raw_fd(), buffer, flags) {
        Err(cause) if cause.kind() == ErrorKind::WouldBlock => return Ok(Received::Nothing),
        other => other.map_err(|cause| errno(&cause))?,
    };
    if packet.length == 0 && packet.fds.is_empty() && at_end(socket) {
        return Ok(Received::End);
    }
    let (fds, whole) = (packet.fds, packet.complete);
    Ok(Received::Packet(packet.length, Descriptors { fds, whole }))
}

/// Whether a shut-down socket is empty, so that closing it closes no other descriptor.
pub(crate) fn is_empty(socket: BorrowedFd<'_>) -> bool {
    // A length of 0 may be the end or an empty packet. With PassCred an empty packet carries the credentials
    // of its sender, for which there is no room.
    if setsockopt(&socket, sockopt::PassCred, &true).is_err() {
        return false;
    }
    let mut buffer = [0; PACKET_BYTES];
    loop {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        return match message(socket, &mut buffer, flags) {
            Ok((length, flags)) => length == 0 && flags & libc::MSG_CTRUNC == 0,
            Err(Errno::EAGAIN) => true,
            // This error is reported once.
            Err(Errno::ECONNRESET | Errno::EINTR) => continue,
            Err(_) => false,
        };
    }
}

/// `recvmsg` without room for descriptors: the length and flags of the packet.
fn message(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> Result<(usize, libc::c_int), Errno> {
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all fields of a msghdr may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    // SAFETY: the message points to a buffer of the stated size that outlives the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    Ok((Errno::result(got)? as usize, message.msg_flags))
}

/// Distinguishes the end from an empty packet, which is an error of the sender. (The safe `poll` of nix does
/// not know `POLLRDHUP`.)
fn at_end(socket: BorrowedFd<'_>) -> bool {
    let mut set = [libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    }];
    let ready = clock::poll(&mut set, Some(Duration::ZERO));
    let gone = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    ready < 0 || set[0].revents & gone != 0
}

/// Sends one packet; `Ok(false)` if there is no room for it now.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd]) -> Result<bool, Errno> {
    send_flagged(socket, bytes, fds, libc::MSG_DONTWAIT)
}

/// Sends one packet and waits for room. For helpers.
pub(crate) fn send_waiting(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[RawFd],
) -> Result<bool, Errno> {
    send_flagged(socket, bytes, fds, 0)
}

fn send_flagged(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[RawFd],
    flags: libc::c_int,
) -> Result<bool, Errno> {
    match seqpacket::send(socket.as_raw_fd(), &[IoSlice::new(bytes)], fds, flags) {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(cause) => Err(errno(&cause)),
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
        let mut buffer = [0; PACKET_BYTES];
        assert!(matches!(
            receive(ours.as_fd(), &mut buffer),
            Ok(Received::Nothing)
        ));
        assert_eq!(send(theirs.as_fd(), b"abc", &[]), Ok(true));
        assert!(matches!(
            receive(ours.as_fd(), &mut buffer),
            Ok(Received::Packet(3, Beside::Nothing))
        ));
        let fd = theirs.as_raw_fd();
        for count in [1, 2, 100, seqpacket::FDS_MAX] {
            assert_eq!(send(theirs.as_fd(), b"abc", &vec![fd; count]), Ok(true));
            // Seen at each check, and received once.
            for _ in 0..2 {
                let seen = receive(ours.as_fd(), &mut buffer);
                assert!(
                    matches!(seen, Ok(Received::Packet(_, Beside::Descriptors))),
                    "{count} descriptors: {seen:?}"
                );
            }
            let got = receive_all(ours.as_fd(), &mut buffer, false);
            let Ok(Received::Packet(3, Descriptors { fds, whole: true })) = got else {
                panic!("no packet with {count} descriptors");
            };
            assert_eq!(fds.len(), count);
        }
        // Too long, empty, and the end.
        assert_eq!(send(theirs.as_fd(), &[7; 2000], &[]), Ok(true));
        assert_eq!(send(theirs.as_fd(), &[], &[]), Ok(true));
        let got = receive(ours.as_fd(), &mut buffer);
        assert!(matches!(got, Ok(Received::Packet(PACKET_BYTES, _))));
        assert!(matches!(
            receive(ours.as_fd(), &mut buffer),
            Ok(Received::Packet(0, Beside::Nothing))
        ));
        // Not by closing it: a process that another test is just starting may have a copy.
        shutdown(theirs.as_raw_fd(), Shutdown::Both).unwrap();
        let got = receive(ours.as_fd(), &mut buffer);
        assert!(matches!(got, Ok(Received::End)), "{got:?}");
    }

    #[test]
    fn an_empty_packet_is_not_the_end() {
        for (packets, bytes) in [(0, 0), (1, 0), (3, 0), (1, 5)] {
            let (ours, theirs) = pair();
            for _ in 0..packets {
                send(theirs.as_fd(), &[0; 5][..bytes], &[]).unwrap();
            }
            shutdown(ours.as_raw_fd(), Shutdown::Both).unwrap();
            assert!(send(theirs.as_fd(), b"x", &[]).is_err());
            assert_eq!(is_empty(ours.as_fd()), packets == 0, "{packets} {bytes}");
        }
    }

    #[test]
    fn no_descriptor_leaks() {
        let open_fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (ours, theirs) = pair();
        let mut buffer = [0; PACKET_BYTES];
        let marker = std::fs::File::open("/dev/null").unwrap();
        let mut leaked = usize::MAX;
        // Other tests of this process open and close descriptors too; a leak shows every time.
        for _ in 0..20 {
            let before = open_fds();
            for count in [1, 50, seqpacket::FDS_MAX] {
                send(theirs.as_fd(), b"x", &vec![marker.as_raw_fd(); count]).unwrap();
                receive(ours.as_fd(), &mut buffer).unwrap();
                drop(receive_all(ours.as_fd(), &mut buffer, false).unwrap());
            }
            leaked = leaked.min(open_fds().saturating_sub(before));
        }
        assert_eq!(leaked, 0);
    }
}
