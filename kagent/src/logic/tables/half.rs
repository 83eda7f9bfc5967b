//! Connections of a previous agent of which one side has been adopted (`commands/adopt.rs`).

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use kagent_proto::{Attributes, Budget};

use crate::logic::limits::ADOPT_TIME_MS;
use crate::logic::tables::accounts::Accounts;
use crate::logic::values::ids::{ConnectionId, HalfName};
use crate::logic::values::timer::{Timers, deadline};

/// A connection of which one side has been adopted.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) side: u32,
    pub(crate) state: HalfState,
    deadline: Option<u64>,
}

/// State of the side that was adopted first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HalfState {
    /// It waits for the other side.
    Waiting(ConnectionId, Attributes),
    /// It disconnected again, in good order or not.
    Parted(bool),
}

/// All connections of which one side has been adopted.
#[derive(Debug)]
pub(crate) struct Halves {
    by_name: BTreeMap<HalfName, Half>,
    timers: Timers<HalfName>,
}

impl Halves {
    pub(crate) fn new() -> Self {
        Halves {
            by_name: BTreeMap::new(),
            timers: Timers::new(),
        }
    }

    pub(crate) fn get(&self, name: &HalfName) -> Option<&Half> {
        self.by_name.get(name)
    }

    /// Keeps the first side of a connection until the other is adopted or the deadline passes.
    pub(crate) fn insert(&mut self, name: HalfName, side: u32, state: HalfState, now: u64) {
        let deadline = deadline(now, ADOPT_TIME_MS);
        self.timers.start(deadline, name);
        let half = Half {
            side,
            state,
            deadline,
        };
        self.by_name.insert(name, half);
    }

    pub(crate) fn take(&mut self, name: HalfName, accounts: &mut Accounts) -> Option<Half> {
        let half = self.by_name.remove(&name)?;
        self.timers.stop(half.deadline, name);
        if let HalfState::Parted(_) = half.state {
            accounts.release(name.0, Budget::Parted, 1);
        }
        Some(half)
    }

    /// The adopted side disconnected; its partner is told when it is adopted.
    pub(crate) fn part(
        &mut self,
        name: HalfName,
        orderly: bool,
        now: u64,
        accounts: &mut Accounts,
    ) {
        let Some(half) = self.take(name, accounts) else {
            return;
        };
        let (user, _) = name;
        if accounts.admit(user, Budget::Parted, 1).is_ok() {
            accounts.charge(user, Budget::Parted, 1);
            self.insert(name, half.side, HalfState::Parted(orderly), now);
        }
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Drops expired entries. Returns the next side whose partner was not adopted in time.
    pub(crate) fn pop_due(&mut self, now: u64, accounts: &mut Accounts) -> Option<ConnectionId> {
        while let Some(name) = self.timers.pop_due(now) {
            let half = self.take(name, accounts);
            if let Some(HalfState::Waiting(connection, _)) = half.map(|half| half.state) {
                return Some(connection);
            }
        }
        None
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Users of the sides that disconnected before their partner was adopted, for tests.
    pub(crate) fn parted(&self) -> impl Iterator<Item = u32> {
        let parted = self.by_name.iter();
        let parted = parted.filter(|(_, half)| matches!(half.state, HalfState::Parted(_)));
        parted.map(|((user, _), _)| *user)
    }
}
