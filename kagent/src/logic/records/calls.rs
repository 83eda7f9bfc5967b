//! Call records: admitted, kept, and unlinked from all tables at once.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Budget, Status};

use crate::logic::limits::{CALLS_PER_CLIENT_MAX, CONNECTIONS_PER_CLIENT_MAX};
use crate::logic::note::describe;
use crate::logic::tables::call::{Call, CallKind, Owner, RequestState};
use crate::logic::tables::claim::Claim;
use crate::logic::tables::place::Place;
use crate::logic::values::denial::{Denial, Outcome};
use crate::logic::values::ids::{CallKey, Caller};

impl<F: Clone> Agent<F> {
    /// Whether the client may have one more waiting call. Each call leaves behind at most one
    /// connection record, so counting both here keeps the bound on connections without a check later.
    pub(crate) fn admit_call(&self, caller: Caller) -> Outcome {
        let client = self.clients.get(&caller.client).ok_or(Status::INVALID)?;
        if client.calls.contains_key(&caller.id) {
            return Err(Status::INVALID.into());
        }
        let (user, calls) = (client.uid, client.calls.len());
        if calls >= CALLS_PER_CLIENT_MAX {
            let most = CALLS_PER_CLIENT_MAX;
            return Err(Denial::process(Budget::Calls, user, calls, most));
        }
        self.accounts.admit(user, Budget::Calls, 1)?;
        self.admit_connection(caller)
    }

    /// Whether the client may have one more connection, and all those that its calls may still become.
    pub(crate) fn admit_connection(&self, caller: Caller) -> Outcome {
        let client = self.clients.get(&caller.client).ok_or(Status::INVALID)?;
        let (user, budget) = (client.uid, Budget::Connections);
        let used = client.calls.len() + client.connections.len();
        if used >= CONNECTIONS_PER_CLIENT_MAX {
            let most = CONNECTIONS_PER_CLIENT_MAX;
            return Err(Denial::process(budget, user, used, most));
        }
        let calls = self.accounts.used(user, Budget::Calls);
        self.accounts.admit(user, budget, calls + 1)
    }

    /// Keeps a call until something ends it. The caller queues it where partners look.
    pub(crate) fn keep_call(
        &mut self,
        owner: Owner,
        kind: CallKind,
        deadline: Option<u64>,
    ) -> CallKey {
        self.last_call += 1;
        let key = CallKey(self.last_call);
        self.timers.start(deadline, key);
        if let Owner::Process(caller, nic) = owner {
            if let Some(client) = self.clients.get_mut(&caller.client) {
                client.calls.insert(caller.id, key);
            }
            if let Some(nic) = self.nics.get_mut(&nic) {
                nic.calls.insert(key);
                self.accounts.charge(nic.address.uid, Budget::Calls, 1);
            }
        }
        if let Some(claim) = Claim::of(&kind) {
            self.claims.hold(claim);
        }
        let call = Call {
            owner,
            kind,
            deadline,
        };
        self.note(|agent| {
            format!(
                "call {}: {}",
                key.0,
                describe(&call, |client| agent.user_of(client))
            )
        });
        self.calls.insert(key, call);
        key
    }

    /// Takes a call out of every table, and nothing else: a server that holds it keeps an expired handle, and
    /// the exchange of one that asks another host is left as it is.
    pub(crate) fn unlink_call(&mut self, key: CallKey) -> Option<Call> {
        let call = self.calls.remove(&key)?;
        self.timers.stop(call.deadline, key);
        if let Owner::Process(caller, nic) = call.owner {
            if let Some(client) = self.clients.get_mut(&caller.client) {
                client.calls.remove(&caller.id);
            }
            if let Some(nic) = self.nics.get_mut(&nic) {
                nic.calls.remove(&key);
                self.accounts.release(nic.address.uid, Budget::Calls, 1);
            }
        }
        if let Some(claim) = Claim::of(&call.kind) {
            self.claims.let_go(claim, self.now);
        }
        match &call.kind {
            CallKind::Wait(spot, link) => {
                for place in Place::of_wait(*spot, *link) {
                    self.waits.remove(&place, key);
                }
            }
            CallKind::Request(seeker, RequestState::Looking { .. }) => {
                self.seekers.remove(&Place::Near(seeker.remote), key);
            }
            CallKind::Guest(guest, RequestState::Looking { .. }) => {
                self.seekers.remove(&guest.place(), key);
            }
            CallKind::Request(_, RequestState::Held(connection))
            | CallKind::Guest(_, RequestState::Held(connection)) => self.expire_offer(*connection),
            CallKind::Peer(_, pair) | CallKind::GuestPeer(_, pair) => self.peers.remove(pair, key),
            CallKind::Asking(..) => {}
            CallKind::Search(search) => {
                self.searches.remove(&(search.link, search.number));
            }
        }
        Some(call)
    }
}
