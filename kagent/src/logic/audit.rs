//! Consistency checks across the tables, for tests.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use kagent_proto::Budget;

use crate::logic::agent::Agent;
use crate::logic::budgets::DESCRIPTORS_PER_CLIENT;
use crate::logic::calls::{CallKind, Claim, Owner};
use crate::logic::ids::{CallKey, ExchangeKey};
use crate::logic::objects::{ConnectionState, State};

impl<F: Clone> Agent<F> {
    /// Describes the first inconsistency between two tables. Scans everything: for tests.
    pub fn audit(&self) -> Result<(), String> {
        for (&key, call) in &self.calls {
            let known = match call.owner {
                Owner::Process(caller, nic) => {
                    let client = self.clients.get(&caller.client);
                    client.is_some_and(|client| client.calls.get(&caller.id) == Some(&key))
                        && self
                            .nics
                            .get(&nic)
                            .is_some_and(|nic| nic.calls.contains(&key))
                }
                Owner::Remote(exchange) => {
                    matches!(self.state(exchange), Some(State::Called(call)) if call == key)
                }
            };
            if !known {
                return Err(format!("{key:?} has no owner: {call:?}"));
            }
        }
        for (&key, exchange) in &self.exchanges {
            if !self.links.contains_key(&key.link) || !self.is_backed(key, exchange.state) {
                return Err(format!("{key:?} has no record: {exchange:?}"));
            }
        }
        for client in self.clients.values() {
            let held = |offer| self.connections.get(offer).map(|found| found.state);
            for (&wait, offer) in &client.offers {
                match held(offer) {
                    Some(ConnectionState::Offered(_, id) | ConnectionState::Expired(id))
                        if id == wait => {}
                    other => return Err(format!("the offer of wait {wait} is {other:?}")),
                }
            }
        }
        self.audit_accounts()?;
        let waits = self.waits.iter().map(|(_, call)| call);
        let requests = self.requests.iter().map(|(_, call)| call);
        let peers = self.peers.iter().map(|(_, call)| call);
        let searches = self.searches.values().copied();
        for call in waits.chain(requests).chain(peers).chain(searches) {
            if !self.calls.contains_key(&call) {
                return Err(format!("{call:?} is queued and is no call"));
            }
        }
        Ok(())
    }

    /// Recounts the resources of each user and the calls that wait on each claim.
    fn audit_accounts(&self) -> Result<(), String> {
        let mut counts: BTreeMap<(u32, Budget), usize> = BTreeMap::new();
        let mut count = |user, budget, more| *counts.entry((user, budget)).or_default() += more;
        for client in self.clients.values() {
            count(client.uid, Budget::Processes, 1);
            count(client.uid, Budget::Descriptors, DESCRIPTORS_PER_CLIENT);
        }
        for nic in self.nics.values() {
            let user = nic.address.uid;
            count(user, Budget::Nics, 1);
            count(user, Budget::Descriptors, nic.fds.len());
            count(user, Budget::Calls, nic.calls.len());
            count(user, Budget::Connections, nic.connections.len());
        }
        for endpoint in self.endpoints.values() {
            count(endpoint.user, Budget::Endpoints, 1);
        }
        for exchange in self.exchanges.values() {
            if let Some(user) = exchange.user {
                count(user, Budget::Exchanges, 1);
            }
        }
        self.halves
            .parted()
            .for_each(|user| count(user, Budget::Parted, 1));
        let mut waiting: BTreeMap<Claim, usize> = BTreeMap::new();
        for call in self.calls.values() {
            if let Some(claim) = Claim::of(&call.kind) {
                *waiting.entry(claim).or_default() += 1;
            }
        }
        for (claim, user, calls) in self.claims.iter() {
            count(user, Budget::Names, 1);
            if waiting.remove(&claim).unwrap_or(0) != calls {
                return Err(format!("{claim:?} has not {calls} calls"));
            }
        }
        if let Some(claim) = waiting.keys().next() {
            return Err(format!("no call holds {claim:?}"));
        }
        counts.retain(|_, count| *count > 0);
        let charged = self.accounts.counts();
        if counts != charged {
            return Err(format!("there are {counts:?}, charged were {charged:?}"));
        }
        Ok(())
    }

    /// Whether the record that an exchange refers to exists and refers back.
    fn is_backed(&self, key: ExchangeKey, state: State) -> bool {
        let call = |call: CallKey| self.calls.get(&call);
        match state {
            State::Asking(asking) => call(asking).is_some_and(
                |call| matches!(call.kind, CallKind::Asking(_, exchange, _) if exchange == key),
            ),
            State::Called(called) => call(called).is_some_and(
                |call| matches!(call.owner, Owner::Remote(exchange) if exchange == key),
            ),
            State::Taking(connection)
            | State::Readying(connection, ..)
            | State::Accepting(connection, ..)
            | State::Open(connection) => self.connections.contains_key(&connection),
            State::Disconnecting { .. } | State::Refused(_) | State::Over => true,
        }
    }
}
