//! The inputs of the logic. Each takes the time, does all that follows, and queues the resulting outputs.

pub(crate) mod frame;
pub(crate) mod message;
pub(crate) mod opened;
pub(crate) mod process;
pub(crate) mod time;
