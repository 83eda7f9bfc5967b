//! Connections and what comes before them: handles of requests that a server has not answered yet.
//!
//! Each side of a connection has its own record under its own name, so that both sides may be in one
//! process without doubt about which of them is meant.
//!
//! ```text
//!   INCOMING ──▶ Offered ── ACCEPT ──▶ Open ── partner gone ──▶ Lone
//!                   │                   ▲                         │
//!            requester gone          PEER, and the             DISCONNECT
//!                   ▼                requester's side             ▼
//!                Expired ── ACCEPT: TIMEOUT, REJECT: OK ──▶    no record
//! ```
//!
//! A connection with another host has one record here, and what the two hosts say about it is its
//! exchange (`exchange.rs`): Attaching ── CONFIRM ──▶ Confirming (the side that accepts) ──▶ Far.

#![forbid(unsafe_code)]

use kagent_proto::{
    Accept, Attributes, Budget, Connected, HOST_BYTES_MAX, Op, PartnerGone, Status,
};

use crate::adopt::HalfName;
use crate::agent::{Agent, Caller};
use crate::call::{CallKey, CallKind, Owner};
use crate::client::ClientId;
use crate::exchange::ExchangeKey;
use crate::limits::PAGE_BYTES;
use crate::nic::NicId;
use crate::output::{Join, JoinEnd, Message, Output};

/// The agent's name for one side of a connection.
pub(crate) type ConnectionId = u64;

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: ClientId,
    pub(crate) nic: NicId,
    pub(crate) state: ConnectionState,
}

/// Where a side stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// A server holds this request and has not answered.
    Offered(CallKey),
    /// The requester has given up; the server does not know yet.
    Expired,
    /// Connected with the side of that name, on this host.
    Open(ConnectionId),
    /// Connected by an earlier agent; the partner has not come here yet (`adopt.rs`).
    Half(HalfName),
    /// The partner has gone and this side has been told.
    Lone,
    /// With another host: this side attaches its VI.
    Attaching(ExchangeKey),
    /// With another host: this side has attached its VI and called CONFIRM under this id.
    Confirming(ExchangeKey, u64),
    /// With another host.
    Far(ExchangeKey),
    /// With another host, and lost before this side has confirmed.
    Failed,
}

/// What is known about one side at the moment of connecting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) caller: Caller,
    pub(crate) nic: NicId,
    pub(crate) connection: ConnectionId,
    pub(crate) vi: u64,
    pub(crate) attributes: Attributes,
    pub(crate) segment_bytes: u32,
}

/// Whether two VIs may be connected; the order of the checks is that of spec §3.9.
pub(crate) fn attributes_agree(a: &Attributes, b: &Attributes) -> Result<(), Status> {
    if a.reliability != b.reliability {
        Err(Status::CONFLICT_RELIABILITY)
    } else if a.max_transfer_size != b.max_transfer_size {
        Err(Status::CONFLICT_MTU)
    } else if a.qos != b.qos {
        Err(Status::CONFLICT_QOS)
    } else {
        Ok(())
    }
}

impl<F: Clone> Agent<F> {
    pub(crate) fn fresh_connection(&mut self) -> ConnectionId {
        self.last_connection += 1;
        self.last_connection
    }

    pub(crate) fn own_connection(
        &self,
        caller: Caller,
        name: ConnectionId,
    ) -> Result<&Connection, Status> {
        self.connections
            .get(&name)
            .filter(|c| c.client == caller.client)
            .ok_or(Status::INVALID)
    }

    pub(crate) fn keep_connection(&mut self, name: ConnectionId, connection: Connection) {
        if let Some(client) = self.clients.get_mut(&connection.client) {
            client.connections.insert(name);
        }
        if let Some(nic) = self.nics.get_mut(&connection.nic) {
            nic.connections.insert(name);
            let user = nic.address.uid;
            self.accounts.charge(user, Budget::Connections, 1);
        }
        self.connections.insert(name, connection);
    }

    pub(crate) fn take_connection(&mut self, name: ConnectionId) -> Option<Connection> {
        let connection = self.connections.remove(&name)?;
        if let Some(client) = self.clients.get_mut(&connection.client) {
            client.connections.remove(&name);
        }
        if let Some(nic) = self.nics.get_mut(&connection.nic) {
            nic.connections.remove(&name);
            let user = nic.address.uid;
            self.accounts.release(user, Budget::Connections, 1);
        }
        Some(connection)
    }

    /// A server has been given a request.
    pub(crate) fn keep_offer(
        &mut self,
        name: ConnectionId,
        client: ClientId,
        nic: NicId,
        request: CallKey,
    ) {
        let state = ConnectionState::Offered(request);
        self.keep_connection(name, Connection { client, nic, state });
    }

