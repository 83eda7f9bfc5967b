//! The ways into the logic. Each takes the time, does all that follows, and leaves what is to be done in a queue.

pub(crate) mod frame;
pub(crate) mod message;
pub(crate) mod opened;
pub(crate) mod process;
pub(crate) mod time;
