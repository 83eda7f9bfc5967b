//! Packets with descriptors between a program and the device. No call blocks: a socket belongs to two
//! processes, and the other one must not be able to hold this one up.

use std::io::{self, IoSlice};
use std::os::fd::{OwnedFd, RawFd};

use vipl_sys::seqpacket;
pub use vipl_sys::seqpacket::{pair, wait};

/// Descriptors that one packet brings at most.
pub const FDS_MAX: usize = 3;

/// Sends one packet.
///
/// # Errors
/// `WouldBlock`: the other side does not read. Others: it has gone.
pub fn send(socket: RawFd, packet: &[u8], fds: &[RawFd]) -> io::Result<()> {
    seqpacket::send(socket, &[IoSlice::new(packet)], fds, libc::MSG_DONTWAIT)
}

/// Takes one packet: its bytes, and the descriptors that came with it. 0 bytes: the other side has gone.
///
/// # Errors
/// `WouldBlock`: there is none. `EMFILE`: this process has no room for its descriptors; it is lost.
pub fn receive(socket: RawFd, packet: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let packet = seqpacket::receive(socket, packet, libc::MSG_DONTWAIT)?;
    if !packet.complete {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((packet.length, packet.fds))
}
