//! Data sockets: what carries the frames of the protocol between hosts. The Kernel Agent opens and filters a socket; the
//! owner of a NIC drives it from here.
//!
//! ```text
//!   engine ─▶ Frame ─▶ Outbox ─▶ Socket ─┬─▶ packet::Sender      AF_PACKET
//!                                        └─▶ datagram::Sender    UDP
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`mod@env`] | the engine's view of a VI, over an application of this process or of another one |
//! | `outbox` | frames that wait to be sent, and buffers to use again |
//! | `socket` | the transmit side of either kind of socket; results |
//! | `frame` | a frame behind the header of its link |
//! | [`packet`] | AF_PACKET: whole Ethernet frames, a receive ring shared with the kernel |
//! | [`datagram`] | UDP: datagrams in trains |
//! | [`peer`] | the processes at the other ends, and when something was last received from each |
//!
//! The Ethernet device class and clan's device process use it.

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
pub use socket::{Received, Sent, Socket};
