//! The basis of objects behind handles: the handle, the table of slots, and a slot's lock.

pub(crate) mod barrier;
pub(crate) mod handle;
pub(crate) mod lock;
pub(crate) mod table;
