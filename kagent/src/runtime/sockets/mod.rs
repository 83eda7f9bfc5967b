//! Sockets: the listener, packets of processes, and options.

pub(crate) mod activation;
pub(crate) mod listener;
pub(crate) mod option;
pub(crate) mod packet;