    /// The requester of an unanswered handle has gone or given up.
    pub(crate) fn expire_offer(&mut self, name: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&name) {
            connection.state = ConnectionState::Expired;
        }
    }

    /// `Op::ACCEPT`. After a conflict the request stays, for a second try with other attributes.
    pub(crate) fn accept(&mut self, caller: Caller, body: &Accept) -> Result<(), Status> {
        let offer = self.own_connection(caller, body.connection)?;
        let nic = offer.nic;
        let request = match offer.state {
            ConnectionState::Offered(request) => request,
            ConnectionState::Expired => {
                self.take_connection(body.connection);
                return Err(Status::TIMEOUT);
            }
            _ => return Err(Status::INVALID),
        };
        let call = self.calls.get(&request).ok_or(Status::INVALID)?;
        let seeker = match &call.kind {
            CallKind::Request(seeker, _) => *seeker,
            CallKind::Guest(guest, _) => return self.accept_guest(caller, body, nic, *guest),
            _ => return Err(Status::INVALID),
        };
        attributes_agree(&seeker.attributes, &body.attributes)?;
        // The offer first: a request that leaves a standing offer behind would expire it.
        self.take_connection(body.connection);
        let call = self.take_call(request).ok_or(Status::INVALID)?;
        let accepter = End {
            caller,
            nic,
            connection: body.connection,
            vi: body.vi,
            attributes: body.attributes,
            segment_bytes: body.segment_bytes,
        };
        let Owner::Process(asker, asker_nic) = call.owner else {
            return Err(Status::INVALID);
        };
        let requester = End {
            caller: asker,
            nic: asker_nic,
            connection: self.fresh_connection(),
            vi: seeker.vi,
            attributes: seeker.attributes,
            segment_bytes: seeker.segment_bytes,
        };
        self.join([accepter, requester]);
        Ok(())
    }

    /// `Op::REJECT`. The server need not care whether the requester is still there.
    pub(crate) fn reject(&mut self, caller: Caller, name: ConnectionId) -> Result<(), Status> {
        match self.own_connection(caller, name)?.state {
            ConnectionState::Offered(_) | ConnectionState::Expired => self.abandon(name, true),
            _ => return Err(Status::INVALID),
        }
        self.done(caller, Status::OK);
        Ok(())
    }

    /// `Op::DISCONNECT`.
    pub(crate) fn disconnect(&mut self, caller: Caller, name: ConnectionId) -> Result<(), Status> {
        match self.own_connection(caller, name)?.state {
            ConnectionState::Offered(_) | ConnectionState::Expired => return Err(Status::INVALID),
            _ => self.abandon(name, true),
        }
        self.done(caller, Status::OK);
        Ok(())
    }

    /// One side leaves, whatever state it is in; the other side is told once.
    pub(crate) fn abandon(&mut self, name: ConnectionId, orderly: bool) {
        let Some(connection) = self.take_connection(name) else {
            return;
        };
        match connection.state {
            ConnectionState::Offered(request) => self.end_call(request, Status::REJECTED),
            ConnectionState::Open(partner) => self.partner_gone(partner, orderly),
            ConnectionState::Half(name) => self.part_half(name, orderly),
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

    /// Connects two sides in one instant.
    pub(crate) fn join(&mut self, ends: [End; 2]) {
        self.note(|_| {
            let [a, b] = &ends;
            let (one, other) = (a.caller.client.0, b.caller.client.0);
            let names = (a.connection, b.connection);
            format!("connections {names:?}: clients {one} and {other} are connected")
        });
        let key = self.keys.next_key();
        let wish = ends[0].segment_bytes.max(ends[1].segment_bytes).max(1);
        let segment_bytes = wish.next_multiple_of(PAGE_BYTES);
        for (side, end) in ends.iter().enumerate() {
            let state = ConnectionState::Open(ends[1 - side].connection);
            let connection = Connection {
                client: end.caller.client,
                nic: end.nic,
                state,
            };
            self.keep_connection(end.connection, connection);
        }
        let messages = [0, 1].map(|side| {
            let (end, partner) = (&ends[side], &ends[1 - side]);
            let body = Connected {
                connection: end.connection,
                key,
                partner_nic: partner.nic,
                partner_vi: partner.vi,
                partner_pid: self
                    .clients
                    .get(&partner.caller.client)
                    .map_or(0, |c| c.pid),
                side: side as u32,
                segment_bytes,
                remote: 0,
                attributes: partner.attributes,
                remote_endpoint: 0,
                remote_host_len: 0,
                reserved: 0,
                remote_host: [0; HOST_BYTES_MAX],
            };
            let bytes = crate::message::emit(Op::CONNECTED, Status::OK, end.caller.id, &body);
            let fds = self
                .nics
                .get(&partner.nic)
                .map_or_else(Vec::new, |nic| nic.fds.clone());
            Message {
                client: end.caller.client,
                bytes,
                fds,
            }
        });
        let ends = ends.map(|end| JoinEnd {
            connection: end.connection,
            call: end.caller.id,
        });
        self.outputs.push_back(Output::Join(Join {
            segment_bytes,
            messages,
            ends,
        }));
    }

    /// There was no segment for two sides that the agent had connected: both calls end with
    /// `Status::RESOURCE`, as if they had never met. To be called before the next input, so that
    /// neither side has done anything with the connection.
    pub fn handle_join_failed(&mut self, now: u64, join: &Join<F>) {
        self.advance(now);
        for (message, end) in join.messages.iter().zip(join.ends) {
            self.take_connection(end.connection);
            self.done(
                Caller {
                    client: message.client,
                    id: end.call,
                },
                Status::RESOURCE,
            );
        }
    }
}
