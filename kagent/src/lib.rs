//! The Kernel Agent of VIPL: connects processes on this host and on others, and reports the exit of a process
//! to its peers.
//!
//! The crate has two parts.
//!
//! The **logic** ([`Agent`]) is a set of state machines without input and output: no socket, clock, thread or
//! random source. Each event is passed in with the time in nanoseconds; the results are actions for the
//! runtime. File descriptors pass through as values of a generic type. Therefore a test can drive it with a
//! virtual clock, as could the ioctls of a character device.
//!
//! The **runtime** ([`runtime`]) is all code that uses the system: the listening socket, the poll loop,
//! passing descriptors, shared segments, detecting the exit of processes. The program `vipkad` adds a command
//! line.
//!
//! ```text
//!     processes          runtime                               core (Agent)
//!   ┌──────────┐  packet  ┌─────────┐  handle_connect/message/hangup  ┌──────────────────────┐
//!   │ libvipl  ├─────────▶│ sockets ├────────────────────────────────▶│ clients   nics       │
//!   │          │          │ pidfds  │  handle_timeout                 │ waits     requests   │
//!   │          │◀─────────┤ memfds  │◀────────────────────────────────┤ peers   connections  │
//!   └──────────┘ +fds     └─────────┘  poll_output, poll_timeout      └──────────────────────┘
//! ```
//!
//! ```text
//!   bin/vipkad
//!     runtime    server: the poll loop, and in its order entrance  clients  links  devices
//!                helpers   processes   sockets   options   context: poll set, clock, log
//!     logic      events ── commands ── exchange ── meeting ── ending ── records ── agent ── calls, objects
//! ```
//!
//! [`budgets`] bounds every table. A waiting call is found by its FIFO queue when a match arrives, and by its
//! timer otherwise. The rules of connecting are those of spec §3.8 to §3.15 and §9.

mod logic;
pub mod runtime;

pub use logic::address::{HostAddress, Medium};
pub use logic::agent::{Agent, Census};
pub use logic::budgets;
pub use logic::events::message::Refused;
pub use logic::ids::{ClientId, LinkId};
pub use logic::message::Malformed;
pub use logic::objects::Interface;
pub use logic::output::{AdoptLink, FrameOut, Join, Message, OpenDevice, OpenLink, Output};
