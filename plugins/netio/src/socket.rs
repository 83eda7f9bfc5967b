//! A data socket of either kind.

use std::os::fd::RawFd;

use crate::{Frame, datagram, packet};

/// Sends frames to other hosts.
pub enum Socket {
    /// Through a packet socket.
    Packets(packet::Sender),
    /// As datagrams.
    Datagrams(datagram::Sender),
}

/// Result of [`Socket::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// This many frames were sent, at least one.
    Frames(usize),
    /// There is no room; the caller sends the same frames later.
    Again,
    /// The first frame cannot be sent, for this `errno`; the caller drops it. ENOBUFS: the interface has had no room
    /// for it for some time.
    Lost(i32),
}

/// Result of receiving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames passed to the caller.
    pub frames: u32,
    /// Truncated frames, which were larger than the interface's MTU.
    pub cut: u32,
    /// Frames that the kernel has dropped for lack of room, since it last reported this.
    pub dropped: u32,
}

impl Socket {
    /// The descriptor. `None`: the application has closed it.
    pub fn fd(&self) -> Option<RawFd> {
        match self {
            Socket::Packets(sender) => sender.socket(),
            Socket::Datagrams(sender) => sender.socket(),
        }
    }

    /// The descriptor's number, without a check of what it refers to now.
    pub fn number(&self) -> RawFd {
        match self {
            Socket::Packets(sender) => sender.number(),
            Socket::Datagrams(sender) => sender.number(),
        }
    }

    /// From now on datagrams carry the ECT codepoint; with `false` never again. Ethernet frames have none.
    pub fn mark(&self, on: bool) {
        if let Socket::Datagrams(sender) = self {
            sender.mark(on);
        }
    }

    /// Sends as many frames as one system call takes. Several threads may call this at the same time.
    #[inline(always)]
    pub fn send(&self, frames: &[Frame]) -> Sent {
        match self {
            Socket::Packets(sender) => sender.send(frames),
            Socket::Datagrams(sender) => sender.send(frames),
        }
    }
}
