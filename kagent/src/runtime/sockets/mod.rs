//! Sockets: the listener, packets of processes, and the address of a UDP socket.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};

use nix::sys::socket::{SockType, SockaddrStorage, getsockname, getsockopt, sockopt};

pub(crate) mod activation;
pub(crate) mod listener;
pub(crate) mod packet;

/// The address to which a UDP socket of another process is bound; `None` if it is not a bound UDP socket.
pub(crate) fn udp_address(socket: RawFd) -> Option<SocketAddr> {
    // SAFETY: the caller owns the descriptor and keeps it open during this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(socket) };
    if getsockopt(&borrowed, sockopt::SockType).ok()? != SockType::Datagram {
        return None;
    }
    let bound: SockaddrStorage = getsockname(socket).ok()?;
    let v4 = bound.as_sockaddr_in().map(|v4| SocketAddr::from(*v4));
    v4.or_else(|| bound.as_sockaddr_in6().map(|v6| SocketAddr::from(*v6)))
}
