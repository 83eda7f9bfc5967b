//! Processes that have connected to the agent.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use crate::logic::values::ids::{CallKey, ConnectionId, EndpointId, NicId};

/// One process and everything that has to go when it goes.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    /// `Hello` with our version has been seen.
    pub(crate) greeted: bool,
    /// `Goodbye` has been seen: whatever ends from now on ends in good order.
    pub(crate) leaving: bool,
    pub(crate) nics: BTreeSet<NicId>,
    pub(crate) endpoints: BTreeSet<EndpointId>,
    /// Calls without a reply yet, by the id that the process chose.
    pub(crate) calls: BTreeMap<u64, CallKey>,
    pub(crate) connections: BTreeSet<ConnectionId>,
}
