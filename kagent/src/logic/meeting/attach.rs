//! Connections with other hosts, as the processes here see them: the VI is attached first, and then the
//! process learns whether there is a connection.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Attributes, Connected, HOST_BYTES_MAX, Op, Status};
use vipl_wire::setup::Accepted;

use crate::logic::tables::call::{Guest, Seeker};
use crate::logic::tables::connection::{Connection, ConnectionState};
use crate::logic::tables::exchange::State;
use crate::logic::values::ids::{Caller, ConnectionId, ExchangeKey, NicId};
use crate::logic::values::timer::NS_PER_MS;
use crate::logic::values::wire::{attributes_agree, to_wire};

/// How much longer than the guest itself waits its acceptance is repeated: it says so when it has given up.
const LATE_MS: u64 = 1000;

/// How long an acceptance is repeated at most.
const ACCEPTING_MS: u64 = 30_000;

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

    /// Lets a process here attach its VI; when it has done so the guest is told.
    pub(crate) fn make_ready(
        &mut self,
        caller: Caller,
        nic: NicId,
        connection: ConnectionId,
        (vi, attributes): (u64, &Attributes),
        guest: &Guest,
    ) {
        let endpoint = self.endpoint_of(nic).map_or(0, |endpoint| endpoint.number);
        let accepted = Accepted {
            endpoint,
            vi: vi as u32,
            key: self.keys.next_key(),
            attributes: to_wire(attributes),
        };
        let latest = self.now + ACCEPTING_MS * NS_PER_MS;
        let until = guest
            .until
            .map(|until| until.saturating_add(LATE_MS * NS_PER_MS));
        let until = until.map_or(latest, |until| until.min(latest));
        let state = State::Readying(connection, accepted, until);
        self.set_exchange(guest.exchange, state, Some(until));
        let end = FarEnd {
            endpoint: guest.endpoint,
            vi: guest.vi,
            key: accepted.key,
            side: 0,
            attributes: guest.attributes,
        };
        self.attach(caller, nic, connection, guest.exchange, &end);
    }

    /// A peer here and one there have found each other. An error is for the one here, and the one there
    /// has been told.
    pub(crate) fn meet_guest(
        &mut self,
        caller: Caller,
        nic: NicId,
        own: &Seeker,
        guest: &Guest,
    ) -> Result<(), Status> {
        if let Err(conflict) = attributes_agree(&guest.attributes, &own.attributes) {
            self.refuse_guest(guest.exchange, conflict);
            return Err(conflict);
        }
        let connection = self.fresh_connection();
        self.make_ready(caller, nic, connection, (own.vi, &own.attributes), guest);
        Ok(())
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
}
