//! The agent's own socket on a link, over Ethernet or UDP.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;

use super::gate::Dropped;
use super::raw::SetupSocket;
use super::udp::{Call, UdpSetupSocket};
use super::unreached::Unreached;
use crate::HostAddress;

/// The agent's own socket on a link.
#[derive(Debug)]
pub(crate) enum LinkSocket {
    Ethernet(SetupSocket),
    Udp(Box<UdpSetupSocket>),
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            LinkSocket::Ethernet(socket) => socket.as_fd(),
            LinkSocket::Udp(socket) => socket.as_fd(),
        }
    }
}

/// An item received from a link.
#[derive(Debug)]
pub(crate) enum FrameIn<'a> {
    /// A frame, and whether it was broadcast.
    Frame(HostAddress, bool, &'a [u8]),
    /// A datagram that needs no further handling.
    Handled,
    /// A dropped datagram.
    Dropped(HostAddress, Dropped),
}

/// Why a frame was not sent.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// The interface is down or removed.
    Down(Errno),
    /// The address belongs to another user of this host.
    OtherUser(Option<u32>),
}

/// Buffer for one datagram.
pub(crate) type Buffer = [u8; kagent_proto::setup::DATAGRAM_MAX + 1];

impl LinkSocket {
    /// Sends one frame. `call` is set if it is a call.
    pub(crate) fn send(
        &mut self,
        now: u64,
        to: HostAddress,
        bytes: &[u8],
        call: Option<Call>,
    ) -> Result<(), Unsent> {
        match self {
            LinkSocket::Ethernet(socket) => socket.send(to.bytes(), bytes).map_err(Unsent::Down),
            LinkSocket::Udp(socket) => socket.send(now, to, bytes, call).map_err(Unsent::OtherUser),
        }
    }

    /// Takes the hosts that the network reported as unreachable.
    pub(crate) fn take_unreached(&mut self) -> Vec<Unreached> {
        match self {
            LinkSocket::Ethernet(_) => Vec::new(),
            LinkSocket::Udp(socket) => socket.take_unreached(),
        }
    }

    /// Receives one frame, if any.
    pub(crate) fn receive<'a>(
        &mut self,
        now: u64,
        buffer: &'a mut Buffer,
    ) -> Result<Option<FrameIn<'a>>, Errno> {
        Ok(match self {
            LinkSocket::Ethernet(socket) => {
                let got = socket.receive(&mut buffer[..kagent_proto::setup::FRAME_MAX])?;
                got.map(|(from, to_all, length)| {
                    FrameIn::Frame(from.into(), to_all, &buffer[..length])
                })
            }
            LinkSocket::Udp(socket) => socket.receive(now, buffer),
        })
    }
}
