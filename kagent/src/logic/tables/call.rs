//! Calls that wait for a partner: WAIT, REQUEST, PEER, and the same from other hosts.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use kagent_proto::{Attributes, Point};

use crate::logic::tables::queue_key::{PeerKey, QueueKey};
use crate::logic::values::address::{ConnectionPoint, Discriminator};
use crate::logic::values::host::HostAddress;
use crate::logic::values::ids::{Caller, ConnectionId, ExchangeKey, LinkId, NicId};

/// The owner of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    /// A process, with a NIC.
    Process(Caller, NicId),
    /// Another host.
    Remote(ExchangeKey),
}

/// A waiting call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) owner: Owner,
    pub(crate) kind: CallKind,
    /// Deadline of the running timer.
    pub(crate) deadline: Option<u64>,
}

/// What a call waits for.
#[derive(Debug)]
pub(crate) enum CallKind {
    /// A server at this connection point; on a link, also for other hosts.
    Wait(ConnectionPoint, Option<LinkId>),
    /// A client request.
    Request(Initiator, RequestState),
    /// A peer request, in the queue with this key.
    Peer(Initiator, PeerKey),
    /// A client or peer request to another host.
    Asking(Initiator, ExchangeKey, Ask),
    /// A client request from another host.
    RemoteRequest(RemoteCall, RequestState),
    /// A peer request from another host, in the queue with this key.
    RemotePeer(RemoteCall, PeerKey),
    /// A search for the hosts on a link.
    Search(Search),
}

/// The side that names its partner: client or peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Initiator {
    pub(crate) vi: u64,
    pub(crate) attributes: Attributes,
    pub(crate) segment_bytes: u32,
    pub(crate) local: ConnectionPoint,
    pub(crate) remote: ConnectionPoint,
}

/// A client or peer request from another host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteCall {
    pub(crate) exchange: ExchangeKey,
    pub(crate) endpoint: u16,
    pub(crate) vi: u32,
    pub(crate) attributes: Attributes,
    /// Its own discriminator.
    pub(crate) local: Discriminator,
    /// The discriminator that it asks for.
    pub(crate) remote: Discriminator,
    /// When the remote host gives up.
    pub(crate) until: Option<u64>,
}

impl RemoteCall {
    /// The queue in which it looks for a server.
    pub(crate) fn queue_key(&self) -> QueueKey {
        QueueKey::Far(self.exchange.link, self.remote)
    }

    /// Its connection point, as reported to the server.
    pub(crate) fn point(&self) -> Point {
        let host = self.exchange.host.bytes();
        let mut point = Point {
            host_len: host.len() as u16,
            discriminator_len: self.local.bytes().len() as u16,
            host: [0; kagent_proto::HOST_BYTES_MAX],
            discriminator: [0; kagent_proto::DISCRIMINATOR_BYTES_MAX],
        };
        point.host[..host.len()].copy_from_slice(host);
        point.discriminator[..self.local.bytes().len()].copy_from_slice(self.local.bytes());
        point
    }
}

/// Progress of a client request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestState {
    /// No server is waiting yet; the timer is the end of the grace period. The deadline of the whole request
    /// is kept for later.
    Queued {
        /// Deadline of the whole request.
        timeout: Option<u64>,
    },
    /// A server holds it and will accept or reject; the timer is the deadline.
    Held {
        /// The server's name for it.
        connection: ConnectionId,
        /// The end of the grace period, if the server does not take it.
        grace: Option<u64>,
    },
}

/// What is asked of another host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    /// A server, within the grace period.
    Request {
        /// In milliseconds.
        grace_ms: u64,
        /// Which host decides the final status at the deadline.
        final_status: FinalStatus,
    },
    /// A peer.
    Peer,
}

/// Which host decides the status of a call at its deadline. If the grace period ends at the same time, only
/// the other host knows whether a server held the request (TIMEOUT) or none was waiting (NO_MATCH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalStatus {
    /// This host.
    Ours,
    /// The other host, once it reports that it holds the request.
    TheirsOnceHeld,
    /// The other host: it holds the request.
    Theirs,
}

/// A search in progress.
#[derive(Debug)]
pub(crate) struct Search {
    pub(crate) link: LinkId,
    pub(crate) number: u64,
    pub(crate) round: u32,
    pub(crate) found: BTreeSet<HostAddress>,
}
