//! The messages between the User Agent (`libvipl`) and the Kernel Agent (`kagent`).
//!
//! One message is one `SOCK_SEQPACKET` packet: a [`Header`], then one fixed-size body, then nothing. File
//! descriptors travel beside the packet (`SCM_RIGHTS`), in the order each message states. Bodies are plain
//! structures without pointers, so a character device with ioctls could carry the same messages. All integers
//! have the host's byte order: both ends are on one host.
//!
//! ```text
//!   User Agent                                  Kernel Agent
//!   Hello            ────────────────────────▶
//!                    ◀────────────────────────  Welcome
//!   NicOpen  +2 fds  ────────────────────────▶
//!                    ◀────────────────────────  NicOpened
//!   Wait             ────────────────────────▶  (kept until a request matches)
//!                    ◀────────────────────────  Incoming            client: Request ──▶
//!   Accept           ────────────────────────▶
//!                    ◀──  Connected +3 fds                Connected +3 fds  ──▶ client
//!   Disconnect       ────────────────────────▶            PeerGone          ──▶ client
//! ```
//!
//! When an agent has died, each process connects to the next one, opens its NICs there, and hands over its
//! sides of existing connections:
//!
//! ```text
//!   Hello, NicOpen   ────────────────────────▶
//!   Adopt            ────────────────────────▶            peer: Adopt       ──▶
//!                    ◀────────────────────────  Adopted
//! ```
//!
//! Every call carries an id chosen by the User Agent, and gets exactly one reply with that id. Events
//! (`PeerGone`) have id 0. A call that waits (`Wait`, `Request`, `Peer`) ends with its result, with
//! `Status::TIMEOUT` at its deadline, or with `Status::CANCELLED` after a `Cancel`; the agent decides which,
//! so that the outcome of a race is never ambiguous.

#![forbid(unsafe_code)]

mod body;
mod detail;
mod header;
pub mod place;
pub mod setup;

pub use body::*;
pub use detail::*;
pub use header::*;
