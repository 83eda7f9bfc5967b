//! Frames on their way out and in: seals, the count of frames sent, and the time of the current call.

use crate::config::Config;
use crate::env::Transmit;
use crate::frame::{FLAG_SEALED, Header, Kind, key_check};
use crate::seal::{SEAL, Seals};

/// The numbers in the headers of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    /// Number of the next DATA frame.
    pub(crate) sequence: u32,
    /// All DATA frames of the peer before this number have been processed.
    pub(crate) acknowledged: u32,
    /// DATA frames of the peer that a router has marked, modulo 256.
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
        let seals = config.seal.as_ref().map(|key| Box::new(Seals::new(key)));
        let header = Header {
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
        };
        Framing {
            seals,
            now_ns: config.now_ns,
            ..Framing::unsealed(header)
        }
    }

    /// Without seals. All headers are like this one.
    pub(crate) fn unsealed(header: Header) -> Framing {
        Framing {
            header,
            seals: None,
            sent: 0,
            now_ns: 0,
        }
    }

    /// Moves the seals out, for a lingering close.
    pub(crate) fn take(&mut self) -> Framing {
        let seals = self.seals.take();
        Framing { seals, ..*self }
    }

    /// The key check of this side.
    pub(crate) fn check(&self) -> u64 {
        self.header.check
    }

    /// The time of the current call, or of the last frame if the owner reports the time.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Number of frames sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

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
}

/// The way out during one call.
pub(crate) struct Output<'a, T> {
    pub(crate) env: &'a mut T,
    pub(crate) framing: &'a mut Framing,
    numbers: Numbers,
}

impl<'a, T: Transmit> Output<'a, T> {
    #[inline(always)]
    pub(crate) fn new(framing: &'a mut Framing, numbers: Numbers, env: &'a mut T) -> Output<'a, T> {
        Output {
            env,
            framing,
            numbers,
        }
    }

    /// The header of a frame.
    #[inline(always)]
    pub(crate) fn header(&self, kind: Kind) -> Header {
        Header {
            kind,
            sequence: self.numbers.sequence,
            acknowledged: self.numbers.acknowledged,
            marks: self.numbers.marks,
            ..self.framing.header
        }
    }

    /// The header of the DATA frame with this number.
    #[inline(always)]
    pub(crate) fn data(&self, sequence: u32) -> Header {
        let header = self.header(Kind::Data);
        Header { sequence, ..header }
    }

    /// Sends a frame whose body of `body` bytes is in place: writes the header, the seal and the CRC.
    #[inline(always)]
    pub(crate) fn send(&mut self, mut frame: T::Frame, header: &Header, body: usize) {
        let Some(seals) = &mut self.framing.seals else {
            return self.send_unsealed(frame, header, body);
        };
        let bytes = seals.emit(header, frame.as_mut(), body);
        self.env.transmit(frame, bytes);
        self.framing.sent += 1;
    }

    /// The same on a connection without seals.
    #[inline(always)]
    pub(crate) fn send_unsealed(&mut self, mut frame: T::Frame, header: &Header, body: usize) {
        debug_assert!(!self.framing.is_sealed());
        let bytes = header.emit(frame.as_mut(), body);
        self.env.transmit(frame, bytes);
        self.framing.sent += 1;
    }

    /// Sends a frame without a body. False: the device is full.
    pub(crate) fn send_empty(&mut self, kind: Kind) -> bool {
        let Some(frame) = self.env.frame() else {
            return false;
        };
        let header = self.header(kind);
        self.send(frame, &header, 0);
        true
    }

    /// Reads the owner's clock, if it has one.
    #[inline(always)]
    pub(crate) fn read_clock(&mut self) {
        if let Some(now_ns) = self.env.now() {
            self.framing.now_ns = now_ns;
        }
    }
}
