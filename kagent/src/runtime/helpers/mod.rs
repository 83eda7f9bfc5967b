//! Helpers: processes that touch the descriptors which other processes send.

pub(crate) mod held;
pub(crate) mod pool;
pub(crate) mod program;
