//! The end of a connection. A side that leaves says why in a CLOSE and repeats it until the partner
//! confirms with a CLOSED, or for about two seconds. That goes on after the VI is gone, so it is a thing
//! of its own that touches no descriptor: the device keeps it until [`Closing::is_done`].

use crate::config::NEVER;
use crate::env::Transmit;
use crate::frame::{CLOSE_BODY, HEADER, Header, Kind, key_check, u16_at, u32_at};

/// First wait for a CLOSED; it doubles.
const FIRST_NS: u64 = 5_000_000;
/// Longest wait.
const LONGEST_NS: u64 = 320_000_000;
/// How often a CLOSE is sent.
const TRIES: u32 = 12;

/// Why a side has left; travels in a CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// VipDisconnect, or the process has ended in good order.
    Disconnected = 1,
    /// An error of its own, or a rule broken by the partner.
    Lost = 2,
    /// The operation named could not be received: no receive descriptor, too small, or bad (E6 to E8).
    ReceiveFailed = 3,
    /// The operation named wanted memory that is not permitted (E9, E10, E13).
    TargetRefused = 7,
}

/// The body of a CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) reason: Reason,
    /// VI that has left, for the answer of a side that does not know the connection any more.
    pub(crate) from_vi: u32,
    /// Operations of the partner that have been processed; the next one is to blame.
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
            // Whatever a later minor change may mean, the connection is lost.
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

/// A connection that has ended on this side.
#[derive(Clone, Debug)]
pub struct Closing {
    /// As all frames of this side, with the last sequence and acknowledgement.
    pub(crate) header: Header,
    pub(crate) body: Body,
    confirmed: bool,
    tries: u32,
    next_ns: u64,
}

impl Closing {
    /// `known`: the partner has left before, so nothing needs to be told.
    pub(crate) fn new(header: Header, body: Body, known: bool) -> Closing {
        Closing {
            header,
            body,
            confirmed: known,
            tries: 0,
            next_ns: 0,
        }
    }

    /// Nothing is left to do: the partner knows, or cannot be reached.
    pub fn is_done(&self) -> bool {
        self.confirmed || self.tries >= TRIES
    }

    /// When [`Closing::timeout`] wants to be called, in nanoseconds; `u64::MAX`: never.
    pub fn deadline(&self) -> u64 {
        if self.is_done() { NEVER } else { self.next_ns }
    }

    /// VI of this side that the connection belonged to, by which its frames are found.
    pub fn vi(&self) -> u32 {
        self.body.from_vi
    }

    /// Takes a frame for the connection that has ended. Wrong ones are ignored.
    pub fn received<T: Transmit>(&mut self, frame: &[u8], out: &mut T) {
        if let Ok((header, _)) = Header::parse(frame)
            && header.check == !self.header.check
            && header.to_vi == self.body.from_vi
        {
            self.take(&header, out);
        }
    }

    pub(crate) fn take<T: Transmit>(&mut self, header: &Header, out: &mut T) {
        match header.kind {
            Kind::Closed => self.confirmed = true,
            Kind::Close => {
                self.confirmed = true;
                self.confirm(out);
            }
            // It has not heard yet; the next CLOSE need not wait.
            Kind::Data | Kind::Probe | Kind::Ack => {}
        }
    }

    /// Repeats the CLOSE if it is time.
    pub fn timeout<T: Transmit>(&mut self, now_ns: u64, out: &mut T) {
        if self.is_done() || now_ns < self.next_ns {
            return;
        }
        let wait = (FIRST_NS << self.tries.min(16)).min(LONGEST_NS);
        self.tries += 1;
        self.next_ns = now_ns + wait;
        if let Some(mut frame) = out.frame() {
            let buffer = frame.as_mut();
            self.body.emit(&mut buffer[HEADER..HEADER + CLOSE_BODY]);
            let kind = Kind::Close;
            let bytes = Header {
                kind,
                ..self.header
            }
            .emit(buffer, CLOSE_BODY);
            out.transmit(frame, bytes);
        }
    }

    /// Tells the partner that its CLOSE has arrived. Lost ones are asked for again.
    pub(crate) fn confirm<T: Transmit>(&self, out: &mut T) {
        let kind = Kind::Closed;
        send_empty(
            &Header {
                kind,
                ..self.header
            },
            out,
        );
    }

    /// Answers a CLOSE for a connection that this side knows nothing of any more, so that the partner
    /// need not repeat it. The frame must have reached this endpoint. True if there was one to answer.
    pub fn answer_stray<T: Transmit>(frame: &[u8], out: &mut T) -> bool {
        let Ok((header, body)) = Header::parse(frame) else {
            return false;
        };
        let Some(body) = Body::parse(body).filter(|_| header.kind == Kind::Close) else {
            return false;
        };
        let answer = Header {
            kind: Kind::Closed,
            to_endpoint: header.from_endpoint,
            from_endpoint: header.to_endpoint,
            to_vi: body.from_vi,
            // The other side of the same key, whatever the key is.
            check: key_check(header.check, 1),
            sequence: header.acknowledged,
            acknowledged: header.sequence,
            window: 0,
            flags: 0,
        };
        send_empty(&answer, out);
        true
    }
}

/// Sends a frame without a body; a full device loses it.
pub(crate) fn send_empty<T: Transmit>(header: &Header, out: &mut T) -> bool {
    let Some(mut frame) = out.frame() else {
        return false;
    };
    let bytes = header.emit(frame.as_mut(), 0);
    out.transmit(frame, bytes);
    true
}
