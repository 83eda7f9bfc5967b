//! Sockets of processes: the one that they connect to, and their packets.

pub(crate) mod activation;
pub(crate) mod listener;
pub(crate) mod packet;
