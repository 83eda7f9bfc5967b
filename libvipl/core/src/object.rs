//! What every object behind a handle needs: the handle itself, the table of slots, and a slot's lock.

pub(crate) mod barrier;
pub(crate) mod handle;
pub(crate) mod lock;
pub(crate) mod table;
