//! How calls, connections and exchanges end, each with what depends on it.
//!
//! ```text
//!                     ┌── partner found ──▶ INCOMING or CONNECTED
//!   WAIT REQUEST PEER ┼── deadline ───────▶ DONE with TIMEOUT, NO_MATCH or NOT_REACHABLE
//!                     ├── CANCEL ─────────▶ DONE with CANCELLED
//!                     └── process gone ───▶ nobody to tell
//! ```
//!
//! Hosts part with DISCONNECT, repeated until a GONE comes or nobody seems to be there.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Op, PartnerGone, Status};
use vipl_wire::setup::{Answer, Body};

use crate::logic::tables::call::{Call, CallKind, Owner};
use crate::logic::tables::connection::ConnectionState;
use crate::logic::tables::exchange::State;
use crate::logic::values::denial::Denial;
use crate::logic::values::ids::{CallKey, Caller, ConnectionId, ExchangeKey};
use crate::logic::values::wire::refusal;

impl<F: Clone> Agent<F> {
    /// Takes a call out of every table. A server that holds it keeps an expired handle; another host that is
    /// asked learns that nobody asks any more.
    pub(crate) fn take_call(&mut self, key: CallKey) -> Option<Call> {
        let call = self.unlink_call(key)?;
        if let CallKind::Asking(_, exchange, _) = call.kind {
            self.stop_asking(exchange);
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

    /// The guest's call has ended without a connection.
    pub(crate) fn refuse_guest(&mut self, key: ExchangeKey, status: Status) {
        let refusal = refusal(status);
        self.set_refused(key, refusal);
        self.send_frame(key, Body::Answer(Answer::Refused(refusal)));
    }

    /// The call has ended; so does the asking, unless it has come to something.
    fn stop_asking(&mut self, key: ExchangeKey) {
        if let Some(State::Asking(_)) = self.state(key) {
            self.leave(key, true);
        }
    }

    /// This side leaves, whatever the exchange has come to.
    pub(crate) fn leave(&mut self, key: ExchangeKey, orderly: bool) {
        self.set_exchange(key, State::Leaving { orderly }, None);
        self.leave_on(key, orderly);
    }

    /// Says so, the first time or again.
    pub(crate) fn leave_on(&mut self, key: ExchangeKey, orderly: bool) {
        let from = key.side;
        self.send_repeated(key, Body::Disconnect { from, orderly });
    }

    /// One side leaves, whatever state it is in; the other side is told once.
    pub(crate) fn abandon(&mut self, name: ConnectionId, orderly: bool) {
        let Some(connection) = self.take_connection(name) else {
            return;
        };
        match connection.state {
            ConnectionState::Offered(request) => self.end_call(request, Status::REJECTED),
            ConnectionState::Open(partner) => self.partner_gone(partner, orderly),
            ConnectionState::Half(name) => {
                self.halves
                    .part(name, orderly, self.now, &mut self.accounts)
            }
            ConnectionState::Attaching(exchange) | ConnectionState::Far(exchange) => {
                self.leave(exchange, orderly);
            }
            ConnectionState::Confirming(exchange, call) => {
                let client = connection.client;
                self.done(Caller { client, id: call }, Status::TIMEOUT);
                self.leave(exchange, orderly);
            }
            ConnectionState::Expired | ConnectionState::Lone | ConnectionState::Failed => {}
        }
    }

    pub(crate) fn partner_gone(&mut self, name: ConnectionId, orderly: bool) {
        let Some(connection) = self.connections.get_mut(&name) else {
            return;
        };
        connection.state = ConnectionState::Lone;
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
            Op::PARTNER_GONE,
            &PartnerGone {
                connection: name,
                orderly,
                reserved: 0,
            },
        );
    }

    /// The other side has gone, or there never was one.
    pub(crate) fn lose(&mut self, name: ConnectionId, orderly: bool) {
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
            ConnectionState::Far(_) => self.partner_gone(name, orderly),
            _ => {}
        }
    }
}
