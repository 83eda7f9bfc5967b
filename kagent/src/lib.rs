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
//! The **runtime** ([`sys`]) owns everything that touches the system: the listening socket, the poll
//! loop, the passing of descriptors, shared segments and the noticing of death. The program `vipkad` is
//! the runtime with a command line.
//!
//! ```text
//!     processes          runtime (sys)                         core (Agent)
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

mod accounts;
mod adopt;
mod agent;
mod ask;
mod audit;
mod call;
mod claim;
mod client;
mod confirm;
mod connection;
mod denial;
mod device;
mod exchange;
mod guest;
mod keys;
pub mod limits;
mod link;
mod listen;
mod message;
mod nic;
mod note;
mod output;
mod pace;
mod parting;
mod peer;
mod place;
mod queue;
mod request;
pub mod sys;
mod timer;
mod who;

pub use agent::{Agent, Census};
pub use client::{ClientId, Refused};
pub use link::{Interface, LinkId, Mac};
pub use message::Malformed;
pub use output::{FrameOut, Join, Message, OpenDevice, OpenLink, Output};
