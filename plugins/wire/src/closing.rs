//! The lingering close. A side that closes sends a CLOSE with its reason and repeats it until the peer confirms with
//! a CLOSED, for about two seconds at most. The close outlives the VI: [`Closing`] accesses no descriptor, and the
//! device keeps it until [`Closing::is_done`].

use crate::config::NEVER;
use crate::config::Received;
use crate::env::{Cause, Transmit};
use crate::frame::{
    CLOSE_BODY, FLAG_SEALED, HEADER, Header, Kind, Refused, key_check, u16_at, u32_at,
};
use crate::framing::{Framing, Numbers, Output};
use crate::seal::SEAL;

/// First interval between two CLOSEs; intervals double.
const FIRST_NS: u64 = 5_000_000;
/// Longest interval.
const LONGEST_NS: u64 = 320_000_000;
/// Number of CLOSEs.
const TRIES: u32 = 12;

/// The reason in a CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// VipDisconnect, or an orderly end of the process.
    Disconnected = 1,
    /// An error of the sender, or a protocol violation by the receiver of the CLOSE.
    Lost = 2,
    /// The operation named in the CLOSE could not be received: the receive descriptor is missing, too short or invalid
    /// (E6 to E8).
    ReceiveFailed = 3,
    /// The operation named in the CLOSE accessed memory without permission (E9, E10, E13).
    TargetRefused = 7,
}

/// The body of a CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) reason: Reason,
    /// VI of the sender. A host that has forgotten the connection answers to it.
    pub(crate) from_vi: u32,
    /// Number of the peer's operations that have been processed; the next one has failed.
    pub(crate) operations: u32,
}

impl Body {
    pub(crate) fn parse(body: &[u8]) -> Option<Body> {
        if body.len() != CLOSE_BODY {
            return None;
        }
        let reason = match u16_at(body, 0) {
            1 => Reason::Disconnected,
            3 => Reason::ReceiveFailed,
            7 => Reason::TargetRefused,
            // An unknown reason counts as a lost connection.
            _ => Reason::Lost,
        };
        Some(Body {
            reason,
            from_vi: u32_at(body, 4),
            operations: u32_at(body, 8),
        })
    }

    fn emit(&self, out: &mut [u8]) {
        out[0..2].copy_from_slice(&(self.reason as u16).to_be_bytes());
        out[2..4].copy_from_slice(&[0; 2]);
        out[4..8].copy_from_slice(&self.from_vi.to_be_bytes());
        out[8..12].copy_from_slice(&self.operations.to_be_bytes());
    }
}

/// Why a step ends the connection. A function that has this error type returns it if the peer violates the protocol, if
/// an operation or a receive has failed on a reliable level, or if a completion could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The reason in the CLOSE.
    pub(crate) reason: Reason,
    /// Number of the peer's operation that has failed. `None`: the next one to be processed.
    pub(crate) failed: Option<u32>,
    /// What this side reports, with the operation bits. `None`: the host has broken the connection itself.
    pub(crate) report: Option<(Cause, u32)>,
}

impl End {
    /// The connection is lost, and nothing else reports it.
    pub(crate) const LOST: End = End::new(Reason::Lost, Cause::LOST, 0);
    /// The peer violates the protocol.
    pub(crate) const VIOLATION: End = End::LOST;
    /// A completion could not be written: the host has broken the connection.
    pub(crate) const BROKEN: End = End {
        reason: Reason::Lost,
        failed: None,
        report: None,
    };

    pub(crate) const fn new(reason: Reason, cause: Cause, opcode: u32) -> End {
        End {
            reason,
            failed: None,
            report: Some((cause, opcode)),
        }
    }
}

/// A connection that has ended on this side.
#[derive(Clone, Debug)]
pub struct Closing {
    body: Body,
    confirmed: bool,
    tries: u32,
    next_ns: u64,
    framing: Framing,
    /// The last ones of this side.
    numbers: Numbers,
}

impl Closing {
    /// `known`: the peer has closed first and need not be informed.
    pub(crate) fn new(body: Body, known: bool, framing: Framing, numbers: Numbers) -> Closing {
        Closing {
            framing,
            numbers,
            body,
            confirmed: known,
            tries: 0,
            next_ns: 0,
        }
    }

