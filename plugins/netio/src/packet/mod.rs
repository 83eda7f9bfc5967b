//! AF_PACKET data sockets: frames of one interface, without a system call for each one that arrives.
//!
//! The Kernel Agent opens and filters the socket; the owner of a NIC drives it from here. [`Receiver`] is the
//! ring that the kernel shares with this process, [`Sender`] sends whole frames. Interfaces go down, come up,
//! change their MTU and are removed. None of that is an error here: a frame that cannot be sent is lost, as on a
//! cut cable, and the protocol above decides when to give up.
//!
//! Trains have a socket of their own: many frames of one length in one packet, which the kernel or the card cuts.
//! [`Trains`] receives them.
//!
//! Used by the Ethernet device class and by clan's device process.

mod error;
mod port;
mod ring;
mod room;
mod send;
mod train;

use std::os::fd::RawFd;

pub use error::{drop_notices, take_socket_error};
pub use port::{Asker, Lost, lost};
pub use ring::{Arrived, Receiver, Tip};
pub use send::Sender;
pub use train::{EXTRA, Trains};

/// Bytes of the Ethernet header: destination, source, ethertype.
pub const ETHERNET: usize = 14;

/// Splits a frame into the address of its sender and its payload. `None`: shorter than an Ethernet header.
#[inline(always)]
pub fn split(frame: &[u8]) -> Option<([u8; 6], &[u8])> {
    let (header, payload) = frame.split_first_chunk::<ETHERNET>()?;
    let mut from = [0; 6];
    from.copy_from_slice(&header[6..12]);
    Some((from, payload))
}

/// The interface of a socket. `None`: it has been removed, and the kernel has unbound the socket.
fn bound_to(socket: RawFd) -> Option<libc::sockaddr_ll> {
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: room for an address of this kind.
    let known =
        unsafe { libc::getsockname(socket, (&raw mut address).cast(), &raw mut length) == 0 };
    (known && address.sll_ifindex > 0).then_some(address)
}
