//! The VI provider library proper: handles, objects, plug-in loader, device map, settings, log.
//!
//! `libvipl` turns C calls into calls of this crate; a plug-in does the transport behind the tables of
//! `vipl-plugin-abi`; the Kernel Agent decides who is connected to whom. This crate owns everything in
//! between, so that all plug-ins have the same semantics: the VI state machine, the queues of posted
//! descriptors, completion queues, waiting, notification, asynchronous errors, tags and regions.
//!
//! Modules import downwards only; `cargo xtask modules` checks it. Each line shows modules used by those
//! above:
//!
//! ```text
//!   calls          device (VipOpenNic, VipCloseNic)    connect    trace ─▶ plugin::layer_host, describe (vipl_describe)
//!                    │                                    │
//!   plug-ins       plugin::map ─▶ plugin::host            │
//!                                      │                  │
//!   objects                 vi, cq, memory, names  ◀──────┘
//!                                      │
//!   own threads                handlers, poller ─▶ vi::of_nic
//!                                      │
//!   one opening    nic: regions and tags (memory::table, ::tags), host names (names::table), events, wait
//!                                      │
//!   one process    layers ─▶ process: agent, plugin::{loader, layers, file, loaded}, settings, logger, counters
//!                                      │
//!   basis          object (handles, tables, locks), watch, sync, clock, text, meaning, error
//! ```
//!
//! A call on the data path: handle ─▶ slot of a table, locked ─▶ operation of the plug-in ─▶ `plugin::host`, if the
//! plug-in has completed something that is waited for ─▶ CQ, waiting threads, events of the NIC.
//!
//! Lock order, outermost first: VI slot → CQ slot → the mutexes inside a NIC → log. The agent's tables
//! are locked alone. No lock but the VI's is held across a plug-in's operation on a VI, and none across a call
//! of the application's handlers. Nothing here runs before the first call of the application.

mod agent;
pub mod bug;
mod clock;
pub mod connect;
pub mod cq;
pub mod describe;
pub mod device;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod handlers;
pub mod layers;
mod logger;
pub mod meaning;
pub mod memory;
pub mod names;
pub mod nic;
mod object;
mod pages;
mod plugin;
mod poller;
mod process;
mod settings;
pub mod shortage;
mod sync;
mod text;
pub mod trace;
pub mod vi;
pub mod waiting;
pub mod watch;

pub use error::Error;
pub use nic::idle::set_may_yield;
