//! Processes that have connected to the agent.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use crate::logic::values::ids::{CallKey, ConnectionId, EndpointId, NicId};

/// One process and all that is released when it ends.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    /// `Hello` with our version was received.
    pub(crate) greeted: bool,
    /// `Goodbye` was received: what ends from now on ends in good order.
    pub(crate) disconnecting: bool,
    pub(crate) nics: BTreeSet<NicId>,
    pub(crate) endpoints: BTreeSet<EndpointId>,
    /// Calls without a reply, by the id that the process chose.
    pub(crate) calls: BTreeMap<u64, CallKey>,
    pub(crate) connections: BTreeSet<ConnectionId>,
    /// Requests that it was given and has not answered, by the id of the wait that each is the reply to.
    pub(crate) offers: BTreeMap<u64, ConnectionId>,
}
