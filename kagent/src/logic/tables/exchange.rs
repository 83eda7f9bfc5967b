//! Exchanges: what two hosts say to each other about one connection, from the first REQUEST to the last
//! GONE.
//!
//! A frame may get lost, come twice or late. So whoever waits for an answer repeats his frame, and every
//! frame may be taken twice: what it does depends on the state of its exchange, which is remembered for a
//! while after its end.
//!
//! ```text
//!   asker                                             answerer
//!   Asking ─── REQUEST or PEER, repeated ───────────▶ Called      a call in the queues, or with a server
//!          ◀── ANSWER held, refused ────────────────            ─▶ Refused, remembered
//!                                                     Readying    its process attaches the VI
//!   Taking ◀── ANSWER accepted, repeated ──────────── Accepting
//!   its process attaches the VI
//!   Open   ─── ACK ─────────────────────────────────▶ Open
//!   Leaving ── DISCONNECT, repeated ────────────────▶
//!          ◀── GONE ────────────────────────────────  Over, remembered
//! ```
//!
//! Both VIs are attached before either program hears of the connection, so that no message is sent to a
//! VI that is not ready for it. An exchange is named by a number that nobody can guess; a stranger on the
//! link can therefore begin one, and nothing else.

#![forbid(unsafe_code)]

use vipl_wire::setup::{Accepted, Refusal};

use crate::logic::values::ids::{CallKey, ConnectionId};
use crate::logic::values::timer::NS_PER_MS;

/// How long to wait before the first repetition; each further one takes twice as long.
pub(crate) const FIRST: u64 = 20 * NS_PER_MS;

/// The longest time between two repetitions.
pub(crate) const SLOW: u64 = 1000 * NS_PER_MS;

/// Doublings up to there.
pub(crate) const DOUBLINGS: u32 = 6;

/// How often a DISCONNECT is repeated: for some five seconds.
pub(crate) const LEAVING_TRIES: u32 = 10;

/// How long the end of an exchange is remembered. No frame is so late.
pub(crate) const REMEMBERED: u64 = 5000 * NS_PER_MS;

/// How long somebody counts as calling who does not repeat it: ten times as long as he takes.
pub(crate) const STALE: u64 = 10 * SLOW;

/// An exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) state: State,
    /// The user who began it, if it was one here.
    pub(crate) user: Option<u32>,
    /// When its timer goes off.
    pub(crate) due: Option<u64>,
    /// How often the frame of this state has been sent.
    pub(crate) tries: u32,
}

/// Where an exchange stands on this host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// Our call waits for an answer.
    Asking(CallKey),
    /// There is one; our process attaches its VI.
    Taking(ConnectionId),
    /// A call of the other host waits here.
    Called(CallKey),
    /// Our process attaches its VI, until then at the latest.
    Readying(ConnectionId, Accepted, u64),
    /// The other host is told so until it acknowledges, until then at the latest.
    Accepting(ConnectionId, Accepted, u64),
    /// Connected.
    Open(ConnectionId),
    /// We have left; the other host is told until it acknowledges.
    Leaving {
        /// In good order.
        orderly: bool,
    },
    /// The call has been refused.
    Refused(Refusal),
    /// There was something.
    Over,
}

impl State {
    /// It binds no process here, and would be begun again by the other host's next repetition.
    pub(crate) fn is_idle(self) -> bool {
        matches!(self, State::Called(_) | State::Refused(_) | State::Over)
    }
}

/// The time between repetitions.
pub(crate) fn interval(tries: u32) -> u64 {
    (FIRST << tries.min(DOUBLINGS)).min(SLOW)
}
