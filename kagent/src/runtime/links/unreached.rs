//! ICMP errors about datagrams that were not delivered (`IP_RECVERR`).

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};

use crate::runtime::sockets::option;

/// Maximum errors read at a time, since anyone can send them.
const ERRORS_MAX: usize = 16;

/// A host reported as unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreached {
    pub(crate) host: SocketAddr,
    /// The host is up, and nothing listens at the port.
    pub(crate) refused: bool,
}

impl Unreached {
    fn of(host: SocketAddr, error: i32) -> Option<Unreached> {
        use Errno::*;
        let refused = match Errno::from_raw(error) {
            ECONNREFUSED => true,
            // The last five: no route of this kind, such as a link-local IPv6 address, or another address
            // family.
            EHOSTUNREACH | ENETUNREACH | ENETDOWN | EHOSTDOWN | EINVAL | EAFNOSUPPORT
            | EADDRNOTAVAIL | EACCES | EPERM => false,
            _ => return None,
        };
        Some(Unreached { host, refused })
    }
}

/// Makes the kernel queue ICMP errors for [`take`].
pub(crate) fn listen(socket: &UdpSocket, ipv6: bool) {
    // On failure, unanswered calls are explained less precisely.
    let _ = match ipv6 {
        false => setsockopt(socket, sockopt::Ipv4RecvErr, &true),
        true => setsockopt(socket, sockopt::Ipv6RecvErr, &true),
    };
}

/// Sends a datagram. A pending error about an earlier one is cleared by the first try.
pub(crate) fn send(socket: &UdpSocket, to: SocketAddr, datagram: &[u8]) -> Option<Unreached> {
    let send = || socket.send_to(datagram, to);
    let error = send().or_else(|_| send());
    Unreached::of(to, error.err()?.raw_os_error()?)
}

/// Takes the queued errors.
pub(crate) fn take(socket: &UdpSocket) -> Vec<Unreached> {
    let mut found = Vec::new();
    for _ in 0..ERRORS_MAX {
        // The contents of the datagram are not needed.
        let mut bytes = [0; 1];
        let mut into = [io::IoSliceMut::new(&mut bytes)];
        let mut room = cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let message =
            recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut into, Some(&mut room), flags);
        let Ok(message) = message else { break };
        let Some(host) = message.address.as_ref().and_then(option::address) else {
            continue;
        };
        for message in message.cmsgs().into_iter().flatten() {
            let error = match message {
                ControlMessageOwned::Ipv4RecvErr(error, _)
                | ControlMessageOwned::Ipv6RecvErr(error, _) => error.ee_errno,
                _ => continue,
            };
            found.extend(Unreached::of(host, error as i32));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_port_without_a_socket_and_a_network_without_a_route_are_distinguished() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        listen(&socket, false);
        let unused = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let there = unused.local_addr().expect("an address");
        drop(unused);
        assert_eq!(send(&socket, there, b"?"), None);
        let begun = Instant::now();
        let mut found = take(&socket);
        while found.is_empty() {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "no error is reported"
            );
            std::thread::yield_now();
            found = take(&socket);
        }
        let refused = true;
        let host = there;
        assert_eq!(found, [Unreached { host, refused }]);
        assert!(take(&socket).is_empty());
        // A queued error stops neither the next datagram nor the one after it.
        let other = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert_eq!(send(&socket, there, b"?"), None);
        let alive = other.local_addr().expect("an address");
        assert_eq!(send(&socket, alive, b"!"), None);
        let patience = Some(Duration::from_secs(20));
        other.set_read_timeout(patience).expect("a time");
        assert_eq!(other.recv(&mut [0; 2]).expect("a datagram"), 1);
        let no_way = Unreached::of(alive, libc::ENETUNREACH).expect("known");
        assert!(!no_way.refused);
        assert_eq!(Unreached::of(alive, libc::EMSGSIZE), None);
    }
}
