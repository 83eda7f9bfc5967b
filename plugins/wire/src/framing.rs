//! Frames on their way out and in: seals, the count of frames sent, and the time of the current call.

use crate::config::Config;
use crate::env::Transmit;
use crate::frame::{FLAG_SEALED, Header, Kind, key_check};
use crate::seal::{SEAL, Seals};

/// What every header says of the receive side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    /// All DATA frames before this number have been processed.
    pub(crate) next: u32,
    /// DATA frames that a router has marked, modulo 256.
    pub(crate) marks: u8,
}

/// What the frames of a connection have in common.
#[derive(Clone, Debug)]
pub(crate) struct Framing {
    /// Addresses, key check and window.
    header: Header,
    /// `None`: the connection has no seals.
    seals: Option<Box<Seals>>,
    sent: u64,
    now_ns: u64,
}

impl Framing {
    pub(crate) fn new(config: &Config) -> Framing {
        Framing {
            header: Header {
                kind: Kind::Data,
                to_endpoint: config.peer_endpoint,
                from_endpoint: config.own_endpoint,
                to_vi: config.peer_vi,
                check: key_check(config.key, config.side),
                sequence: 0,
                acknowledged: 0,
                window: config.window(),
                flags: 0,
                marks: 0,
            },
            seals: config.seal.as_ref().map(|key| Box::new(Seals::new(key))),
            sent: 0,
            now_ns: config.now_ns,
        }
    }

    /// Of a connection that this side has forgotten, for the answer with this header: it has no seals.
    pub(crate) fn of_stray(header: Header) -> Framing {
        Framing {
            header,
            seals: None,
            sent: 0,
            now_ns: 0,
        }
    }

    /// Moves the seals out, for the frames of a lingering close. They all have this header.
    pub(crate) fn close(&mut self, header: Header) -> Framing {
        Framing {
            header,
            seals: self.seals.take(),
            ..*self
        }
    }

    /// The header of all frames of a lingering close.
    pub(crate) fn last(&self) -> &Header {
        &self.header
    }

    /// The time of the current call, or of the last frame if the owner reports the time.
    #[inline(always)]
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    #[inline(always)]
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Number of frames sent.
    #[inline(always)]
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    #[inline(always)]
    pub(crate) fn is_sealed(&self) -> bool {
        self.seals.is_some()
    }

    /// Bytes that a seal adds to each frame.
    pub(crate) fn seal_bytes(&self) -> usize {
        if self.is_sealed() { SEAL } else { 0 }
    }

    /// Whether the last frame that was opened has the highest number so far.
    pub(crate) fn is_newest(&self) -> bool {
        self.seals.as_ref().is_some_and(|seals| seals.is_newest())
    }

    /// Checks the seal of a received frame. Returns the body without it, or `None` if the seal is missing, wrong or
    /// repeated, or if the connection has none.
    #[inline(always)]
    pub(crate) fn open<'a>(
        &mut self,
        header: &Header,
        frame: &[u8],
        body: &'a [u8],
    ) -> Option<&'a [u8]> {
        match (&mut self.seals, header.flags & FLAG_SEALED != 0) {
            (None, false) => Some(body),
            (Some(seals), true) => seals.open(frame, body),
            _ => None,
        }
    }

    /// Sends a frame whose body of `body` bytes is in place: writes the header, the seal and the CRC.
    #[inline(always)]
    pub(crate) fn send<T: Transmit>(
        &mut self,
        mut frame: T::Frame,
        header: &Header,
        body: usize,
        out: &mut T,
    ) {
        let Some(seals) = &mut self.seals else {
            return self.send_unsealed(frame, header, body, out);
        };
        let bytes = seals.emit(header, frame.as_mut(), body);
        out.transmit(frame, bytes);
        self.sent += 1;
    }

    /// The same on a connection without seals.
    #[inline(always)]
    fn send_unsealed<T: Transmit>(
        &mut self,
        mut frame: T::Frame,
        header: &Header,
        body: usize,
        out: &mut T,
    ) {
        let bytes = header.emit(frame.as_mut(), body);
        out.transmit(frame, bytes);
        self.sent += 1;
    }

    /// Sends a frame without a body. False: the device is full.
    pub(crate) fn send_empty<T: Transmit>(&mut self, header: &Header, out: &mut T) -> bool {
        let Some(frame) = out.frame() else {
            return false;
        };
        self.send(frame, header, 0, out);
        true
    }
}

/// The way out during one call: the owner, the framing, and the acknowledgement for the headers.
pub(crate) struct Output<'a, T> {
    pub(crate) env: &'a mut T,
    framing: &'a mut Framing,
    ack: Ack,
}

impl<'a, T: Transmit> Output<'a, T> {
    #[inline(always)]
    pub(crate) fn new(framing: &'a mut Framing, ack: Ack, env: &'a mut T) -> Output<'a, T> {
        Output { env, framing, ack }
    }

    /// The header of a frame; `sequence` is its number, or that of the next DATA frame.
    #[inline(always)]
    pub(crate) fn header(&self, kind: Kind, sequence: u32) -> Header {
        Header {
            kind,
            sequence,
            acknowledged: self.ack.next,
            marks: self.ack.marks,
            ..self.framing.header
        }
    }

    /// A buffer for a frame. `None`: the device is full.
    #[inline(always)]
    pub(crate) fn frame(&mut self) -> Option<T::Frame> {
        self.env.frame()
    }

    /// As [`Framing::send`].
    #[inline(always)]
    pub(crate) fn send(&mut self, frame: T::Frame, header: &Header, body: usize) {
        self.framing.send(frame, header, body, self.env);
    }

    /// The same on a connection without seals.
    #[inline(always)]
    pub(crate) fn send_unsealed(&mut self, frame: T::Frame, header: &Header, body: usize) {
        debug_assert!(!self.framing.is_sealed());
        self.framing.send_unsealed(frame, header, body, self.env);
    }

    /// As [`Framing::send_empty`].
    pub(crate) fn send_empty(&mut self, header: &Header) -> bool {
        self.framing.send_empty(header, self.env)
    }

    /// Bytes that a seal adds to each frame.
    pub(crate) fn seal_bytes(&self) -> usize {
        self.framing.seal_bytes()
    }

    /// As [`Framing::now_ns`].
    #[inline(always)]
    pub(crate) fn now_ns(&self) -> u64 {
        self.framing.now_ns
    }

    /// Reads the owner's clock, if it has one.
    #[inline(always)]
    pub(crate) fn read_clock(&mut self) {
        if let Some(now_ns) = self.env.now() {
            self.framing.now_ns = now_ns;
        }
    }
}
