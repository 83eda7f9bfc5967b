//! Open NICs.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use kagent_proto::DataAddress;

use crate::logic::values::address::Address;
use crate::logic::values::ids::{CallKey, ClientId, ConnectionId, EndpointId};

/// An open NIC.
#[derive(Debug)]
pub(crate) struct Nic<F> {
    pub(crate) client: ClientId,
    pub(crate) address: Address,
    /// Descriptors passed to peers.
    pub(crate) fds: Vec<F>,
    /// Where it receives data, for peers.
    pub(crate) data_address: DataAddress,
    /// The endpoint that it uses, if it is on a link.
    pub(crate) endpoint: Option<EndpointId>,
    pub(crate) calls: BTreeSet<CallKey>,
    pub(crate) connections: BTreeSet<ConnectionId>,
}
