//! How fast one user gets data sockets.
//!
//! The kernel takes 10 to 40 ms to close a packet socket. A process that asks for one and hangs up leaves it
//! to the agent, and may do so thousands of times in a second. So a user of a shared agent gets a burst, and
//! from then on one at a time; who asks for more waits his turn, and who hangs up meanwhile costs nothing.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

use kagent_proto::INTERFACE_BYTES;

use crate::logic::values::ids::{Caller, ClientId};
use crate::logic::values::timer::{NS_PER_MS, Timers};

/// Time for each data socket.
const EACH: u64 = 20 * NS_PER_MS;

/// A user may be so far ahead of that: 256 data sockets.
const AHEAD: u64 = 256 * EACH;

/// Users whose pace is remembered although they wait for nothing, before those that need it no more are
/// forgotten.
const REMEMBERED: usize = 1024;

/// The pace of one user.
#[derive(Debug, Default)]
struct Pace {
    /// When all that he has had so far would be paid for.
    paid: u64,
    waiting: VecDeque<(Caller, [u8; INTERFACE_BYTES])>,
    /// When the timer of the first that waits goes off.
    due: Option<u64>,
}

/// The paces of all users.
#[derive(Debug)]
pub(crate) struct Paces {
    users: BTreeMap<u32, Pace>,
    timers: Timers<u32>,
}

impl Paces {
    pub(crate) fn new() -> Self {
        Paces {
            users: BTreeMap::new(),
            timers: Timers::new(),
        }
    }

    /// When the next data socket is due.
    pub(crate) fn next(&self) -> Option<u64> {
        self.timers.next()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.users.values().map(|pace| pace.waiting.len()).sum()
    }

    /// Takes the first that waits, if its time has come; else its timer runs.
    pub(crate) fn pop(&mut self, user: u32, now: u64) -> Option<(Caller, [u8; INTERFACE_BYTES])> {
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

    /// How many of a user wait.
    pub(crate) fn waiting(&self, user: u32) -> usize {
        self.users.get(&user).map_or(0, |pace| pace.waiting.len())
    }

    /// Queues a call. [`pop`](Self::pop) gives it out when its time has come.
    pub(crate) fn push(
        &mut self,
        user: u32,
        caller: Caller,
        interface: [u8; INTERFACE_BYTES],
        now: u64,
    ) {
        if self.users.len() > REMEMBERED {
            let needed = |_: &u32, pace: &mut Pace| pace.paid > now || !pace.waiting.is_empty();
            self.users.retain(needed);
        }
        let pace = self.users.entry(user).or_default();
        pace.waiting.push_back((caller, interface));
    }

    /// The next user whose first call may have come to its time.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<u32> {
        let user = self.timers.pop_due(now)?;
        if let Some(pace) = self.users.get_mut(&user) {
            pace.due = None;
        }
        Some(user)
    }

    /// A process has gone: its calls leave the queue.
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
