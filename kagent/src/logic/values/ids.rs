//! Identifiers of the records in the tables.

#![forbid(unsafe_code)]

use kagent_proto::setup::Side;

use crate::logic::values::host::HostAddress;

/// The runtime's identifier of a process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The recipient of a reply and the id of the call it answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    pub(crate) id: u64,
}

/// Identifier of a NIC.
pub(crate) type NicId = u64;

/// Identifier of a waiting call; grows with time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallKey(pub(crate) u64);

/// Identifier of one side of a connection.
pub(crate) type ConnectionId = u64;

/// Number of a link: that of its interface, or for UDP one that the runtime chooses.
pub type LinkId = u32;

/// Identifier of an endpoint.
pub(crate) type EndpointId = u64;

/// Identifier of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExchangeKey {
    pub(crate) link: LinkId,
    /// The other host.
    pub(crate) host: HostAddress,
    pub(crate) number: u64,
    /// Which side this host is.
    pub(crate) side: Side,
}

/// Identifier of a connection before both sides are adopted: the user and the key.
pub(crate) type HalfName = (u32, u64);
