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

mod agent;
pub mod bug;
mod clock;
pub mod connect;
mod counters;
pub mod cq;
pub mod describe;
pub mod device;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod handlers;
mod logger;
pub mod memory;
pub mod names;
pub mod nic;
mod object;
mod plugin;
mod process;
mod settings;
mod sync;
mod text;
pub mod trace;
pub mod vi;

pub use error::Error;
