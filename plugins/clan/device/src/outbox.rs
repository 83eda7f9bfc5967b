//! Frames on their way into the kernel: one system call takes as many as there are.

use std::os::fd::{OwnedFd, RawFd};

use vipl_netio::packet::{ETHERNET, Frame, Header, Sender, Sent};
use vipl_wire::Transmit;

/// Frames of one burst.
const BURST: usize = 32;
/// Frames that wait for the kernel at most.
const WAITING_MAX: usize = 256;
/// What one call of the engine may send: others have their turn, too.
const TURN_FRAMES: u32 = 64;
/// When a kernel that had no room is asked again, in nanoseconds.
const RETRY_NS: u64 = 50_000;

/// Room for one frame behind its Ethernet header.
pub(crate) struct Room(Vec<u8>);

impl AsMut<[u8]> for Room {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0[ETHERNET..]
    }
}

/// The transmit side of a link.
pub(crate) struct Outbox {
    socket: Sender,
    waiting: Vec<Frame>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
    /// Before this time the kernel is not asked, in nanoseconds.
    retry_at: u64,
    /// What is left of [`TURN_FRAMES`].
    left: u32,
}

impl Outbox {
    pub(crate) fn new(socket: OwnedFd) -> Outbox {
        Outbox {
            socket: Sender::new(socket),
            waiting: Vec::new(),
            spare: Vec::new(),
            retry_at: 0,
            left: 0,
        }
    }

    pub(crate) fn socket(&self) -> RawFd {
        self.socket.number()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the kernel may be asked again.
    pub(crate) fn retry_at(&self) -> u64 {
        self.retry_at
    }

    /// A line for one call of the engine: frames of `mtu` bytes with this Ethernet header.
    pub(crate) fn line(&mut self, header: Header, mtu: usize, now: u64) -> Line<'_> {
        self.left = TURN_FRAMES;
        Line {
            out: self,
            header,
            mtu,
            now,
            mute: false,
        }
    }

    /// Sends what waits, unless the kernel had no room a moment ago. A frame that cannot be sent is lost, as
    /// on a cut cable.
    pub(crate) fn send(&mut self, now: u64) {
        if now < self.retry_at {
            return;
        }
        let mut first = 0;
        while first < self.waiting.len() {
            match self.socket.send(&self.waiting[first..]) {
                Sent::Frames(count) => first += count,
                Sent::Again => {
                    self.retry_at = now + RETRY_NS;
                    break;
                }
                Sent::Lost(_) => first += 1,
            }
        }
        let sent = self.waiting.drain(..first);
        self.spare.extend(sent.map(|frame| frame.buffer));
    }
}

/// Where the frames of a connection go, during one call of the engine.
pub(crate) struct Line<'a> {
    out: &'a mut Outbox,
    header: Header,
    mtu: usize,
    now: u64,
    /// Nothing is to be sent any more.
    pub(crate) mute: bool,
}

impl Transmit for Line<'_> {
    type Frame = Room;

    #[inline(always)]
    fn frame(&mut self) -> Option<Room> {
        let out = &mut *self.out;
        if self.mute || out.left == 0 || out.waiting.len() >= WAITING_MAX {
            return None;
        }
        out.left -= 1;
        let mut buffer = out.spare.pop().unwrap_or_default();
        buffer.resize(ETHERNET + self.mtu, 0);
        buffer[..ETHERNET].copy_from_slice(&self.header);
        Some(Room(buffer))
    }

    #[inline(always)]
    fn transmit(&mut self, frame: Room, bytes: usize) {
        let bytes = ETHERNET + bytes;
        let buffer = frame.0;
        self.out.waiting.push(Frame { buffer, bytes });
        if self.out.waiting.len() >= BURST {
            self.out.send(self.now);
        }
    }
}
