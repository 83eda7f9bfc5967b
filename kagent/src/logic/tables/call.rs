//! Calls that have no reply yet because they wait for somebody: a server's wait, a client's request, a
//! peer's request.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use kagent_proto::{Attributes, Point};

use crate::logic::tables::place::{Pair, Place};
use crate::logic::values::address::{Name, Spot};
use crate::logic::values::ids::{Caller, ConnectionId, ExchangeKey, LinkId, Mac, NicId};

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

/// A client or a peer on another host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest {
    pub(crate) exchange: ExchangeKey,
    pub(crate) endpoint: u16,
    pub(crate) vi: u32,
    pub(crate) attributes: Attributes,
    /// Its own name.
    pub(crate) local: Name,
    /// Whom it wants here.
    pub(crate) remote: Name,
    /// When it gives up.
    pub(crate) until: Option<u64>,
}

impl Guest {
    /// Where it looks for a server.
    pub(crate) fn place(&self) -> Place {
        Place::Far(self.exchange.link, self.remote)
    }

    /// Its connection point, as the server sees it.
    pub(crate) fn point(&self) -> Point {
        let mut point = Point {
            host_len: self.exchange.host.len() as u16,
            discriminator_len: self.local.bytes().len() as u16,
            host: [0; kagent_proto::HOST_BYTES_MAX],
            discriminator: [0; kagent_proto::DISCRIMINATOR_BYTES_MAX],
        };
        point.host[..self.exchange.host.len()].copy_from_slice(&self.exchange.host);
        point.discriminator[..self.local.bytes().len()].copy_from_slice(self.local.bytes());
        point
    }
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

/// What a call to another host asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    /// A server, within its grace.
    Request {
        /// In milliseconds.
        grace_ms: u64,
        /// Who says what became of it when its time is over.
        last_word: LastWord,
    },
    /// A peer.
    Peer,
}

/// Who decides how a call ends whose time is over. If its grace is over at the same moment, the other host
/// alone knows whether a server had it (TIMEOUT) or nobody waited there (NO_MATCH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastWord {
    /// This host.
    Ours,
    /// The other one, if it says that it has the call.
    TheirsOnceHeld,
    /// The other one; it has the call.
    Theirs,
}

/// A question under way.
#[derive(Debug)]
pub(crate) struct Search {
    pub(crate) link: LinkId,
    pub(crate) number: u64,
    pub(crate) round: u32,
    pub(crate) found: BTreeSet<Mac>,
}
