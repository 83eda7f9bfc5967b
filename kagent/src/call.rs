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

use kagent_proto::{Attributes, Budget, Status};

use crate::agent::{Agent, Caller};
use crate::ask::{Ask, LastWord};
use crate::claim::Claim;
use crate::connection::ConnectionId;
use crate::denial::{Denial, Outcome};
use crate::exchange::ExchangeKey;
use crate::guest::Guest;
use crate::limits::{CALLS_PER_CLIENT_MAX, CONNECTIONS_PER_CLIENT_MAX};
use crate::link::LinkId;
use crate::nic::{NicId, Spot};
use crate::place::{Pair, Place};
use crate::who::Search;

/// The agent's own name for a waiting call; grows with time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallKey(pub(crate) u64);

/// Who waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    /// A process, with a NIC.
    Process(Caller, NicId),
    /// Somebody on another host.
    Guest(ExchangeKey),
}

/// A waiting call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) owner: Owner,
    pub(crate) kind: CallKind,
    /// When the timer that runs now goes off.
    pub(crate) deadline: Option<u64>,
}

/// What a call waits for.
#[derive(Debug)]
pub(crate) enum CallKind {
    /// A server at this connection point, for other hosts on the link too.
    Wait(Spot, Option<LinkId>),
    /// A client that looks for a server.
    Request(Seeker, RequestState),
    /// One of two peers, in the queue at this place.
    Peer(Seeker, Pair),
    /// A client or a peer that looks on another host.
    Asking(Seeker, ExchangeKey, Ask),
    /// A client of another host that looks for a server here.
    Guest(Guest, RequestState),
    /// A peer of another host, in the queue at this place.
    GuestPeer(Guest, Pair),
    /// A process that wants to know who is on the link.
    Search(Search),
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
            self.hold_claim(claim);
        }
        let call = Call {
            owner,
            kind,
            deadline,
        };
        self.note(|agent| format!("call {}: {}", key.0, agent.describe(&call)));
        self.calls.insert(key, call);
        key
    }

    /// Takes a call out of every table. A server that holds it keeps an expired handle.
    pub(crate) fn take_call(&mut self, key: CallKey) -> Option<Call> {
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
            self.let_go_claim(claim);
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
            CallKind::Asking(_, exchange, _) => self.stop_asking(*exchange),
            CallKind::Search(search) => self.stop_search(search),
        }
        Some(call)
    }

    /// Ends a call without a result.
    pub(crate) fn end_call(&mut self, key: CallKey, end: impl Into<Denial>) {
        let end = end.into();
        self.note(|_| format!("call {}: {}", key.0, end.status.name()));
        match self.take_call(key).map(|call| call.owner) {
            Some(Owner::Process(caller, _)) => self.done(caller, end),
            Some(Owner::Guest(exchange)) => self.refuse_guest(exchange, end.status),
            None => {}
        }
    }

    /// The timer of a call went off.
    pub(crate) fn call_due(&mut self, key: CallKey) {
        let Some(call) = self.calls.get(&key) else {
            return;
        };
        let end: Denial = match &call.kind {
            CallKind::Request(seeker, RequestState::Looking { .. }) => {
                // When the grace and the whole request end together it still was nobody's waiting.
                self.nobody_there(&seeker.remote)
            }
            CallKind::Guest(_, RequestState::Looking { .. }) => Status::NO_MATCH.into(),
            CallKind::Asking(
                _,
                _,
                Ask::Request {
                    last_word: LastWord::Theirs,
                    ..
                },
            ) => return self.await_last_word(key),
            CallKind::Search(_) => return self.search_on(key),
            _ => Status::TIMEOUT.into(),
        };
        self.end_call(key, end);
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
