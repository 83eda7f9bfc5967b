//! Packets with file descriptors between an application and the device. No call blocks: neither process can hold up the
//! other one.

use std::io::{self, IoSlice};
use std::os::fd::{OwnedFd, RawFd};

use vipl_sys::seqpacket;
pub use vipl_sys::seqpacket::{pair, wait};

/// Most file descriptors in a packet.
pub const FDS_MAX: usize = 3;

/// Sends one packet.
///
/// # Errors
/// `WouldBlock`: the other side does not read. Others: it has exited or closed its end.
pub fn send(socket: RawFd, packet: &[u8], fds: &[RawFd]) -> io::Result<()> {
    seqpacket::send(socket, &[IoSlice::new(packet)], fds, libc::MSG_DONTWAIT)
}

/// Receives one packet: its length, and its file descriptors. 0 bytes: the other side has exited or closed its end.
///
/// # Errors
/// `WouldBlock`: there is none. `EMFILE`: this process has no room for the file descriptors, and the packet is lost.
pub fn receive(socket: RawFd, packet: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let packet = seqpacket::receive(socket, packet, libc::MSG_DONTWAIT)?;
    if !packet.complete {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((packet.length, packet.fds))
}
