//! The protocol between hosts: VIA over frames. The engine has no sockets, clocks, threads or random numbers: time and
//! frames are arguments, frames and deadlines are results.
//!
//! A [`Connection`] is the end of one VI. Its owner, a device, holds the VI's lock during each call and passes an
//! [`Env`]: posted descriptors, the application's memory, completions, and buffers for frames.
//!
//! ```text
//!   doorbell ──────▶ posted ──┐                          ┌──▶ Env::frame, transmit
//!   frame arrived ─▶ received │      ┌──────────────┐    │    Env::outgoing, gather     sends
//!   end of a batch ▶ flush ───┼─────▶│  Connection  │────┼──▶ Env::incoming, scatter    receives
//!   deadline passed▶ timeout ─┤      └──────────────┘    │    Env::place, fetch         RDMA
//!   VipDisconnect ─▶ close ───┘       deadline()         └──▶ Env::complete_*, raise, fail
//! ```
//!
//! A device passes each frame of a batch to `received`, then calls `flush` once. It calls `timeout` when
//! [`Connection::deadline`] has passed and all frames that arrived before have been passed on. `received` sends only
//! urgent frames, so that the acknowledgements of a batch travel together or with data. A device that polls may delay
//! an acknowledgement until it is idle ([`Connection::ack_owed`], [`Connection::flush_acks`]); the deadline limits
//! the delay.
//!
//! The device handles other versions: it answers a frame that `received` refuses as [`Refused::Version`] with a
//! [`VersionNegotiation`], and logs a [`VersionNegotiation`] that arrives.
//!
//! ```text
//!   connection   phase, key and timers: closing, keepalive
//!   ├─▶ receive  ReceiveSide: order, early frames, slices, acknowledgements; delivery, unreliable
//!   │     ▼      (RDMA Reads)
//!   └─▶ send     SendSide: operations, answers, path (search)
//!         └─▶ flow    inflight (loss), rtt, pace (cubic), ecn
//!
//!   frames       frame, part, seal, version, framing      around it   env, config
//! ```
//!
//! docs/WIRE.md describes the frames and the rules of sequence, acknowledgement and time.

mod answers;
mod closing;
mod config;
mod connection;
mod cubic;
mod delivery;
mod ecn;
mod env;
mod flow;
mod frame;
mod framing;
mod inflight;
mod keepalive;
mod loss;
mod operations;
mod pace;
mod part;
mod receive;
mod rtt;
mod seal;
mod search;
mod send;
mod slices;
mod unreliable;
mod version;

pub use closing::{Closing, Reason};
pub use config::{ACK_DELAY_NS, Config, PATIENCE_NS, Received, Stats};
pub use connection::Connection;
pub use env::{Cause, Env, Incoming, Level, MemoryFault, Operation, Outgoing, Remote, Transmit};
pub use frame::{Address, address, body_max, key_check};
pub use frame::{
    CLOSE_BODY, FLAG_ASK, FLAG_SEALED, HEADER, Header, Kind, MTU_MIN, Refused, TRAILER, VERSION,
};
pub use part::{Part, PartKind, Parts};
pub use seal::{SEAL, SealKey};
pub use send::ASKS;
pub use version::VersionNegotiation;
