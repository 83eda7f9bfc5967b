//! The frames by which Kernel Agents of two hosts set up connections: formatting and parsing only. `kagent`
//! implements the exchange; docs/WIRE.md has a diagram of each frame.
//!
//! Frames come from the network and are not trusted. Every length and every value is checked, and no input
//! allocates or panics. Host addresses are those of the Ethernet or IP header and are not repeated in the frame. The
//! checksum is that of the data frames (`vipl-wire`); version numbers of the two protocols are independent.

mod call;
mod datagram;
mod reader;

use vipl_sys::crc::crc32c;

pub use call::{Attributes, Call, DISCRIMINATOR_MAX, Discriminator};
pub use datagram::{DATAGRAM_MAX, Datagram, Opened, SEAL};

use reader::{Reader, Writer};

/// Ethertype of these frames, the second one reserved for local experiments. Data frames have another one, so
/// that the kernel does not also deliver them to the agent.
pub const SETUP_ETHERTYPE: u16 = 0x88B6;
/// The version of this protocol.
pub const VERSION: u8 = 1;
/// Longest frame in bytes, without the Ethernet header.
pub const FRAME_MAX: usize = HEADER + Call::BYTES_MAX + TRAILER;

/// Bytes before the body: version, kind, length, exchange.
const HEADER: usize = 12;
/// Bytes after the body, the CRC32C.
const TRAILER: usize = 4;

const REQUEST: u8 = 1;
const PEER: u8 = 2;
const ANSWER: u8 = 3;
const ACK: u8 = 4;
const DISCONNECT: u8 = 5;
const GONE: u8 = 6;
const WHO: u8 = 7;
const HERE: u8 = 8;
/// Equal in every version, as is the layout of the header.
const VERSIONS: u8 = 0xFF;

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Identifies the exchange; a random number chosen by the initiator.
    pub exchange: u64,
    /// Contents.
    pub body: Body,
}

/// Which of the two sides of an exchange sent a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The initiator, which sent a REQUEST or a PEER.
    Asker,
    /// The responder.
    Answerer,
}

/// Contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A client requests a connection. Repeated until there is a final answer.
    Request(Call),
    /// A peer requests a connection.
    Peer(Call),
    /// Answers both.
    Answer(Answer),
    /// The initiator has attached its VI: the connection is established.
    Ack,
    /// The sender has disconnected or given up. Repeated until a GONE is received.
    Disconnect {
        /// The sender.
        from: Side,
        /// False if the process died.
        orderly: bool,
    },
    /// The sender has no state of the exchange any more.
    Gone {
        /// The sender.
        from: Side,
    },
    /// Broadcast: which hosts are on this link?
    Who,
    /// Answers a WHO.
    Here,
}

/// The answer to a REQUEST or a PEER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Received, and pending.
    Held,
    /// A VI is ready.
    Accepted(Accepted),
    /// No connection is made.
    Refused(Refusal),
}

/// The answerer's side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Endpoint for frames to it.
    pub endpoint: u16,
    /// Number of the VI at that endpoint.
    pub vi: u32,
    /// Key of the connection.
    pub key: u64,
    /// The VI.
    pub attributes: Attributes,
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// No server waits on this discriminator.
    NoMatch = 2,
    /// The server rejected it, or has exited.
    Rejected = 3,
    /// The answerer gave up.
    Timeout = 4,
    /// Reliability levels differ (peers only).
    Reliability = 5,
    /// Transfer sizes differ (peers only).
    TransferSize = 6,
    /// Qualities of service differ (peers only).
    Quality = 7,
    /// The host lacks a resource.
    Resource = 8,
}

const HELD: u8 = 0;
const ACCEPTED: u8 = 1;
const REFUSALS: [Refusal; 7] = [
    Refusal::NoMatch,
    Refusal::Rejected,
    Refusal::Timeout,
    Refusal::Reliability,
    Refusal::TransferSize,
    Refusal::Quality,
    Refusal::Resource,
];

/// Why a frame is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Too short, or its length differs from the stated one.
    Length,
    /// Another version, to be answered by [`answer_version`].
    Version(u8),
    /// The remote host supports these versions only, lowest and highest, and refused our frame.
    OtherVersion(u64, u8, u8),
    /// The CRC is wrong.
    Corrupt,
    /// Unknown kind of frame.
    Kind(u8),
    /// A value out of its range.
    Value,
}

impl Frame {
    /// Writes the frame; returns its length.
    pub fn emit(&self, room: &mut [u8; FRAME_MAX]) -> usize {
        let mut out = Writer::new(room);
        out.u8(VERSION);
        out.u8(self.body.kind());
        out.u16(0);
        out.u64(self.exchange);
        match &self.body {
            Body::Request(call) | Body::Peer(call) => call.emit(&mut out),
            Body::Answer(answer) => answer.emit(&mut out),
            Body::Disconnect { from, orderly } => {
                out.u8(from.code());
                out.u8(u8::from(*orderly));
            }
            Body::Gone { from } => out.u8(from.code()),
            Body::Ack | Body::Who | Body::Here => {}
        }
        out.finish()
    }

