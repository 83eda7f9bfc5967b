//! Checks that the tables agree with each other, for tests.

#![forbid(unsafe_code)]

use crate::agent::Agent;
use crate::call::{CallKey, CallKind, Owner};
use crate::exchange::{ExchangeKey, State};

impl<F: Clone> Agent<F> {
    /// Describes the first thing in which two tables disagree. Looks at everything there is: for tests.
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
                Owner::Guest(exchange) => {
                    matches!(self.state(exchange), Some(State::Called(call)) if call == key)
                }
            };
            if !known {
                return Err(format!("{key:?} has no owner: {call:?}"));
            }
        }
        for (&key, exchange) in &self.exchanges {
            if !self.links.contains_key(&key.link) || !self.is_backed(key, exchange.state) {
                return Err(format!("{key:?} stands alone: {exchange:?}"));
            }
        }
        let waits = self.waits.iter().map(|(_, call)| call);
        let seekers = self.seekers.iter().map(|(_, call)| call);
        let peers = self.peers.iter().map(|(_, call)| call);
        let searches = self.searches.values().copied();
        for call in waits.chain(seekers).chain(peers).chain(searches) {
            if !self.calls.contains_key(&call) {
                return Err(format!("{call:?} is queued and is no call"));
            }
        }
        Ok(())
    }

    /// Whether what an exchange names is there and is about the exchange.
    fn is_backed(&self, key: ExchangeKey, state: State) -> bool {
        let call = |call: CallKey| self.calls.get(&call);
        match state {
            State::Asking(asking) => call(asking).is_some_and(
                |call| matches!(call.kind, CallKind::Asking(_, exchange, _) if exchange == key),
            ),
            State::Called(called) => call(called).is_some_and(
                |call| matches!(call.owner, Owner::Guest(exchange) if exchange == key),
            ),
            State::Taking(connection)
            | State::Readying(connection, ..)
            | State::Accepting(connection, ..)
            | State::Open(connection) => self.connections.contains_key(&connection),
            State::Leaving { .. } | State::Refused(_) | State::Over => true,
        }
    }
}
