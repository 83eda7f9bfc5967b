//! Connections with other hosts, as the processes here see them: the VI is attached first, and then the
//! process learns whether there is a connection.

#![forbid(unsafe_code)]

use kagent_proto::{Attributes, Connected, HOST_BYTES_MAX, Op, Status};
use vipl_wire::setup::Body;

use crate::agent::{Agent, Caller};
use crate::connection::{Connection, ConnectionId, ConnectionState};
use crate::exchange::{ExchangeKey, State};
use crate::nic::NicId;

/// The side of a connection that is on another host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarEnd {
    pub(crate) endpoint: u16,
    pub(crate) vi: u32,
    /// The connection's key.
    pub(crate) key: u64,
    /// Which side the process here is.
    pub(crate) side: u32,
    pub(crate) attributes: Attributes,
}

impl<F: Clone> Agent<F> {
    /// Tells a process whom its VI is to be attached to, as the reply to its call.
    pub(crate) fn attach(
        &mut self,
        caller: Caller,
        nic: NicId,
        connection: ConnectionId,
        exchange: ExchangeKey,
        end: &FarEnd,
    ) {
        let (client, state) = (caller.client, ConnectionState::Attaching(exchange));
        self.keep_connection(connection, Connection { client, nic, state });
        let mut remote_host = [0; HOST_BYTES_MAX];
        remote_host[..exchange.host.len()].copy_from_slice(&exchange.host);
        let body = Connected {
            connection,
            key: end.key,
            partner_nic: 0,
            partner_vi: end.vi.into(),
            partner_pid: 0,
            side: end.side,
            segment_bytes: 0,
            remote: 1,
            attributes: end.attributes,
            remote_endpoint: end.endpoint,
            remote_host_len: exchange.host.len() as u16,
            reserved: 0,
            remote_host,
        };
        self.reply(caller, Op::CONNECTED, &body);
    }

    /// `Op::CONFIRM`: the VI is attached.
    pub(crate) fn confirm(&mut self, caller: Caller, name: ConnectionId) -> Result<(), Status> {
        let exchange = match self.own_connection(caller, name)?.state {
            ConnectionState::Attaching(exchange) => exchange,
            ConnectionState::Failed => {
                self.take_connection(name);
                return Err(Status::TIMEOUT);
            }
            _ => return Err(Status::INVALID),
        };
        match self.state(exchange) {
            Some(State::Taking(_)) => {
                self.set_exchange(exchange, State::Open(name), None);
                self.set_connection(name, ConnectionState::Far(exchange));
                self.send_frame(exchange, Body::Ack);
                self.done(caller, Status::OK);
                Ok(())
            }
            Some(State::Readying(_, accepted, until)) => {
                let state = State::Accepting(name, accepted, until);
                self.set_exchange(exchange, state, Some(until));
                self.set_connection(name, ConnectionState::Confirming(exchange, caller.id));
                self.answer_on(exchange, accepted, until);
                Ok(())
            }
            _ => Err(Status::INVALID),
        }
    }

    /// The other host has confirmed as well.
    pub(crate) fn confirmed(&mut self, name: ConnectionId, exchange: ExchangeKey) {
        let Some(connection) = self.connections.get(&name) else {
            return;
        };
        if let ConnectionState::Confirming(_, id) = connection.state {
            let client = connection.client;
            self.set_connection(name, ConnectionState::Far(exchange));
            self.done(Caller { client, id }, Status::OK);
        }
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

    fn set_connection(&mut self, name: ConnectionId, state: ConnectionState) {
        if let Some(connection) = self.connections.get_mut(&name) {
            connection.state = state;
        }
    }
}
