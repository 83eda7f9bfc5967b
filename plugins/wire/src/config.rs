//! The configuration of a connection, and its counters.

use crate::env::Level;
use crate::frame::Refused;
use crate::seal::SealKey;

/// Default of [`Config::ack_delay_ns`].
pub const ACK_DELAY_NS: u64 = 20_000;
/// Default of [`Config::patience_ns`] for a peer on another host. A dead peer must be detected within ten seconds
/// (spec §6.4).
pub const PATIENCE_NS: u64 = 9_000_000_000;

/// A deadline that never passes.
pub(crate) const NEVER: u64 = u64::MAX;
/// Receive window: DATA frames accepted from the acknowledged one on.
pub(crate) const WINDOW: u16 = 256;
/// Receive window across routers, where round trips are longer.
pub(crate) const WINDOW_SHARED: u16 = 1024;

/// Parameters agreed by both sides, and which side this one is.
#[derive(Clone, Copy)]
pub struct Config {
    /// Key of the connection: unpredictable, unique, and known to its two sides only.
    pub key: u64,
    /// 0 at one side, 1 at the other.
    pub side: u32,
    /// Reliability level.
    pub level: Level,
    /// Largest frame in bytes, without the link's header: the smaller of the two sides' limits, at least
    /// [`crate::MTU_MIN`].
    pub mtu: u16,
    /// MaxTransferSize of the two VIs, in bytes.
    pub max_transfer: u32,
    /// VI number of this side.
    pub own_vi: u32,
    /// The peer's.
    pub peer_vi: u32,
    /// Endpoint of this side.
    pub own_endpoint: u16,
    /// The peer's.
    pub peer_endpoint: u16,
    /// Immediate data is transferred even if its flag is not set (compatible mode).
    pub carry_immediate: bool,
    /// How long an acknowledgement may be delayed, in nanoseconds.
    pub ack_delay_ns: u64,
    /// Silence after which the peer counts as dead, in nanoseconds: at least five seconds. The first PROBE is sent after
    /// two to four seconds; from then on only time in which this side has polled counts.
    pub patience_ns: u64,
    /// The current time, in nanoseconds of any monotonic clock.
    pub now_ns: u64,
    /// Number of the first operation of each kind, the same at both sides: 0, or in tests shortly before the wrap.
    pub count_from: u32,
    /// The path has other users, as across routers: every loss counts as congestion, as in TCP, and the largest frame
    /// size of the path is searched for.
    pub shared_path: bool,
    /// Key of the seals, shared with the peer and unique to the connection. If present, frames in both directions are
    /// sealed.
    pub seal: Option<SealKey>,
}

impl Config {
    /// Receive window of this side.
    #[inline(always)]
    pub(crate) fn window(&self) -> u16 {
        if self.shared_path {
            WINDOW_SHARED
        } else {
            WINDOW
        }
    }

    /// Number of the first frame of a side. Both sides derive it from the key.
    pub(crate) fn first(&self, side: u32) -> u32 {
        (self.key >> (32 * (side & 1))) as u32
    }
}

/// Result of [`Connection::received`](crate::Connection::received).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The frame is from the peer and has been processed.
    Taken,
    /// The frame belongs to another connection: another VI, or the wrong key.
    WrongKey,
    /// The frame was dropped.
    Refused(Refused),
}

/// Counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Frames sent, of all kinds.
    pub frames_sent: u64,
    /// Frames received, of all kinds, dropped ones included.
    pub frames_received: u64,
    /// DATA frames retransmitted.
    pub sent_again: u64,
    /// Duplicate DATA frames received.
    pub duplicates: u64,
    /// DATA frames received out of order and kept.
    pub out_of_order: u64,
    /// Frames with a wrong CRC.
    pub corrupt: u64,
    /// Frames with the wrong key or VI.
    pub wrong_key: u64,
    /// Frames without a valid seal, or with a seal on a connection without seals.
    pub wrong_seal: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Those of them that followed another without an acknowledgement in between, while the peer was not silent.
    pub repeated_timeouts: u64,
    /// Number of times that the path stopped carrying frames of the size in use.
    pub black_holes: u64,
}
