//! NICs that processes have opened.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use crate::logic::values::address::Address;
use crate::logic::values::ids::{CallKey, ClientId, ConnectionId, EndpointId};

/// An open NIC.
#[derive(Debug)]
pub(crate) struct Nic<F> {
    pub(crate) client: ClientId,
    pub(crate) address: Address,
    /// Descriptors that partners get.
    pub(crate) fds: Vec<F>,
    /// On which endpoint it is, if on any.
    pub(crate) endpoint: Option<EndpointId>,
    pub(crate) calls: BTreeSet<CallKey>,
    pub(crate) connections: BTreeSet<ConnectionId>,
}
