//! Matching: a request is handed to a server, and two VIs are connected, on this host or with a remote one.

#![forbid(unsafe_code)]

use kagent_proto::setup::Accepted;
use kagent_proto::{Attributes, Connected, DataAddress, HOST_BYTES_MAX, Incoming, Op, Status};
use zerocopy::FromZeros;

use crate::logic::agent::Agent;
use crate::logic::budgets::PAGE_BYTES;
use crate::logic::calls::{CallKind, Initiator, Owner, QueueKey, RemoteCall, RequestState};
use crate::logic::ids::{CallKey, Caller, ConnectionId, ExchangeKey, NicId};
use crate::logic::message::{self, attributes_agree, to_wire};
use crate::logic::objects::{Connection, ConnectionState, State};
use crate::logic::output::{Join, JoinEnd, Message, Output};
use crate::logic::queues::NS_PER_MS;

/// Handing a request to a server.
impl<F: Clone> Agent<F> {
    /// Hands a queued request to a server, as the reply to its wait. The agent keeps the request until the
    /// server answers or the deadline passes.
    pub(crate) fn offer(&mut self, request: CallKey, server: Caller, nic: NicId) {
        let connection = self.fresh_connection();
        let Some(call) = self.calls.get_mut(&request) else {
            return;
        };
        let (attributes, from, place, state) = match &mut call.kind {
            CallKind::Request(initiator, state) => (
                initiator.attributes,
                initiator.local.point(),
                QueueKey::Local(initiator.remote),
                state,
            ),
            CallKind::RemoteRequest(remote_call, state) => (
                remote_call.attributes,
                remote_call.point(),
                remote_call.queue_key(),
                state,
            ),
            _ => return,
        };
        let RequestState::Queued { timeout } = *state else {
            return;
        };
        let grace = call.deadline;
        *state = RequestState::Held { connection, grace };
        // From now on only the deadline of the whole request applies.
        self.timers.stop(call.deadline, request);
        call.deadline = timeout;
        self.timers.start(timeout, request);
        self.requests.remove(&place, request);
        self.note(|_| {
            let client = server.client.0;
            format!("call {}: client {client} has it as {connection}", request.0)
        });
        self.keep_offer(connection, server, nic, request);
        let incoming = Incoming {
            connection,
            attributes,
            remote: from,
            reserved: 0,
        };
        self.reply(server, Op::INCOMING, &incoming);
    }

    /// The server did not take a request. It is handed to another waiting server; if there is none, it waits
    /// for the rest of its grace period, which may be over.
    pub(crate) fn take_back(&mut self, offer: ConnectionId) {
        let Some(ConnectionState::Offered(request, _)) =
            self.take_connection(offer).map(|offer| offer.state)
        else {
            return;
        };
        let Some(call) = self.calls.get_mut(&request) else {
            return;
        };
        let timeout = call.deadline;
        let (place, state) = match &mut call.kind {
            CallKind::Request(initiator, state) => (QueueKey::Local(initiator.remote), state),
            CallKind::RemoteRequest(remote_call, state) => (remote_call.queue_key(), state),
            _ => return,
        };
        let RequestState::Held { grace, .. } = *state else {
            return;
        };
        *state = RequestState::Queued { timeout };
        self.timers.stop(timeout, request);
        call.deadline = grace;
        self.timers.start(grace, request);
        self.requests.push(place, request);
        self.note(|_| format!("call {}: its server has not taken it", request.0));
        let wait = self.waits.oldest(&place);
        let wait = wait.and_then(|wait| self.take_call(wait));
        if let Some(Owner::Process(server, nic)) = wait.map(|wait| wait.owner) {
            self.offer(request, server, nic);
        }
    }
}

/// One side at the moment of connecting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) caller: Caller,
    pub(crate) nic: NicId,
    pub(crate) connection: ConnectionId,
    pub(crate) vi: u64,
    pub(crate) attributes: Attributes,
    pub(crate) segment_bytes: u32,
}

