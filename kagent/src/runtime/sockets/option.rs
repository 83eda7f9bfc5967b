//! Socket options without a wrapper in nix, and socket addresses.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{SockType, SockaddrStorage, getsockname, getsockopt, sockopt};

/// Reads an option of the level `SOL_SOCKET`; returns its length in bytes.
pub(crate) fn get(socket: BorrowedFd<'_>, name: c_int, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: the buffer is as large as stated.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            buffer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    Errno::result(result).map(|_| length as usize)
}

/// Sets an option.
pub(crate) fn set<T>(socket: impl AsFd, level: c_int, name: c_int, value: &T) -> Result<(), Errno> {
    // SAFETY: the value is as large as stated.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    Errno::result(result).map(drop)
}

/// An IP address with its port.
pub(crate) fn address(from: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = from.as_sockaddr_in().map(|v4| SocketAddr::from(*v4));
    v4.or_else(|| from.as_sockaddr_in6().map(|v6| SocketAddr::from(*v6)))
}

/// The address to which a UDP socket of another process is bound; `None` if it is not a bound UDP socket.
pub(crate) fn udp_address(socket: RawFd) -> Option<SocketAddr> {
    // SAFETY: the caller owns the descriptor and keeps it open during this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(socket) };
    if getsockopt(&borrowed, sockopt::SockType).ok()? != SockType::Datagram {
        return None;
    }
    address(&getsockname(socket).ok()?)
}
