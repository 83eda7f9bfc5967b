//! The number of queued messages with descriptors, limited per user.
//!
//! A message that connects two processes holds a segment, a descriptor of the agent, until its process has
//! received it. Many may be queued at once: a process that requests a thousand connections receives a
//! thousand replies when its peer arrives, as fast as the peer sends requests. Therefore the limit is not per
//! process, but a share of the agent's descriptors per user, as for other resources: no user can exhaust
//! those that another one needs.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::budgets::share;

/// Fraction of the agent's descriptors that queued messages may hold.
const PART: usize = 4;

/// Queued messages with descriptors, per user.
#[derive(Debug)]
pub(super) struct Queued {
    users: BTreeMap<u32, usize>,
    total: usize,
    room: usize,
    /// Other users may connect, now or later.
    shared: bool,
}

impl Queued {
    /// For an agent with this number of descriptors for clients.
    pub(super) fn new(descriptors: usize, shared: bool) -> Self {
        Self {
            users: BTreeMap::new(),
            total: 0,
            room: descriptors / PART,
            shared,
        }
    }

    fn used(&self, user: u32) -> usize {
        self.users.get(&user).copied().unwrap_or(0)
    }

    /// Whether one more message of a user may be queued.
    pub(super) fn admits(&self, user: u32) -> bool {
        let used = self.used(user);
        let others = self.total - used;
        let limit = match self.shared {
            true => share(self.room, others),
            false => self.room.saturating_sub(others),
        };
        used < limit
    }

    /// Updates the count when the queue of one of the user's processes has changed.
    pub(super) fn change(&mut self, user: u32, before: usize, after: usize) {
        if before == after {
            return;
        }
        let used = self.used(user) + after - before;
        self.total = self.total + after - before;
        if used == 0 {
            self.users.remove(&user);
        } else {
            self.users.insert(user, used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_leaves_room_for_the_next_one() {
        let mut queued = Queued::new(400, true);
        let mut had = Vec::new();
        for user in 0..4 {
            let mut count = 0;
            while queued.admits(user) {
                queued.change(user, count, count + 1);
                count += 1;
            }
            had.push(count);
        }
        assert_eq!(had, [50, 25, 12, 6]);
        assert!(!queued.admits(0));
        // A process of the first user has been removed, with 30 of its messages.
        queued.change(0, 30, 0);
        assert!(queued.admits(0));
        for (user, count) in [(0, 20), (1, 25), (2, 12), (3, 6)] {
            queued.change(user, count, 0);
        }
        assert_eq!((queued.total, queued.users.len()), (0, 0));
    }

    #[test]
    fn a_single_user_has_all_of_it() {
        let mut queued = Queued::new(400, false);
        queued.change(7, 0, 99);
        assert!(queued.admits(7));
        queued.change(7, 99, 100);
        assert!(!queued.admits(7));
    }
}
