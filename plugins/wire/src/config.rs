//! What a connection is made from, and what it tells about itself.

use crate::env::Level;
use crate::frame::Refused;

/// How long an acknowledgement waits for company, in nanoseconds.
pub const ACK_DELAY_NS: u64 = 20_000;
/// Questions without an answer after which a partner on another host is dead: nine seconds of silence, of the
/// ten that there are for noticing it (spec §6.4).
pub const PROBES: u32 = 7;

/// A deadline that never passes.
pub(crate) const NEVER: u64 = u64::MAX;
/// DATA frames from the acknowledged one on that a receiver accepts.
pub(crate) const WINDOW: u16 = 256;

/// What the two sides have agreed on, and what this side is.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The connection's key: the same at both sides, different for every connection, not to be guessed.
    pub key: u64,
    /// 0 at one side, 1 at the other.
    pub side: u32,
    /// Reliability level.
    pub level: Level,
    /// Bytes of one frame behind the link's header, the smaller of the two sides' links; at least
    /// [`crate::MTU_MIN`].
    pub mtu: u16,
    /// MaxTransferSize of the two VIs, in bytes.
    pub max_transfer: u32,
    /// This side's VI number.
    pub own_vi: u32,
    /// The partner's.
    pub partner_vi: u32,
    /// This side's endpoint.
    pub own_endpoint: u16,
    /// The partner's.
    pub partner_endpoint: u16,
    /// Immediate data travels without the flag too (compatible mode).
    pub carry_immediate: bool,
    /// How long an acknowledgement may be held back for company, in nanoseconds.
    pub ack_delay_ns: u64,
    /// Questions without an answer after which the partner is dead. The first is asked after two seconds of
    /// silence, then one every second in which this side looks for the answer.
    pub probes_max: u32,
    /// The time now, in nanoseconds of any monotonic clock.
    pub now_ns: u64,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// It was the partner's, and has been dealt with.
    Taken,
    /// It is not of this connection: another VI, or the wrong key.
    WrongKey,
    /// It was dropped.
    Refused(Refused),
}

/// What a connection has counted. Counters wrap never, in practice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Frames sent, of all kinds.
    pub frames_sent: u64,
    /// Frames received, of all kinds, dropped ones included.
    pub frames_received: u64,
    /// DATA frames that were sent again.
    pub sent_again: u64,
    /// DATA frames that came more than once.
    pub duplicates: u64,
    /// DATA frames that came before their turn and were kept.
    pub out_of_order: u64,
    /// Frames with a wrong CRC.
    pub corrupt: u64,
    /// Frames with the wrong key or VI.
    pub wrong_key: u64,
    /// Waits for an acknowledgement that were in vain.
    pub timeouts: u64,
}
