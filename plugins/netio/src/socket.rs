//! A data socket of either kind.

use std::ops::AddAssign;
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
    /// The kernel or the driver refuses trains, and will not be asked again: these frames, at least one, are lost.
    NoTrains(usize),
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

impl Received {
    /// Frames that were received, truncated ones included.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.frames + self.cut
    }
}

impl AddAssign for Received {
    #[inline(always)]
    fn add_assign(&mut self, more: Received) {
        self.frames += more.frames;
        self.cut += more.cut;
        self.dropped += more.dropped;
    }
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

    /// The socket for trains, if there is one that the application has not closed.
    pub fn train_socket(&self) -> Option<RawFd> {
        match self {
            Socket::Packets(sender) => sender.train_socket(),
            Socket::Datagrams(_) => None,
        }
    }

    /// Whether frames may join trains: there is a socket for them, and nothing has refused them.
    pub fn carries_trains(&self) -> bool {
        match self {
            Socket::Packets(sender) => sender.carries_trains(),
            Socket::Datagrams(_) => false,
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
