//! How fast one user gets data sockets.
//!
//! The kernel takes 10 to 40 ms to close a packet socket. A process that asks for one and hangs up leaves it
//! to the agent, and may do so thousands of times in a second. So a user of a shared agent gets a burst, and
//! from then on one at a time; who asks for more waits his turn, and who hangs up meanwhile costs nothing.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

use kagent_proto::{Budget, INTERFACE_BYTES, LinkOpen, Status};

use crate::agent::{Agent, Caller};
use crate::client::ClientId;
use crate::denial::Outcome;
use crate::timer::{NS_PER_MS, Timers};

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
    fn pop(&mut self, user: u32, now: u64) -> Option<(Caller, [u8; INTERFACE_BYTES])> {
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
}

impl<F: Clone> Agent<F> {
    /// `Op::LINK_OPEN`: at once, or when it is the user's turn.
    pub(crate) fn link_open(&mut self, caller: Caller, body: &LinkOpen) -> Outcome {
        let client = self.clients.get(&caller.client).ok_or(Status::INVALID)?;
        let user = client.uid;
        if !self.accounts.is_shared() {
            return self.link_open_now(caller, body.interface);
        }
        let waiting = self
            .paces
            .users
            .get(&user)
            .map_or(0, |pace| pace.waiting.len());
        self.accounts.admit(user, Budget::Endpoints, waiting + 1)?;
        if self.paces.users.len() > REMEMBERED {
            let now = self.now;
            let needed = |_: &u32, pace: &mut Pace| pace.paid > now || !pace.waiting.is_empty();
            self.paces.users.retain(needed);
        }
        let pace = self.paces.users.entry(user).or_default();
        pace.waiting.push_back((caller, body.interface));
        self.open_links_of(user);
        Ok(())
    }

    fn open_links_of(&mut self, user: u32) {
        while let Some((caller, interface)) = self.paces.pop(user, self.now) {
            if let Err(denial) = self.link_open_now(caller, interface) {
                self.done(caller, denial);
            }
        }
    }

    /// Opens those whose time has come.
    pub(crate) fn open_links_due(&mut self) {
        while let Some(user) = self.paces.timers.pop_due(self.now) {
            if let Some(pace) = self.paces.users.get_mut(&user) {
                pace.due = None;
            }
            self.open_links_of(user);
        }
    }

    /// A process has gone: it wants nothing any more.
    pub(crate) fn forget_waiting_links(&mut self, user: u32, client: ClientId) {
        if let Some(pace) = self.paces.users.get_mut(&user)
            && !pace.waiting.is_empty()
        {
            pace.waiting.retain(|(caller, _)| caller.client != client);
            if pace.waiting.is_empty() {
                self.paces.timers.stop(pace.due.take(), user);
            }
        }
    }
}
