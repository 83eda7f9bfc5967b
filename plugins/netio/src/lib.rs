//! Sockets for the frames of the protocol between hosts. A data socket is opened and filtered by the Kernel Agent;
//! the owner of a NIC drives it from here.
//!
//! | module | contents |
//! | --- | --- |
//! | [`packet`] | AF_PACKET: whole Ethernet frames, a receive ring shared with the kernel |
//! | [`datagram`] | UDP: datagrams in trains |
//! | [`peer`] | the processes at the other ends, and when each was last heard |
//!
//! Used by the Ethernet device class and by clan's device process.

#[cfg(not(target_os = "linux"))]
compile_error!("AF_PACKET, UDP_SEGMENT and UDP_GRO: Linux");

pub mod datagram;
pub mod env;
mod frame;
mod options;
mod outbox;
pub mod packet;
pub mod peer;
mod socket;

pub use frame::{Address, Frame, Header};
pub use outbox::{BURST, Outbox, WAITING_MAX};
pub use socket::{Sent, Socket};
