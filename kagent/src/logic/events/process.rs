//! Processes come and go.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use std::collections::{BTreeMap, BTreeSet};

use kagent_proto::{Budget, Op};
use thiserror::Error;

use crate::logic::limits::DESCRIPTORS_PER_CLIENT;
use crate::logic::tables::client::Client;
use crate::logic::values::denial::Denial;
use crate::logic::values::ids::ClientId;
use crate::logic::values::message;

/// Why a process was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The user has all that one user may have now.
    #[error("user {user} has {used} of {limit} {}", budget.name())]
    UserFull {
        /// Who.
        user: u32,
        /// Of what.
        budget: Budget,
        /// How many there are.
        used: usize,
        /// And may be.
        limit: usize,
    },
    /// The runtime used a name twice.
    #[error("client name in use")]
    Known,
}

impl Refused {
    /// The packet that tells the process why, if it can be told.
    pub fn farewell(&self) -> Option<Vec<u8>> {
        let &Refused::UserFull {
            user,
            budget,
            used,
            limit,
        } = self
        else {
            return None;
        };
        let Denial { status, detail } = Denial::user(budget, user, used, limit);
        Some(message::emit(Op::DONE, status, 0, &detail?))
    }
}

impl<F: Clone> Agent<F> {
    /// A process has connected. `uid` and `pid` are what the system says, not what the process says.
    pub fn handle_connect(
        &mut self,
        now: u64,
        client: ClientId,
        uid: u32,
        pid: u32,
    ) -> Result<(), Refused> {
        self.advance(now);
        if self.clients.contains_key(&client) {
            return Err(Refused::Known);
        }
        let costs = [
            (Budget::Processes, 1),
            (Budget::Descriptors, DESCRIPTORS_PER_CLIENT),
        ];
        for (budget, count) in costs {
            if self.accounts.admit(uid, budget, count).is_err() {
                return Err(Refused::UserFull {
                    user: uid,
                    budget,
                    used: self.accounts.used(uid, budget),
                    limit: self.accounts.limit(uid, budget),
                });
            }
        }
        for (budget, count) in costs {
            self.accounts.charge(uid, budget, count);
        }
        let fresh = Client {
            uid,
            pid,
            greeted: false,
            leaving: false,
            nics: BTreeSet::new(),
            endpoints: BTreeSet::new(),
            calls: BTreeMap::new(),
            connections: BTreeSet::new(),
        };
        self.clients.insert(client, fresh);
        Ok(())
    }

    /// A process has gone, in good order if it said so with `Op::GOODBYE` before. Everything of it is
    /// released, and everyone who had to do with it is told. An unknown client is nobody's loss.
    pub fn handle_hangup(&mut self, now: u64, client: ClientId) {
        self.advance(now);
        // Out of the table first: from here on nothing is sent to it.
        let Some(gone) = self.clients.remove(&client) else {
            return;
        };
        self.note(|_| {
            let how = if gone.leaving { "left" } else { "died" };
            let (calls, connections) = (gone.calls.len(), gone.connections.len());
            let client = client.0;
            format!("client {client} {how}: {calls} calls and {connections} connections end")
        });
        self.accounts.release(gone.uid, Budget::Processes, 1);
        self.accounts
            .release(gone.uid, Budget::Descriptors, DESCRIPTORS_PER_CLIENT);
        self.paces.forget(gone.uid, client);
        // Calls before connections, so that a process which held its own request is not told about
        // itself, and servers which held its requests find them expired.
        for &call in gone.calls.values() {
            self.take_call(call);
        }
        for &connection in &gone.connections {
            self.abandon(connection, gone.leaving);
        }
        for &nic in &gone.nics {
            self.forget_nic(nic);
        }
        // Those that no NIC has used.
        for &endpoint in &gone.endpoints {
            self.forget_endpoint(endpoint);
        }
    }
}
