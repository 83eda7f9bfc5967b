//! Sockets: the listener, and packets of processes.

pub(crate) mod activation;
pub(crate) mod listener;
pub(crate) mod packet;
