//! Processes that connect and processes that end.

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

/// Why a process was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The user has reached its limit.
    #[error("user {user} has {used} of {limit} {}", budget.name())]
    UserFull {
        /// The user.
        user: u32,
        /// The exhausted budget.
        budget: Budget,
        /// Current use.
        used: usize,
        /// Limit.
        limit: usize,
    },
    /// The runtime used an identifier twice.
    #[error("client name in use")]
    Known,
}

impl Refused {
    /// The packet that tells the process the reason, if there is one to tell.
    pub fn rejection(&self) -> Option<Vec<u8>> {
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
    /// A process connected. `uid` and `pid` come from the kernel, not from the process.
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
            disconnecting: false,
            nics: BTreeSet::new(),
            endpoints: BTreeSet::new(),
            calls: BTreeMap::new(),
            connections: BTreeSet::new(),
            offers: BTreeMap::new(),
        };
        self.clients.insert(client, fresh);
        Ok(())
    }

    /// A process ended, in good order if it sent `Op::GOODBYE` before. Releases all it had and notifies its
    /// partners. An unknown client is ignored.
    pub fn handle_hangup(&mut self, now: u64, client: ClientId) {
        self.advance(now);
        // Removed first: nothing is sent to it from here on.
        let Some(gone) = self.clients.remove(&client) else {
            return;
        };
        self.note(|_| {
            let how = if gone.disconnecting { "left" } else { "died" };
            let (calls, connections) = (gone.calls.len(), gone.connections.len());
            let client = client.0;
            format!("client {client} {how}: {calls} calls and {connections} connections end")
        });
        self.accounts.release(gone.uid, Budget::Processes, 1);
        self.accounts
            .release(gone.uid, Budget::Descriptors, DESCRIPTORS_PER_CLIENT);
        self.link_rate.forget(gone.uid, client);
        // Calls before connections, so that a process that held its own request is not notified, and servers
        // that held its requests find them expired.
        for &call in gone.calls.values() {
            self.take_call(call);
        }
        for &connection in &gone.connections {
            self.close_connection(connection, gone.disconnecting);
        }
        for &nic in &gone.nics {
            self.forget_nic(nic);
        }
        // Endpoints that no NIC used.
        for &endpoint in &gone.endpoints {
            self.forget_endpoint(endpoint);
        }
    }
}
