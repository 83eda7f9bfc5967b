//! The transmit side of a link, for one call of the engine at a time.

use std::os::fd::{OwnedFd, RawFd};

use vipl_netio::{BURST, Frame, Header, Socket, WAITING_MAX, packet};
use vipl_wire::Transmit;

/// Frames that one call of the engine may send, so that other connections have their turn.
const TURN_FRAMES: u32 = 64;
/// How long to wait when the kernel has no room, in nanoseconds.
const RETRY_NS: u64 = 50_000;

/// The transmit side of a link.
pub(crate) struct Outbox {
    socket: Socket,
    frames: vipl_netio::Outbox,
    /// Nothing is sent before this time, in nanoseconds.
    retry_at: u64,
    /// Frames that the current call may still send.
    left: u32,
}

impl Outbox {
    pub(crate) fn new(socket: OwnedFd) -> Outbox {
        Outbox {
            socket: Socket::Packets(packet::Sender::new(socket)),
            frames: vipl_netio::Outbox::default(),
            retry_at: 0,
            left: 0,
        }
    }

    pub(crate) fn socket(&self) -> RawFd {
        self.socket.number()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// When to try again after the kernel had no room.
    pub(crate) fn retry_at(&self) -> u64 {
        self.retry_at
    }

    /// The frames of one call of the engine, of up to `mtu` bytes behind this header.
    pub(crate) fn line(&mut self, header: Header, mtu: usize, now: u64) -> Line<'_> {
        self.left = TURN_FRAMES;
        Line {
            out: self,
            header,
            mtu,
            now,
        }
    }

    /// Sends the queue, unless the kernel had no room a moment ago. A frame that cannot be sent is lost, as on a cut
    /// cable.
    pub(crate) fn send(&mut self, now: u64) {
        if now >= self.retry_at && !self.frames.send(&self.socket, |_| {}) {
            self.retry_at = now + RETRY_NS;
        }
    }
}

/// The frames of a connection during one call of the engine.
pub(crate) struct Line<'a> {
    out: &'a mut Outbox,
    header: Header,
    mtu: usize,
    now: u64,
}

impl Transmit for Line<'_> {
    type Frame = Frame;

    #[inline(always)]
    fn frame(&mut self) -> Option<Frame> {
        let out = &mut *self.out;
        if out.left == 0 || out.frames.len() >= WAITING_MAX {
            return None;
        }
        out.left -= 1;
        Some(out.frames.frame(&self.header, self.mtu))
    }

    #[inline(always)]
    fn take_back(&mut self, frame: Frame) {
        self.out.frames.take_back(frame);
    }

    #[inline(always)]
    fn transmit(&mut self, mut frame: Frame, bytes: usize) {
        frame.set_length(bytes);
        self.out.frames.push(frame);
        if self.out.frames.len() >= BURST {
            self.out.send(self.now);
        }
    }
}
