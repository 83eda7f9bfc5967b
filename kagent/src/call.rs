//! Calls that have no reply yet because they wait for somebody: a server's wait, a client's request, a
//! peer's request.
//!
//! ```text
//!                     ┌── partner found ──▶ INCOMING or CONNECTED
//!   WAIT REQUEST PEER ┼── deadline ───────▶ DONE with TIMEOUT, NO_MATCH or NOT_REACHABLE
//!                     ├── CANCEL ─────────▶ DONE with CANCELLED
//!                     └── process gone ───▶ nobody to tell
//! ```
//!
//! Every way out goes through [`Agent::take_call`], which is the one place that unlinks a call from
//! all tables.

#![forbid(unsafe_code)]

use kagent_proto::{Attributes, Status};

use crate::agent::{Agent, Caller};
use crate::client::ClientId;
use crate::connection::ConnectionId;
use crate::limits::{CALLS_PER_CLIENT_MAX, CONNECTIONS_PER_CLIENT_MAX};
use crate::nic::{NicId, Spot};

/// The agent's own name for a waiting call; grows with time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallKey(pub(crate) u64);

/// A waiting call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) client: ClientId,
    /// The id that the process chose, for the reply.
    pub(crate) id: u64,
    pub(crate) nic: NicId,
    pub(crate) kind: CallKind,
    /// When the timer that runs now goes off.
    pub(crate) deadline: Option<u64>,
}

/// What a call waits for.
#[derive(Debug)]
pub(crate) enum CallKind {
    /// A server at this connection point.
    Wait(Spot),
    /// A client that looks for a server.
    Request(Seeker, RequestState),
    /// One of two peers.
    Peer(Seeker),
}

/// The side that names whom it wants: client or peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeker {
    pub(crate) vi: u64,
    pub(crate) attributes: Attributes,
    pub(crate) segment_bytes: u32,
    pub(crate) local: Spot,
    pub(crate) remote: Spot,
}

/// How far a client's request has come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestState {
    /// No server waits there yet; the timer is the end of the grace. The deadline of the whole request
    /// is kept for later.
    Looking {
        /// When the request as a whole ends.
        timeout: Option<u64>,
    },
    /// A server has it and will accept or reject; the timer is the deadline.
    Held(ConnectionId),
}

impl<F: Clone> Agent<F> {
    /// Whether the client may have one more waiting call. Each call leaves behind at most one
    /// connection record, so counting both here keeps the bound on connections without a check later.
    pub(crate) fn admit_call(&self, caller: Caller) -> Result<(), Status> {
        let client = self.clients.get(&caller.client).ok_or(Status::INVALID)?;
        if client.calls.contains_key(&caller.id) {
            return Err(Status::INVALID);
        }
        let calls = client.calls.len();
        if calls >= CALLS_PER_CLIENT_MAX
            || calls + client.connections.len() >= CONNECTIONS_PER_CLIENT_MAX
        {
            return Err(Status::RESOURCE);
        }
        Ok(())
    }

    /// Keeps a call until something ends it. The caller queues it where partners look.
    pub(crate) fn keep_call(
        &mut self,
        caller: Caller,
        nic: NicId,
        kind: CallKind,
        deadline: Option<u64>,
    ) -> CallKey {
        self.last_call += 1;
        let key = CallKey(self.last_call);
        self.timers.start(deadline, key);
        if let Some(client) = self.clients.get_mut(&caller.client) {
            client.calls.insert(caller.id, key);
        }
        if let Some(nic) = self.nics.get_mut(&nic) {
            nic.calls.insert(key);
        }
        let call = Call {
            client: caller.client,
            id: caller.id,
            nic,
            kind,
            deadline,
        };
        self.calls.insert(key, call);
        key
    }

    /// Takes a call out of every table. A server that holds it keeps an expired handle.
    pub(crate) fn take_call(&mut self, key: CallKey) -> Option<Call> {
        let call = self.calls.remove(&key)?;
        self.timers.stop(call.deadline, key);
        if let Some(client) = self.clients.get_mut(&call.client) {
            client.calls.remove(&call.id);
        }
        if let Some(nic) = self.nics.get_mut(&call.nic) {
            nic.calls.remove(&key);
        }
        match &call.kind {
            CallKind::Wait(spot) => self.waits.remove(spot, key),
            CallKind::Request(seeker, RequestState::Looking { .. }) => {
                self.seekers.remove(&seeker.remote, key);
            }
            CallKind::Request(_, RequestState::Held(connection)) => self.expire_offer(*connection),
            CallKind::Peer(seeker) => self.peers.remove(&(seeker.local, seeker.remote), key),
        }
        Some(call)
    }

    /// Ends a call with a status.
    pub(crate) fn end_call(&mut self, key: CallKey, status: Status) {
        if let Some(call) = self.take_call(key) {
            self.done(
                Caller {
                    client: call.client,
                    id: call.id,
                },
                status,
            );
        }
    }

    /// The timer of a call went off.
    pub(crate) fn call_due(&mut self, key: CallKey) {
        let Some(call) = self.calls.get(&key) else {
            return;
        };
        let status = match &call.kind {
            CallKind::Request(seeker, RequestState::Looking { .. }) => {
                // When the grace and the whole request end together it still was nobody's waiting.
                self.nobody_there(&seeker.remote)
            }
            _ => Status::TIMEOUT,
        };
        self.end_call(key, status);
    }

    /// `Op::CANCEL`. A call that has already ended crossed its reply with the cancel: nothing to do.
    pub(crate) fn cancel(&mut self, caller: Caller, call: u64) -> Result<(), Status> {
        let key = self
            .clients
            .get(&caller.client)
            .and_then(|c| c.calls.get(&call))
            .copied();
        if let Some(key) = key {
            self.end_call(key, Status::CANCELLED);
        }
        self.done(caller, Status::OK);
        Ok(())
    }
}
