//! Limits of every table. No process can make the agent grow without bound, and no user can exhaust what
//! other users need.
//!
//! A call beyond a limit fails with `Status::RESOURCE` and the limit; a process beyond a limit is refused
//! with the reason. Limits per user are *budgets*:
//!
//! ```text
//!   a user may have   min(per_user, (room - what all others have) / 2)
//! ```
//!
//! so a user can take at most half of what the others leave, and something is always left for the next user.
//! An agent that serves a single user gives it all room, up to `per_user`.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

use kagent_proto::{Budget, BudgetLine, LINK_BYTES};

use crate::logic::ids::{Caller, ClientId};
use crate::logic::message::Denial;
use crate::logic::queues::{NS_PER_MS, Timers};

/// The bounds of one budget.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// For all users together.
    pub room: usize,
    /// For one user.
    pub per_user: usize,
}

/// The limits of a budget. Descriptors are also limited by the resource limits of the agent.
pub const fn bounds(budget: Budget) -> Bounds {
    let (room, per_user) = match budget {
        Budget::Processes => (4096, 1024),
        Budget::Nics => (32_768, 4096),
        // About 1.6 KB each. One process may ask for the connections of all VIs of a NIC handle at once.
        Budget::Calls => (65_536, 24_576),
        // About 300 bytes each. A connection within one host has two sides.
        Budget::Connections => (393_216, 131_072),
        Budget::Endpoints => (32_768, 4096),
        Budget::Exchanges => (32_768, 16_384),
        Budget::Descriptors => (1 << 20, 1 << 20),
        Budget::Names => (65_536, 24_576),
        Budget::Parted => (65_536, 32_768),
    };
    Bounds { room, per_user }
}

/// Descriptors reserved for the runtime: epoll, signals, log, listener, links.
pub const DESCRIPTORS_RESERVED: usize = 64;
/// Descriptors that the agent holds per client: its socket and its pidfd.
pub const DESCRIPTORS_PER_CLIENT: usize = 2;
/// Maximum open NICs per process.
pub const NICS_PER_CLIENT_MAX: usize = 64;
/// Maximum data sockets per process.
pub const ENDPOINTS_PER_CLIENT_MAX: usize = 64;
/// Maximum waiting calls per process.
pub const CALLS_PER_CLIENT_MAX: usize = 16_384;
/// Maximum connections and unanswered connection handles per process.
pub const CONNECTIONS_PER_CLIENT_MAX: usize = 65_536;
/// Time a user keeps a discriminator on an interface after its last wait there, in milliseconds. A server
/// that accepts one request at a time does not wait while it handles a request.
pub const NAME_GRACE_MS: u64 = 5000;
/// Time an adopted side of a connection waits for the other side, in milliseconds. A process reports as soon
/// as it notices that its agent has exited; only a stopped or dead process takes this long.
pub const ADOPT_TIME_MS: u64 = 10_000;
/// Maximum exchanges on one link started by other hosts. Further ones are not answered.
pub const EXCHANGES_PER_LINK_MAX: usize = 16_384;
/// Maximum of these exchanges that wait for a server or are remembered after their end. One host may have
/// half of what the others leave. A request beyond the limit is matched if a server waits at that moment, and
/// otherwise dropped; the sender repeats it.
pub const IDLE_EXCHANGES_PER_LINK_MAX: usize = 8192;
/// Maximum descriptors that a NIC passes to its peers.
pub const NIC_FDS_MAX: usize = 2;
/// Page size; the shared segment of a connection is a whole number of pages, at least one.
pub const PAGE_BYTES: u32 = 4096;

type Counts = [usize; Budget::COUNT];

/// Resource usage of all users, checked against the limits.
///
/// Each table charges the account where it inserts and releases where it removes, so that a count cannot
/// differ from its table; `audit.rs` counts again.
#[derive(Debug)]
pub(crate) struct Accounts {
    /// Users with any resources.
    users: BTreeMap<u32, Counts>,
    total: Counts,
    room: Counts,
    /// Other users may connect, now or later.
    shared: bool,
}

/// The share of one user, given the usage of all others.
pub(crate) fn share(room: usize, others: usize) -> usize {
    room.saturating_sub(others) / 2
}

impl Accounts {
    pub(crate) fn new() -> Self {
        Accounts {
            users: BTreeMap::new(),
            total: [0; Budget::COUNT],
            room: Budget::ALL.map(|budget| bounds(budget).room),
            shared: true,
        }
    }

    /// Declares that only one user is served.
    pub(crate) fn set_single_user(&mut self) {
        self.shared = false;
    }

    /// Whether there may be other users.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Lowers the room of a budget to what the system provides.
    pub(crate) fn set_room(&mut self, budget: Budget, room: usize) {
        let known = &mut self.room[budget as usize];
        *known = room.min(*known);
    }

    pub(crate) fn used(&self, user: u32, budget: Budget) -> usize {
        self.users
            .get(&user)
            .map_or(0, |counts| counts[budget as usize])
    }

    /// The current limit of a user.
    pub(crate) fn limit(&self, user: u32, budget: Budget) -> usize {
        let others = self.total[budget as usize] - self.used(user, budget);
        let room = self.room[budget as usize];
        let left = match self.shared {
            true => share(room, others),
            false => room.saturating_sub(others),
        };
        left.min(bounds(budget).per_user)
    }

    /// Checks whether a user may have `more` of a budget.
    pub(crate) fn admit(&self, user: u32, budget: Budget, more: usize) -> Result<(), Denial> {
        let (used, limit) = (self.used(user, budget), self.limit(user, budget));
        if used + more > limit {
            return Err(Denial::user(budget, user, used, limit));
        }
        Ok(())
    }

