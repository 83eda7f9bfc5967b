//! The end of calls, connections and exchanges, each with its dependents.
//!
//! ```text
//!                     ┌── match found ────▶ INCOMING or CONNECTED
//!   WAIT REQUEST PEER ┼── deadline ───────▶ DONE with TIMEOUT, NO_MATCH or NOT_REACHABLE
//!                     ├── CANCEL ─────────▶ DONE with CANCELLED
//!                     └── process exits ──▶ no reply
//! ```
//!
//! A host ends an exchange with DISCONNECT, which it repeats until GONE arrives or the tries are used up.

#![forbid(unsafe_code)]

use kagent_proto::setup::{Answer, Body};
use kagent_proto::{Op, PeerGone, Status};

use crate::logic::agent::Agent;
use crate::logic::calls::{Call, CallKind, Owner};
use crate::logic::ids::{CallKey, Caller, ConnectionId, ExchangeKey};
use crate::logic::message::{Denial, refusal};
use crate::logic::objects::{ConnectionState, State};

impl<F: Clone> Agent<F> {
    /// Removes a call from every table. A server that holds it keeps an expired handle; a remote host that
    /// was asked receives DISCONNECT.
    pub(crate) fn take_call(&mut self, key: CallKey) -> Option<Call> {
        let call = self.unlink_call(key)?;
        if let CallKind::Asking(_, exchange, _) = call.kind {
            self.stop_asking(exchange);
        }
        Some(call)
    }

    /// Ends a call without a connection.
    pub(crate) fn end_call(&mut self, key: CallKey, end: impl Into<Denial>) {
        let end = end.into();
        self.note(|_| format!("call {}: {}", key.0, end.status.name()));
        match self.take_call(key).map(|call| call.owner) {
            Some(Owner::Process(caller, _)) => self.done(caller, end),
            Some(Owner::Remote(exchange)) => self.refuse_remote(exchange, end.status),
            None => {}
        }
    }

    /// Refuses the call of a remote host.
    pub(crate) fn refuse_remote(&mut self, key: ExchangeKey, status: Status) {
        let refusal = refusal(status);
        self.set_refused(key, refusal);
        self.send_frame(key, Body::Answer(Answer::Refused(refusal)));
    }

    /// Ends the exchange of a call that has ended, unless it was already answered.
    fn stop_asking(&mut self, key: ExchangeKey) {
        if let Some(State::Asking(_)) = self.state(key) {
            self.start_disconnect(key, true);
        }
    }

    /// Ends an exchange from this side, in any state.
    pub(crate) fn start_disconnect(&mut self, key: ExchangeKey, orderly: bool) {
        self.set_exchange(key, State::Disconnecting { orderly }, None);
        self.send_disconnect(key, orderly);
    }

    /// Sends DISCONNECT, the first time or again.
    pub(crate) fn send_disconnect(&mut self, key: ExchangeKey, orderly: bool) {
        let from = key.side;
        self.send_repeated(key, Body::Disconnect { from, orderly });
    }

    /// Ends one side of a connection in any state, and notifies the other side once.
    pub(crate) fn close_connection(&mut self, name: ConnectionId, orderly: bool) {
        let Some(connection) = self.take_connection(name) else {
            return;
        };
        match connection.state {
            ConnectionState::Offered(request, _) => self.end_call(request, Status::REJECTED),
            ConnectionState::Open(peer) => self.peer_gone(peer, orderly),
            ConnectionState::Half(name) => {
                self.halves
                    .part(name, orderly, self.now, &mut self.accounts)
            }
            ConnectionState::Attaching(exchange) | ConnectionState::Remote(exchange) => {
                self.start_disconnect(exchange, orderly);
            }
            ConnectionState::Confirming(exchange, call) => {
                let client = connection.client;
                self.done(Caller { client, id: call }, Status::TIMEOUT);
                self.start_disconnect(exchange, orderly);
            }
            ConnectionState::Expired(_) | ConnectionState::PeerGone | ConnectionState::Failed => {}
        }
    }

    pub(crate) fn peer_gone(&mut self, name: ConnectionId, orderly: bool) {
        let Some(connection) = self.connections.get_mut(&name) else {
            return;
        };
        connection.state = ConnectionState::PeerGone;
        let client = connection.client;
        let event = Caller { client, id: 0 };
        self.note(|_| {
            let how = if orderly { "has left" } else { "has died" };
            format!(
                "connection {name} of client {}: its partner {how}",
                client.0
            )
        });
        let orderly = u32::from(orderly);
        self.reply(
            event,
            Op::PEER_GONE,
            &PeerGone {
                connection: name,
                orderly,
                reserved: 0,
            },
        );
    }

    /// The remote side has disconnected or exited, or the connection was never completed.
    pub(crate) fn connection_lost(&mut self, name: ConnectionId, orderly: bool) {
        let Some(connection) = self.connections.get(&name) else {
            return;
        };
        let client = connection.client;
        match connection.state {
            ConnectionState::Attaching(_) => self.set_connection(name, ConnectionState::Failed),
            ConnectionState::Confirming(_, id) => {
                self.take_connection(name);
                self.done(Caller { client, id }, Status::TIMEOUT);
            }
            ConnectionState::Remote(_) => self.peer_gone(name, orderly),
            _ => {}
        }
    }
}