    /// Parses a frame. Bytes beyond its stated length are padding.
    pub fn parse(bytes: &[u8]) -> Result<Frame, Refused> {
        let mut header = Reader::new(bytes);
        let version = header.u8()?;
        let kind = header.u8()?;
        let length = usize::from(header.u16()?);
        let exchange = header.u64()?;
        let frame = bytes.get(..length).ok_or(Refused::Length)?;
        let (checked, trailer) = frame
            .len()
            .checked_sub(TRAILER)
            .filter(|checked| *checked >= HEADER)
            .map(|checked| frame.split_at(checked))
            .ok_or(Refused::Length)?;
        if crc32c(checked).to_be_bytes() != trailer {
            return Err(Refused::Corrupt);
        }
        // After the CRC: a corrupted version field must not end a call that a retransmission would complete.
        if version != VERSION && kind != VERSIONS {
            return Err(Refused::Version(version));
        }
        let mut body = Reader::new(&checked[HEADER..]);
        if kind == VERSIONS {
            let (lowest, highest) = (body.u8()?, body.u8()?);
            return Err(Refused::OtherVersion(exchange, lowest, highest));
        }
        let body = Body::parse(kind, &mut body)?;
        Ok(Frame { exchange, body })
    }
}

/// Version negotiation: the answer to a frame of another version. A VERSIONS is never answered.
pub fn answer_version(bytes: &[u8], room: &mut [u8; FRAME_MAX]) -> Option<usize> {
    let Err(Refused::Version(version)) = Frame::parse(bytes) else {
        return None;
    };
    let mut out = Writer::new(room);
    out.u8(VERSION);
    out.u8(VERSIONS);
    out.u16(0);
    out.copy(&bytes[4..HEADER]);
    out.copy(&[VERSION, VERSION, version, 0]);
    Some(out.finish())
}

impl Side {
    /// The opposite side.
    pub fn other(self) -> Side {
        match self {
            Side::Asker => Side::Answerer,
            Side::Answerer => Side::Asker,
        }
    }

    fn code(self) -> u8 {
        match self {
            Side::Asker => 0,
            Side::Answerer => 1,
        }
    }

    fn parse(code: u8) -> Result<Side, Refused> {
        match code {
            0 => Ok(Side::Asker),
            1 => Ok(Side::Answerer),
            _ => Err(Refused::Value),
        }
    }
}

impl Body {
    fn kind(&self) -> u8 {
        match self {
            Body::Request(_) => REQUEST,
            Body::Peer(_) => PEER,
            Body::Answer(_) => ANSWER,
            Body::Ack => ACK,
            Body::Disconnect { .. } => DISCONNECT,
            Body::Gone { .. } => GONE,
            Body::Who => WHO,
            Body::Here => HERE,
        }
    }

    fn parse(kind: u8, from: &mut Reader<'_>) -> Result<Body, Refused> {
        let body = match kind {
            REQUEST => Body::Request(Call::parse(from)?),
            PEER => Body::Peer(Call::parse(from)?),
            ANSWER => Body::Answer(Answer::parse(from)?),
            ACK => Body::Ack,
            DISCONNECT => Body::Disconnect {
                from: Side::parse(from.u8()?)?,
                orderly: from.truth()?,
            },
            GONE => Body::Gone {
                from: Side::parse(from.u8()?)?,
            },
            WHO => Body::Who,
            HERE => Body::Here,
            kind => return Err(Refused::Kind(kind)),
        };
        from.end()?;
        Ok(body)
    }
}

impl Answer {
    /// All answers are as long as the shortest REQUEST, so that a forged request is not amplified.
    fn emit(&self, out: &mut Writer<'_>) {
        let (code, accepted) = match self {
            Answer::Held => (HELD, None),
            Answer::Accepted(accepted) => (ACCEPTED, Some(*accepted)),
            Answer::Refused(refusal) => (*refusal as u8, None),
        };
        let accepted = accepted.unwrap_or(Accepted {
            endpoint: 0,
            vi: 0,
            key: 0,
            attributes: Attributes::default(),
        });
        out.u8(code);
        out.u16(accepted.endpoint);
        out.u32(accepted.vi);
        out.u64(accepted.key);
        accepted.attributes.emit(out);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Answer, Refused> {
        let code = from.u8()?;
        let accepted = Accepted {
            endpoint: from.u16()?,
            vi: from.u32()?,
            key: from.u64()?,
            attributes: Attributes::parse(from)?,
        };
        match code {
            HELD => Ok(Answer::Held),
            ACCEPTED => Ok(Answer::Accepted(accepted)),
            code => REFUSALS
                .into_iter()
                .find(|refusal| *refusal as u8 == code)
                .map(Answer::Refused)
                .ok_or(Refused::Value),
        }
    }
}

#[cfg(test)]
mod tests;
