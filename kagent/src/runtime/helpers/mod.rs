//! Helpers: processes that receive and close the descriptors that clients send.

pub(crate) mod held;
pub(crate) mod pool;
pub(crate) mod program;
