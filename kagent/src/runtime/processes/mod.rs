//! Processes: the agent itself, watched processes, and started processes.

pub(crate) mod prepare;
pub(crate) mod spawn;
pub(crate) mod watch;
