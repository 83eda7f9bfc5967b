//! The VI provider library proper: handles, objects, plug-in loader, device map, settings, log.
//!
//! `libvipl` turns C calls into calls of this crate; a plug-in does the transport behind the tables of
//! `vipl-plugin-abi`; the Kernel Agent decides who is connected to whom. This crate owns everything in
//! between, so that every plug-in has the same semantics: the VI state machine, the queues of posted
//! descriptors, completion queues, waiting, notification, asynchronous errors, tags and regions.
//!
//! ```text
//!   handle ──▶ table ──▶ Vi (one lock) ──▶ plug-in operation ──▶ host ──▶ Cq · waiters · events
//! ```
//!
//! Lock order, outermost first: VI slot → CQ slot → the mutexes inside a NIC → log. The agent's tables
//! are locked alone. No lock but the VI's is held across a plug-in's operation, and none across a call
//! of the program's handlers. Nothing here runs before the first call of the program: there are no
//! constructors.

pub mod address;
mod agent;
mod barrier;
pub mod bug;
mod clock;
pub mod connection;
mod counters;
pub mod cq;
pub mod describe;
mod device;
mod devicemap;
pub mod discovery;
mod error;
pub mod events;
#[cfg(fuzzing)]
pub mod fuzzing;
mod handle;
mod host;
mod idle;
mod link;
mod loader;
mod lock;
mod logger;
pub mod mem;
pub mod nameservice;
mod neighbour;
pub mod nic;
mod process;
pub mod ptag;
pub mod queue;
mod settings;
mod start;
mod sync;
mod table;
pub mod trace;
pub mod vi;
mod wait;

pub use error::Error;