    pub(crate) fn charge(&mut self, user: u32, budget: Budget, count: usize) {
        self.users.entry(user).or_default()[budget as usize] += count;
        self.total[budget as usize] += count;
    }

    pub(crate) fn release(&mut self, user: u32, budget: Budget, count: usize) {
        let Some(counts) = self.users.get_mut(&user) else {
            debug_assert!(count == 0, "user {user} has no {}", budget.name());
            return;
        };
        debug_assert!(counts[budget as usize] >= count, "{}", budget.name());
        counts[budget as usize] -= count;
        self.total[budget as usize] -= count;
        if counts.iter().all(|count| *count == 0) {
            self.users.remove(&user);
        }
    }

    /// Users with any usage of a budget.
    pub(crate) fn users_with(&self, budget: Budget) -> impl Iterator<Item = u32> {
        let users = self.users.iter();
        users.filter_map(move |(user, counts)| (counts[budget as usize] > 0).then_some(*user))
    }

    /// Usage and limit of all budgets of a user.
    pub(crate) fn lines(&self, user: u32) -> [BudgetLine; Budget::COUNT] {
        Budget::ALL.map(|budget| BudgetLine {
            used: self.used(user, budget) as u64,
            limit: self.limit(user, budget) as u64,
        })
    }

    /// All counts that are not 0, for tests.
    pub(crate) fn counts(&self) -> BTreeMap<(u32, Budget), usize> {
        let each = |(&user, counts): (&u32, &Counts)| {
            Budget::ALL.map(|budget| ((user, budget), counts[budget as usize]))
        };
        let all = self.users.iter().flat_map(each);
        all.filter(|(_, count)| *count > 0).collect()
    }
}

/// Interval between data sockets.
const INTERVAL: u64 = 20 * NS_PER_MS;

/// Size of the burst: 256 data sockets.
const BURST: u64 = 256 * INTERVAL;

/// Number of buckets above which idle ones are dropped.
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

/// Rate limit for data sockets, per user.
///
/// The kernel takes 10 to 40 ms to close a packet socket. A process that requests one and hangs up leaves
/// closing it to the agent, and could do so thousands of times per second. Therefore a user of a shared agent
/// gets a burst, and then one data socket per interval. Further requests are queued; those of a process that
/// hangs up are dropped without cost.
#[derive(Debug, Default)]
pub(crate) struct LinkRate {
    users: BTreeMap<u32, Bucket>,
    timers: Timers<u32>,
}

impl LinkRate {
    /// The next deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Number of queued requests.
    pub(crate) fn len(&self) -> usize {
        self.users.values().map(|bucket| bucket.waiting.len()).sum()
    }

    /// Removes the first queued request if the bucket allows it; otherwise starts its timer.
    pub(crate) fn pop(&mut self, user: u32, now: u64) -> Option<(Caller, [u8; LINK_BYTES])> {
        let bucket = self.users.get_mut(&user)?;
        self.timers.stop(bucket.due.take(), user);
        if bucket.waiting.is_empty() {
            return None;
        }
        let free = bucket.paid.saturating_sub(BURST);
        if free > now {
            bucket.due = Some(free);
            self.timers.start(bucket.due, user);
            return None;
        }
        bucket.paid = bucket.paid.max(now).saturating_add(INTERVAL);
        bucket.waiting.pop_front()
    }

    /// Number of queued requests of a user.
    pub(crate) fn waiting(&self, user: u32) -> usize {
        self.users
            .get(&user)
            .map_or(0, |bucket| bucket.waiting.len())
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
            let needed =
                |_: &u32, bucket: &mut Bucket| bucket.paid > now || !bucket.waiting.is_empty();
            self.users.retain(needed);
        }
        let bucket = self.users.entry(user).or_default();
        bucket.waiting.push_back((caller, interface));
    }

    /// The next user whose timer has expired.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<u32> {
        let user = self.timers.pop_due(now)?;
        if let Some(bucket) = self.users.get_mut(&user) {
            bucket.due = None;
        }
        Some(user)
    }

    /// Drops the requests of a process that has exited.
    pub(crate) fn forget(&mut self, user: u32, client: ClientId) {
        if let Some(bucket) = self.users.get_mut(&user)
            && !bucket.waiting.is_empty()
        {
            bucket.waiting.retain(|(caller, _)| caller.client != client);
            if bucket.waiting.is_empty() {
                self.timers.stop(bucket.due.take(), user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_something_left_for_one_who_comes_later() {
        let mut accounts = Accounts::new();
        let budget = Budget::Descriptors;
        accounts.set_room(budget, 1000);
        let mut had = Vec::new();
        for user in 0..6 {
            let mut count = 0;
            while accounts.admit(user, budget, 1).is_ok() {
                accounts.charge(user, budget, 1);
                count += 1;
            }
            had.push(count);
        }
        assert_eq!(had, [500, 250, 125, 62, 31, 16]);
        for (user, count) in (0..6).zip(had) {
            accounts.release(user, budget, count);
        }
        assert!(accounts.counts().is_empty());
    }

    #[test]
    fn an_agent_of_one_user_gives_it_all() {
        let mut accounts = Accounts::new();
        accounts.set_single_user();
        accounts.set_room(Budget::Descriptors, 1000);
        assert_eq!(accounts.limit(7, Budget::Descriptors), 1000);
        assert!(accounts.admit(7, Budget::Descriptors, 1001).is_err());
    }
}
