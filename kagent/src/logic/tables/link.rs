//! Links: network interfaces on which the agent speaks with agents of other hosts, and the endpoints that
//! processes have there.
//!
//! An endpoint is a data socket in the hands of one process. Its number stands in every frame for it, so
//! that the kernel can sort frames without knowing any VI. A link is there while somebody has an endpoint
//! on it, or while something that was agreed with another host there is not yet at its end.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use kagent_proto::{DRIVER_BYTES, INTERFACE_BYTES};

use crate::logic::values::ids::{ClientId, EndpointId, ExchangeKey, LinkId, Mac, NicId};

/// What the runtime knows of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number.
    pub index: LinkId,
    /// Its name, zero padded.
    pub name: [u8; INTERFACE_BYTES],
    /// Its address.
    pub address: Mac,
    /// Largest payload of a frame in bytes.
    pub mtu: u32,
    /// Speed in Mbit/s, 0 when it does not tell.
    pub speed_mbit: u32,
    /// Name of its driver, zero padded.
    pub driver: [u8; DRIVER_BYTES],
}

/// A link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: Mac,
    /// Endpoints by number.
    pub(crate) endpoints: BTreeMap<u16, EndpointId>,
    /// Exchanges that this host began, and that others began.
    pub(crate) exchanges: [usize; 2],
    /// Those of them in which a call of ours waits for an answer.
    pub(crate) asking: BTreeSet<ExchangeKey>,
    /// Those that others began and that wait for a server or are remembered after their end: of each host,
    /// and all.
    pub(crate) idle: (BTreeMap<Mac, usize>, usize),
    /// Endpoints of each user.
    pub(crate) users: BTreeMap<u32, usize>,
    /// Those that wait for the last word of the other host.
    pub(crate) leaving: usize,
    /// The number given out last: one that has become free is not used again soon.
    pub(crate) last_endpoint: u16,
}

/// An endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    pub(crate) client: ClientId,
    pub(crate) user: u32,
    pub(crate) link: LinkId,
    pub(crate) number: u16,
    /// The NIC that uses it.
    pub(crate) nic: Option<NicId>,
}
