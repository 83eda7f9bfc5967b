//! Exchanges: what two hosts tell each other about one connection, from the first REQUEST to the last GONE.
//!
//! Frames may be lost, duplicated or late. Therefore the side that waits for an answer repeats its frame, and
//! receiving a frame twice is harmless: its effect depends on the state of the exchange, which is remembered
//! for some time after the end.
//!
//! ```text
//!   asker                                             answerer
//!   Asking ─── REQUEST or PEER, repeated ───────────▶ Called      a call in the queues, or with a server
//!          ◀── ANSWER held, refused ────────────────            ─▶ Refused, remembered
//!                                                     Readying    its process attaches the VI
//!   Taking ◀── ANSWER accepted, repeated ──────────── Accepting
//!   its process attaches the VI
//!   Open   ─── ACK ─────────────────────────────────▶ Open
//!   Disconnecting ── DISCONNECT, repeated ──────────▶
//!          ◀── GONE ────────────────────────────────  Over, remembered
//! ```
//!
//! Both VIs are attached before either application learns of the connection, so no message is sent to a VI
//! that is not ready. An exchange is identified by an unpredictable number, so a third party on the link can
//! start an exchange but not affect another one.

#![forbid(unsafe_code)]

use kagent_proto::Reason;
use kagent_proto::setup::{Accepted, Refusal};

use crate::logic::values::ids::{CallKey, ConnectionId};
use crate::logic::values::timer::NS_PER_MS;

/// Delay before the first repetition; doubled for each further one.
pub(crate) const FIRST: u64 = 20 * NS_PER_MS;

/// Maximum delay between repetitions.
pub(crate) const SLOW: u64 = 1000 * NS_PER_MS;

/// Doublings until the maximum is reached.
pub(crate) const DOUBLINGS: u32 = 6;

/// Tries for a DISCONNECT: about five seconds.
pub(crate) const DISCONNECT_TRIES: u32 = 10;

/// Time for which the end of an exchange is remembered. No frame is that late.
pub(crate) const REMEMBERED: u64 = 5000 * NS_PER_MS;

/// A remote call expires if it is not repeated for ten times the maximum delay.
pub(crate) const STALE: u64 = 10 * SLOW;

/// An exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) state: State,
    /// The local user who started it, if any.
    pub(crate) user: Option<u32>,
    /// Deadline of its timer.
    pub(crate) due: Option<u64>,
    /// Number of times the frame of this state was sent.
    pub(crate) tries: u32,
    /// What has been heard of the other host, for a call that ends without an answer.
    pub(crate) heard: Reason,
}

/// State of an exchange on this host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// A local call waits for an answer.
    Asking(CallKey),
    /// The answer arrived; the local process is attaching its VI.
    Taking(ConnectionId),
    /// A call of the other host waits here.
    Called(CallKey),
    /// The local process is attaching its VI, with a deadline.
    Readying(ConnectionId, Accepted, u64),
    /// The acceptance is repeated until it is acknowledged, with a deadline.
    Accepting(ConnectionId, Accepted, u64),
    /// Connected.
    Open(ConnectionId),
    /// This side disconnected; DISCONNECT is repeated until it is acknowledged.
    Disconnecting {
        /// In good order.
        orderly: bool,
    },
    /// The call was refused.
    Refused(Refusal),
    /// The exchange ended.
    Over,
}

impl State {
    /// Involves no local process, and would be recreated by the next repetition from the other host.
    pub(crate) fn is_idle(self) -> bool {
        matches!(self, State::Called(_) | State::Refused(_) | State::Over)
    }
}

/// Delay before the next repetition.
pub(crate) fn interval(tries: u32) -> u64 {
    (FIRST << tries.min(DOUBLINGS)).min(SLOW)
}
