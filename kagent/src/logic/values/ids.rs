//! The names by which the tables know things, and those of whoever called.

#![forbid(unsafe_code)]

use vipl_wire::setup::Side;

/// The runtime's name for a process; never used again after the process has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Who gets a reply, and under which id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    pub(crate) id: u64,
}

/// The agent's name for a NIC.
pub(crate) type NicId = u64;

/// The agent's own name for a waiting call; grows with time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallKey(pub(crate) u64);

/// The agent's name for one side of a connection.
pub(crate) type ConnectionId = u64;

/// Number of a network interface.
pub type LinkId = u32;

/// The address of an interface.
pub type Mac = [u8; 6];

/// The agent's name for an endpoint.
pub(crate) type EndpointId = u64;

/// Names an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExchangeKey {
    pub(crate) link: LinkId,
    /// The other host.
    pub(crate) host: Mac,
    pub(crate) number: u64,
    /// Which side this host is.
    pub(crate) side: Side,
}

/// A connection's name before its sides have found each other: the user and the key.
pub(crate) type HalfName = (u32, u64);
