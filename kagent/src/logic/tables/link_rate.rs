//! Rate limit for data sockets, per user.
//!
//! The kernel takes 10 to 40 ms to close a packet socket. A process that requests one and hangs up leaves the
//! closing to the agent, and could do so thousands of times per second. So a user of a shared agent gets a
//! burst, and after that one data socket at a time. Further requests are queued; those of a process that
//! hangs up are dropped without cost.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

use kagent_proto::LINK_BYTES;

use crate::logic::values::ids::{Caller, ClientId};
use crate::logic::values::timer::{NS_PER_MS, Timers};

/// Interval between data sockets.
const EACH: u64 = 20 * NS_PER_MS;

/// Size of the burst: 256 data sockets.
const AHEAD: u64 = 256 * EACH;

/// Buckets that are kept before idle ones are dropped.
const REMEMBERED: usize = 1024;

/// The token bucket of one user.
#[derive(Debug, Default)]
struct Bucket {
    /// The time at which the bucket is full again.
    paid: u64,
    waiting: VecDeque<(Caller, [u8; LINK_BYTES])>,
    /// Deadline of the timer of the first queued request.
    due: Option<u64>,
}

/// The token buckets of all users.
#[derive(Debug)]
pub(crate) struct LinkRate {
    users: BTreeMap<u32, Bucket>,
    timers: Timers<u32>,
}

impl LinkRate {
    pub(crate) fn new() -> Self {
        LinkRate {
            users: BTreeMap::new(),
            timers: Timers::new(),
        }
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Number of queued requests.
    pub(crate) fn len(&self) -> usize {
        self.users.values().map(|pace| pace.waiting.len()).sum()
    }

    /// Removes the first queued request if the bucket allows it; otherwise starts its timer.
    pub(crate) fn pop(&mut self, user: u32, now: u64) -> Option<(Caller, [u8; LINK_BYTES])> {
        let pace = self.users.get_mut(&user)?;
        self.timers.stop(pace.due.take(), user);
        if pace.waiting.is_empty() {
            return None;
        }
        let free = pace.paid.saturating_sub(AHEAD);
        if free > now {
            pace.due = Some(free);
            self.timers.start(pace.due, user);
            return None;
        }
        pace.paid = pace.paid.max(now).saturating_add(EACH);
        pace.waiting.pop_front()
    }

    /// Number of queued requests of a user.
    pub(crate) fn waiting(&self, user: u32) -> usize {
        self.users.get(&user).map_or(0, |pace| pace.waiting.len())
    }

    /// Queues a request. [`pop`](Self::pop) returns it when the bucket allows.
    pub(crate) fn push(
        &mut self,
        user: u32,
        caller: Caller,
        interface: [u8; LINK_BYTES],
        now: u64,
    ) {
        if self.users.len() > REMEMBERED {
            let needed = |_: &u32, pace: &mut Bucket| pace.paid > now || !pace.waiting.is_empty();
            self.users.retain(needed);
        }
        let pace = self.users.entry(user).or_default();
        pace.waiting.push_back((caller, interface));
    }

    /// The next user whose timer has expired.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<u32> {
        let user = self.timers.pop_due(now)?;
        if let Some(pace) = self.users.get_mut(&user) {
            pace.due = None;
        }
        Some(user)
    }

    /// Drops the requests of a process that is gone.
    pub(crate) fn forget(&mut self, user: u32, client: ClientId) {
        if let Some(pace) = self.users.get_mut(&user)
            && !pace.waiting.is_empty()
        {
            pace.waiting.retain(|(caller, _)| caller.client != client);
            if pace.waiting.is_empty() {
                self.timers.stop(pace.due.take(), user);
            }
        }
    }
}
