//! Links, the network interfaces on which agents of different hosts communicate, and the endpoints of
//! processes there.
//!
//! An endpoint is a data socket that one process holds. Frames carry its number, so that the kernel can
//! filter them without knowing VIs. A link exists while a process has an endpoint on it, or while a
//! DISCONNECT there is unacknowledged.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use kagent_proto::{DRIVER_BYTES, INTERFACE_BYTES};

use crate::logic::values::host::{HostAddress, Medium};
use crate::logic::values::ids::{ClientId, EndpointId, ExchangeKey, LinkId, NicId};

/// What the runtime knows of the network interface of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number.
    pub index: LinkId,
    /// Its name, zero padded.
    pub name: [u8; INTERFACE_BYTES],
    /// What it is made of.
    pub medium: Medium,
    /// Its address there.
    pub address: HostAddress,
    /// Largest payload of a frame in bytes.
    pub mtu: u32,
    /// Speed in Mbit/s; 0 if unknown.
    pub speed_mbit: u32,
    /// Name of its driver, zero padded.
    pub driver: [u8; DRIVER_BYTES],
    /// The secret from which those of connections are made, if this host has one for the link.
    pub seals: Option<[u8; 32]>,
}

/// A link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) medium: Medium,
    pub(crate) address: HostAddress,
    pub(crate) seals: Option<[u8; 32]>,
    /// Endpoints by number.
    pub(crate) endpoints: BTreeMap<u16, EndpointId>,
    /// Exchanges that this host started, and that others started.
    pub(crate) exchanges: [usize; 2],
    /// Exchanges in which a local call waits for an answer.
    pub(crate) asking: BTreeSet<ExchangeKey>,
    /// Exchanges that others started and that wait for a server or are remembered after their end: per
    /// source, and in total.
    pub(crate) idle: (BTreeMap<HostAddress, usize>, usize),
    /// Number of endpoints per user.
    pub(crate) users: BTreeMap<u32, usize>,
    /// Exchanges whose DISCONNECT is unacknowledged.
    pub(crate) disconnecting: usize,
    /// The last number assigned: a released one is not reused soon.
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