impl End {
    /// The side that named its peer.
    pub(crate) fn of(
        (caller, nic): (Caller, NicId),
        connection: ConnectionId,
        initiator: &Initiator,
    ) -> Self {
        Self {
            caller,
            nic,
            connection,
            vi: initiator.vi,
            attributes: initiator.attributes,
            segment_bytes: initiator.segment_bytes,
        }
    }
}

/// Connecting two VIs of this host.
impl<F: Clone> Agent<F> {
    /// Connects two sides at one instant.
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
            let (end, peer) = (&ends[side], &ends[1 - side]);
            let body = Connected {
                connection: end.connection,
                key,
                peer_nic: peer.nic,
                peer_vi: peer.vi,
                peer_pid: self.clients.get(&peer.caller.client).map_or(0, |c| c.pid),
                side: side as u32,
                segment_bytes,
                attributes: peer.attributes,
                data_address: self
                    .nics
                    .get(&peer.nic)
                    .map_or(DataAddress::NONE, |nic| nic.data_address),
                ..Connected::new_zeroed()
            };
            let bytes = message::emit(Op::CONNECTED, Status::OK, end.caller.id, &body);
            let fds = self
                .nics
                .get(&peer.nic)
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
}

/// Time for which an acceptance is repeated after the deadline of the remote call, whose host reports when it
/// has given up.
const LATE_MS: u64 = 1000;

/// Maximum time for which an acceptance is repeated.
const ACCEPTING_MS: u64 = 30_000;

/// The remote side of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteEnd {
    pub(crate) endpoint: u16,
    pub(crate) vi: u32,
    /// The connection's key.
    pub(crate) key: u64,
    /// The side of the local process.
    pub(crate) side: u32,
    pub(crate) attributes: Attributes,
}

/// The secret of one connection, derived from that of the hosts and from one number chosen by each host. The
/// remote host derives the same.
fn seal_of(secret: &[u8; 32], key: u64, exchange: u64) -> [u8; 32] {
    let mut hash = blake3::Hasher::new_keyed(secret);
    hash.update(&key.to_be_bytes());
    hash.update(&exchange.to_be_bytes());
    hash.finalize().into()
}

/// Connections to remote hosts, on the side of the local process: it attaches its VI first, and is then
/// notified whether the connection is established.
impl<F: Clone> Agent<F> {
    /// Replies to a call: the process is to attach its VI to a VI on a remote host.
    pub(crate) fn attach(
        &mut self,
        caller: Caller,
        nic: NicId,
        connection: ConnectionId,
        exchange: ExchangeKey,
        end: &RemoteEnd,
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
            peer_vi: end.vi.into(),
            side: end.side,
            remote: 1,
            attributes: end.attributes,
            remote_endpoint: end.endpoint,
            remote_host_len: host.len() as u16,
            sealed: seal.is_some().into(),
            remote_host,
            seal: seal.unwrap_or_default(),
            ..Connected::new_zeroed()
        };
        self.reply(caller, Op::CONNECTED, &body);
    }

    /// Makes a local process attach its VI; the remote host is notified after that.
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
        let end = RemoteEnd {
            endpoint: remote_call.endpoint,
            vi: remote_call.vi,
            key: accepted.key,
            side: 0,
            attributes: remote_call.attributes,
        };
        self.attach(caller, nic, connection, remote_call.exchange, &end);
    }

    /// A local and a remote peer match. An error is for the local one; the remote one has been notified.
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

    /// The remote host acknowledged: completes CONFIRM.
    pub(crate) fn confirmed(&mut self, name: ConnectionId, exchange: ExchangeKey) {
        let Some(connection) = self.connections.get(&name) else {
            return;
        };
        if let ConnectionState::Confirming(_, id) = connection.state {
            let client = connection.client;
            self.set_connection(name, ConnectionState::Remote(exchange));
            self.done(Caller { client, id }, Status::OK);
        }
    }
}
