//! Processes: the agent's own, those that it watches and those that it starts.

pub(crate) mod own;
pub(crate) mod spawn;