    /// Whether the peer has confirmed, or cannot be reached.
    pub fn is_done(&self) -> bool {
        self.confirmed || self.tries >= TRIES
    }

    /// When to call [`Closing::timeout`], in nanoseconds; `u64::MAX`: never.
    pub fn deadline(&self) -> u64 {
        if self.is_done() { NEVER } else { self.next_ns }
    }

    /// VI number of this side. The device finds the close of a frame by it.
    pub fn vi(&self) -> u32 {
        self.body.from_vi
    }

    /// Handles a frame. Frames of other connections are ignored.
    pub fn received<T: Transmit>(&mut self, frame: &[u8], out: &mut T) {
        if let Ok((header, body)) = Header::parse(frame)
            && header.check == !self.framing.check()
            && header.to_vi == self.body.from_vi
        {
            self.take_sealed(&header, frame, body, out);
        }
    }

    /// Handles a frame with the right key. A CLOSED needs no seal: a peer that has forgotten the connection cannot
    /// make one, and a forged CLOSED only stops the repetition of the CLOSE.
    pub(crate) fn take_sealed<T: Transmit>(
        &mut self,
        header: &Header,
        frame: &[u8],
        body: &[u8],
        out: &mut T,
    ) -> Received {
        let unsealed = header.kind == Kind::Closed && header.flags & FLAG_SEALED == 0;
        let passes = unsealed || self.framing.open(header, frame, body).is_some();
        if !passes {
            return Received::Refused(Refused::Seal);
        }
        self.take(header, out);
        Received::Taken
    }

    fn take<T: Transmit>(&mut self, header: &Header, out: &mut T) {
        match header.kind {
            Kind::Closed => self.confirmed = true,
            Kind::Close => {
                self.confirmed = true;
                // If the confirmation is lost, the peer repeats its CLOSE.
                Output::new(&mut self.framing, self.numbers, out).send_empty(Kind::Closed);
            }
            // The peer has not received the CLOSE yet; the repetition informs it.
            _ => {}
        }
    }

    /// Repeats the CLOSE when it is due.
    pub fn timeout<T: Transmit>(&mut self, now_ns: u64, out: &mut T) {
        if self.is_done() || now_ns < self.next_ns {
            return;
        }
        let wait = (FIRST_NS << self.tries.min(16)).min(LONGEST_NS);
        self.tries += 1;
        self.next_ns = now_ns + wait;
        if let Some(mut frame) = out.frame() {
            let body = &mut frame.as_mut()[HEADER..HEADER + CLOSE_BODY];
            self.body.emit(body);
            let mut out = Output::new(&mut self.framing, self.numbers, out);
            let header = out.header(Kind::Close);
            out.send(frame, &header, CLOSE_BODY);
        }
    }

    /// Answers a CLOSE for a connection that this side has forgotten, so that the peer stops repeating it. The frame
    /// must be for this endpoint. Returns whether the frame was such a CLOSE.
    pub fn answer_stray<T: Transmit>(frame: &[u8], out: &mut T) -> bool {
        let Ok((header, body)) = Header::parse(frame) else {
            return false;
        };
        // The key is not kept: the seal cannot be checked.
        let seal = if header.flags & FLAG_SEALED == 0 {
            0
        } else {
            SEAL
        };
        let body = &body[..body.len().saturating_sub(seal)];
        let Some(body) = Body::parse(body).filter(|_| header.kind == Kind::Close) else {
            return false;
        };
        let mut framing = Framing::unsealed(Header {
            to_endpoint: header.from_endpoint,
            from_endpoint: header.to_endpoint,
            to_vi: body.from_vi,
            // The check of the other side, whatever the key is.
            check: key_check(header.check, 1),
            window: 0,
            flags: 0,
            ..header
        });
        let numbers = Numbers {
            sequence: header.acknowledged,
            acknowledged: header.sequence,
            marks: 0,
        };
        Output::new(&mut framing, numbers, out).send_empty(Kind::Closed);
        true
    }
}
