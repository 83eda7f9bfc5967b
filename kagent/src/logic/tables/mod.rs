//! The state of the agent. Each table keeps its own rules and is given what else it needs.

pub(crate) mod accounts;
pub(crate) mod call;
pub(crate) mod claim;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod exchange;
pub(crate) mod half;
pub(crate) mod link;
pub(crate) mod link_rate;
pub(crate) mod nic;
pub(crate) mod queue;
pub(crate) mod queue_key;
