//! Processes: our own, those that are watched, and those that are started.

pub(crate) mod prepare;
pub(crate) mod spawn;
pub(crate) mod watch;
