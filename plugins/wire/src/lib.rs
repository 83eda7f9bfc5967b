//! VIA over frames: the protocol that hosts speak with each other. It knows no socket, clock, thread or
//! random source; time and frames come in as arguments, frames and deadlines go out.
//!
//! A [`Connection`] is one VI's end. Its owner, a device, holds the VI's lock around every call and lends
//! it an [`Env`]: the posted descriptors, the program's memory, the completions, and room for frames.
//!
//! ```text
//!   doorbell ──────▶ posted ──┐                          ┌──▶ Env::frame, transmit
//!   frame arrived ─▶ received │      ┌──────────────┐    │    Env::outgoing, gather     sends
//!   end of a batch ▶ flush ───┼─────▶│  Connection  │────┼──▶ Env::incoming, scatter    receives
//!   deadline passed▶ timeout ─┤      └──────────────┘    │    Env::place, fetch         RDMA
//!   VipDisconnect ─▶ close ───┘       deadline()         └──▶ Env::complete_*, raise, fail
//! ```
//!
//! The order that a device keeps: give every frame of a batch to `received`, then call `flush` once; call
//! `timeout` when [`Connection::deadline`] has passed and no frame is left that came before. `received` itself sends nothing but what cannot wait,
//! so that acknowledgements of a batch travel together, or with data. A device that polls may take its
//! time with an acknowledgement that is owed, until it has nothing else to do ([`Connection::ack_owed`],
//! [`Connection::flush_acks`]); the deadline bounds how long.
//!
//! Frames of other versions are the device's to answer: what `received` refuses as
//! [`Refused::Version`] gets a [`VersionNegotiation`], and a [`VersionNegotiation`] that arrives goes to the log.
//!
//! docs/WIRE.md shows the frames and tells the rules of sequence, acknowledgement and time.

mod ack;
mod arrivals;
mod closing;
mod config;
mod connection;
mod crc;
mod env;
mod frame;
mod inflight;
mod pace;
mod part;
mod peer;
mod receiver;
mod retry;
mod rtt;
mod sender;
mod silence;
mod version;

pub use closing::{Closing, Reason};
pub use config::{ACK_DELAY_NS, Config, PROBES, Received, Stats};
pub use connection::Connection;
pub use crc::crc32c;
pub use env::{Cause, Env, Incoming, Level, MemoryFault, Operation, Outgoing, Remote, Transmit};
pub use frame::{Address, address, body_max, key_check};
pub use frame::{CLOSE_BODY, FLAG_ASK, HEADER, Header, Kind, MTU_MIN, Refused, TRAILER, VERSION};
pub use part::{Part, PartKind, Parts};
pub use peer::{PeerProcess, PeerProcesses};
pub use version::VersionNegotiation;

/// Ethertype of frames that carry data between two VIs. One of the two that are set aside for local
/// experiments.
pub const ETHERTYPE: u16 = 0x88B5;
/// Where the endpoint stands in a frame that carries data, Ethernet header included: 16 bits, big-endian.
pub const ENDPOINT_OFFSET: u32 = 16;
