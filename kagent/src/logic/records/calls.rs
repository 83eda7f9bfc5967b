//! Call records: admission, insertion into all tables, removal from all tables.

#![forbid(unsafe_code)]

use kagent_proto::{Budget, Status};

use crate::logic::agent::{Agent, describe};
use crate::logic::budgets::{CALLS_PER_CLIENT_MAX, CONNECTIONS_PER_CLIENT_MAX};
use crate::logic::calls::{Call, CallKind, Claim, Owner, QueueKey, RequestState};
use crate::logic::ids::{CallKey, Caller};
use crate::logic::message::{Denial, Outcome};

impl<F: Clone> Agent<F> {
    /// Checks the limits for one more waiting call. Each call results in at most one connection record, so
    /// counting both here makes a later check redundant.
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

    /// Checks the limits for one more connection, counting those that waiting calls may become.
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

    /// Inserts a call. The caller puts it in its queue.
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

    /// Removes a call from every table, with no other effect: a server that holds it keeps an expired handle,
    /// and the exchange of a call to another host does not change.
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
            self.claims.release(claim, self.now);
        }
        match &call.kind {
            CallKind::Wait(point, link) => {
                for place in QueueKey::of_wait(*point, *link) {
                    self.waits.remove(&place, key);
                }
            }
            CallKind::Request(initiator, RequestState::Queued { .. }) => {
                self.requests
                    .remove(&QueueKey::Local(initiator.remote), key);
            }
            CallKind::RemoteRequest(remote_call, RequestState::Queued { .. }) => {
                self.requests.remove(&remote_call.queue_key(), key);
            }
            CallKind::Request(_, RequestState::Held { connection, .. })
            | CallKind::RemoteRequest(_, RequestState::Held { connection, .. }) => {
                self.expire_offer(*connection)
            }
            CallKind::Peer(_, pair) | CallKind::RemotePeer(_, pair) => self.peers.remove(pair, key),
            CallKind::Asking(..) => {}
            CallKind::Search(search) => {
                self.searches.remove(&(search.link, search.number));
            }
        }
        Some(call)
    }
}
