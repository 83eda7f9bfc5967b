//! Connections that an agent before this one has made.
//!
//! When an agent dies its connections go on, since no byte of theirs goes through it. Each process then
//! hands its sides of them to the next agent, which knows nothing of them. The two sides of a connection
//! come one after the other, in any order and from processes that do not know of each other's doing;
//! the connection's key, which nobody else knows, tells that they belong together.
//!
//! ```text
//!   ADOPT, side 0 ──▶ waits ──── ADOPT, side 1 ───▶ both Open, as if this agent had joined them
//!                       │ │
//!             DISCONNECT, │ time is over            the partner died while there was no agent
//!             death       └──────────────▶ Lone     and cannot come: PARTNER_GONE, not orderly
//!                       ▼
//!                    parted ── ADOPT, side 1 ─────▶ Lone, and PARTNER_GONE at once
//! ```

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use kagent_proto::{Adopt, Adopted, Attributes, Budget, Op, Status};

use crate::agent::{Agent, Caller};
use crate::connection::{Connection, ConnectionId, ConnectionState, attributes_agree};
use crate::denial::Outcome;
use crate::limits::ADOPT_TIME_MS;
use crate::timer::deadline;

/// A connection's name before its sides have found each other: the user and the key.
pub(crate) type HalfName = (u32, u64);

/// What is known of a connection of which one side has come.
#[derive(Debug)]
struct Half {
    side: u32,
    state: HalfState,
    deadline: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum HalfState {
    /// This side waits for the other.
    Waiting(ConnectionId, Attributes),
    /// This side has left again, in good order or not.
    Parted(bool),
}

/// All connections of which one side has come.
#[derive(Debug, Default)]
pub(crate) struct Halves {
    by_name: BTreeMap<HalfName, Half>,
    deadlines: BTreeSet<(u64, HalfName)>,
}

impl Halves {
    fn insert(&mut self, name: HalfName, half: Half) {
        if let Some(deadline) = half.deadline {
            self.deadlines.insert((deadline, name));
        }
        self.by_name.insert(name, half);
    }

    fn take(&mut self, name: HalfName) -> Option<Half> {
        let half = self.by_name.remove(&name)?;
        if let Some(deadline) = half.deadline {
            self.deadlines.remove(&(deadline, name));
        }
        Some(half)
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }
}

impl<F: Clone> Agent<F> {
    /// `Op::ADOPT`.
    pub(crate) fn adopt(&mut self, caller: Caller, body: &Adopt) -> Outcome {
        self.own_nic(caller, body.nic)?;
        self.admit_connection(caller)?;
        let name = (self.user_of(caller.client), body.key);
        let other = match self.halves.by_name.get(&name) {
            Some(half) if half.side != body.side => Some(half.state),
            Some(Half {
                state: HalfState::Waiting(..),
                ..
            }) => return Err(Status::INVALID.into()),
            _ => None,
        };
        if let Some(HalfState::Waiting(_, attributes)) = &other {
            attributes_agree(attributes, &body.attributes).map_err(|_| Status::INVALID)?;
        }
        let own = self.fresh_connection();
        let state = match other {
            None => ConnectionState::Half(name),
            Some(HalfState::Waiting(partner, _)) => ConnectionState::Open(partner),
            Some(HalfState::Parted(_)) => ConnectionState::Lone,
        };
        let (client, nic) = (caller.client, body.nic);
        self.keep_connection(own, Connection { client, nic, state });
        // The name before anything that is said about it.
        self.reply(caller, Op::ADOPTED, &Adopted { connection: own });
        match other {
            None => {
                let half = Half {
                    side: body.side,
                    state: HalfState::Waiting(own, body.attributes),
                    deadline: deadline(self.now, ADOPT_TIME_MS),
                };
                self.take_half(name);
                self.halves.insert(name, half);
            }
            Some(HalfState::Waiting(partner, _)) => {
                self.take_half(name);
                if let Some(partner) = self.connections.get_mut(&partner) {
                    partner.state = ConnectionState::Open(own);
                }
            }
            Some(HalfState::Parted(orderly)) => {
                self.take_half(name);
                self.partner_gone(own, orderly);
            }
        }
        Ok(())
    }

    /// A side whose partner has not come yet has left: the partner is told when it comes.
    pub(crate) fn part_half(&mut self, name: HalfName, orderly: bool) {
        let Some(half) = self.take_half(name) else {
            return;
        };
        let (user, _) = name;
        if self.accounts.admit(user, Budget::Parted, 1).is_ok() {
            self.accounts.charge(user, Budget::Parted, 1);
            let state = HalfState::Parted(orderly);
            let deadline = deadline(self.now, ADOPT_TIME_MS);
            let side = half.side;
            self.halves.insert(
                name,
                Half {
                    side,
                    state,
                    deadline,
                },
            );
        }
    }

    fn take_half(&mut self, name: HalfName) -> Option<Half> {
        let half = self.halves.take(name)?;
        if let HalfState::Parted(_) = half.state {
            self.accounts.release(name.0, Budget::Parted, 1);
        }
        Some(half)
    }

    /// Sides that have left before their partner came, of each user, for tests.
    pub(crate) fn parted(&self) -> impl Iterator<Item = u32> {
        let parted = self.halves.by_name.iter();
        let parted = parted.filter(|(_, half)| matches!(half.state, HalfState::Parted(_)));
        parted.map(|((user, _), _)| *user)
    }

    /// Tells the sides whose partners have not come in time.
    pub(crate) fn end_halves_due(&mut self) {
        while let Some(&(deadline, name)) = self.halves.deadlines.first() {
            if deadline > self.now {
                return;
            }
            let half = self.take_half(name);
            if let Some(HalfState::Waiting(connection, _)) = half.map(|half| half.state) {
                self.partner_gone(connection, false);
            }
        }
    }
}
