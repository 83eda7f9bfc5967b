//! Processes: the agent's own, those that it watches and those that it starts.

pub(crate) mod prepare;
pub(crate) mod spawn;
pub(crate) mod watch;
