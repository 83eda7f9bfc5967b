//! NICs that processes have opened.

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
    /// Descriptors that partners get.
    pub(crate) fds: Vec<F>,
    /// Where it receives data, for partners.
    pub(crate) data_address: DataAddress,
    /// On which endpoint it is, if on any.
    pub(crate) endpoint: Option<EndpointId>,
    pub(crate) calls: BTreeSet<CallKey>,
    pub(crate) connections: BTreeSet<ConnectionId>,
}
