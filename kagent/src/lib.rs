//! The Kernel Agent of VIPL: who may connect to whom on this host, and what happens when a process
//! dies.
//!
//! The crate has two halves that never mix.
//!
//! The **core** ([`Agent`]) is a set of state machines without input and output of its own: no socket,
//! clock, thread or random source. Somebody hands it what happened, with the time as a plain number of
//! nanoseconds, and takes away what shall be done. File descriptors pass through it as values of a type
//! that it does not know. The same logic can so be driven by a fake clock in a test, by a poll loop in
//! a process, or by ioctls of a character device.
//!
//! The **runtime** ([`runtime`]) owns everything that touches the system: the listening socket, the poll
//! loop, the passing of descriptors, shared segments and the noticing of death. The program `vipkad` is
//! the runtime with a command line.
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
//! Inside the core each table has its own file and its own noun: [`limits`] bounds them all. A call
//! that has to wait is a *call* record (`call.rs`), found by its FIFO queue (`queue.rs`) when a partner
//! comes and by its timer (`timer.rs`) when none does. The rules of connecting are those of spec §3.8
//! to §3.15 and §9.

mod logic;
pub mod runtime;

pub use logic::agent::{Agent, Census};
pub use logic::events::process::Refused;
pub use logic::limits;
pub use logic::tables::link::Interface;
pub use logic::values::ids::{ClientId, LinkId, Mac};
pub use logic::values::message::Malformed;
pub use logic::values::output::{FrameOut, Join, Message, OpenDevice, OpenLink, Output};
