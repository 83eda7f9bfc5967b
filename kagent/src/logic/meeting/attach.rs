//! Connections with other hosts, as local processes see them: the process attaches its VI first and then
//! learns whether the connection is established.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::setup::Accepted;
use kagent_proto::{Attributes, Connected, DataAddress, HOST_BYTES_MAX, Op, Status};

use crate::logic::tables::call::{Initiator, RemoteCall};
use crate::logic::tables::connection::{Connection, ConnectionState};
use crate::logic::tables::exchange::State;
use crate::logic::values::ids::{Caller, ConnectionId, ExchangeKey, NicId};
use crate::logic::values::timer::NS_PER_MS;
use crate::logic::values::wire::{attributes_agree, to_wire};

/// An acceptance is repeated for this long after the deadline of the remote call, which reports when it has
/// given up.
const LATE_MS: u64 = 1000;

/// Maximum time for which an acceptance is repeated.
const ACCEPTING_MS: u64 = 30_000;

/// The remote side of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarEnd {
    pub(crate) endpoint: u16,
    pub(crate) vi: u32,
    /// The connection's key.
    pub(crate) key: u64,
    /// The side of the local process.
    pub(crate) side: u32,
    pub(crate) attributes: Attributes,
}

/// The secret of one connection, from that of the hosts and from two numbers that one of them has chosen each. The other
/// host makes the same.
fn seal_of(secret: &[u8; 32], key: u64, exchange: u64) -> [u8; 32] {
    let mut hash = blake3::Hasher::new_keyed(secret);
    hash.update(&key.to_be_bytes());
    hash.update(&exchange.to_be_bytes());
    hash.finalize().into()
}

impl<F: Clone> Agent<F> {
    /// Replies to a call: the process is to attach its VI to a VI on another host.
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
        let host = exchange.host.bytes();
        remote_host[..host.len()].copy_from_slice(host);
        let secret = self.links.get(&exchange.link).and_then(|link| link.seals);
        let seal = secret.map(|secret| seal_of(&secret, end.key, exchange.number));
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
            remote_host_len: host.len() as u16,
            sealed: seal.is_some().into(),
            remote_host,
            data_address: DataAddress::NONE,
            seal: seal.unwrap_or_default(),
        };
        self.reply(caller, Op::CONNECTED, &body);
    }

    /// Makes a local process attach its VI; the remote host is told after that.
    pub(crate) fn make_ready(
        &mut self,
        caller: Caller,
        nic: NicId,
        connection: ConnectionId,
        (vi, attributes): (u64, &Attributes),
        remote_call: &RemoteCall,
    ) {
        let endpoint = self.endpoint_of(nic).map_or(0, |endpoint| endpoint.number);
        let accepted = Accepted {
            endpoint,
            vi: vi as u32,
            key: self.keys.next_key(),
            attributes: to_wire(attributes),
        };
        let latest = self.now + ACCEPTING_MS * NS_PER_MS;
        let until = remote_call
            .until
            .map(|until| until.saturating_add(LATE_MS * NS_PER_MS));
        let until = until.map_or(latest, |until| until.min(latest));
        let state = State::Readying(connection, accepted, until);
        self.set_exchange(remote_call.exchange, state, Some(until));
        let end = FarEnd {
            endpoint: remote_call.endpoint,
            vi: remote_call.vi,
            key: accepted.key,
            side: 0,
            attributes: remote_call.attributes,
        };
        self.attach(caller, nic, connection, remote_call.exchange, &end);
    }

    /// A local and a remote peer match. An error is for the local one; the remote one has been told.
    pub(crate) fn meet_remote(
        &mut self,
        caller: Caller,
        nic: NicId,
        own: &Initiator,
        remote_call: &RemoteCall,
    ) -> Result<(), Status> {
        if let Err(conflict) = attributes_agree(&remote_call.attributes, &own.attributes) {
            self.refuse_remote(remote_call.exchange, conflict);
            return Err(conflict);
        }
        let connection = self.fresh_connection();
        self.make_ready(
            caller,
            nic,
            connection,
            (own.vi, &own.attributes),
            remote_call,
        );
        Ok(())
    }

    /// The other host acknowledged: completes CONFIRM.
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
