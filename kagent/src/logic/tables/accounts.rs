//! What each user has, held against what one user may have ([`limits`](crate::logic::limits)).
//!
//! Each table charges the account where it inserts and releases where it removes, so that a count cannot
//! differ from its table; `audit.rs` counts again.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use kagent_proto::{Budget, BudgetLine};

use crate::logic::limits::bounds;
use crate::logic::values::denial::Denial;

type Counts = [usize; Budget::COUNT];

/// The accounts of all users.
#[derive(Debug)]
pub(crate) struct Accounts {
    /// Users that have anything.
    users: BTreeMap<u32, Counts>,
    total: Counts,
    room: Counts,
    /// There may be other users, now or later.
    shared: bool,
}

/// How much one user may have of something, where the others have so much.
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

    /// Nobody but one user will come.
    pub(crate) fn set_single_user(&mut self) {
        self.shared = false;
    }

    /// Whether there may be other users.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// The system gives less of something than the limits would.
    pub(crate) fn set_room(&mut self, budget: Budget, room: usize) {
        let known = &mut self.room[budget as usize];
        *known = room.min(*known);
    }

    pub(crate) fn used(&self, user: u32, budget: Budget) -> usize {
        self.users
            .get(&user)
            .map_or(0, |counts| counts[budget as usize])
    }

    /// The most that a user may have now.
    pub(crate) fn limit(&self, user: u32, budget: Budget) -> usize {
        let others = self.total[budget as usize] - self.used(user, budget);
        let room = self.room[budget as usize];
        let left = match self.shared {
            true => share(room, others),
            false => room.saturating_sub(others),
        };
        left.min(bounds(budget).per_user)
    }

    /// Whether a user may have so many more.
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

    /// Users that have any of it.
    pub(crate) fn users_with(&self, budget: Budget) -> impl Iterator<Item = u32> {
        let users = self.users.iter();
        users.filter_map(move |(user, counts)| (counts[budget as usize] > 0).then_some(*user))
    }

    /// The statement of a user.
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
