//! Plain values: names, addresses, messages, limits. They know of no table.

pub(crate) mod address;
pub(crate) mod denial;
pub(crate) mod host;
pub(crate) mod ids;
pub(crate) mod keys;
pub(crate) mod message;
pub(crate) mod output;
pub(crate) mod timer;
pub(crate) mod wire;
