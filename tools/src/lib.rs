//! What the tools `vipinfo`, `vip_pingpong` and `vip_perf` share.
//!
//! The tools use the library as a C program does: they open `libvipl.so.1` at run time and call its C
//! functions, so that they measure what a user's program gets, and work with any VIPL. From bottom to
//! top:
//!
//! ```text
//!   sys, vipl                 the system, the library's functions
//!   nic, region, descriptor, endpoint, cq     safe objects over the handles
//!   control, request, rendezvous, session, server  two processes that do something together
//!   pingpong, limits          measuring
//!   machine, arena, process_vm  measuring what two processors can do
//!   cable, frames, tcp, link  measuring what an interface can do
//!   peers                     measuring other libraries
//!   size, stats, report, host, pin, procmem   helpers
//! ```
//!
//! `unsafe` is confined to `sys`, `vipl`, `nic`, `region`, `descriptor`, `endpoint`, `cq`, `limits`,
//! `arena`, `process_vm`, `link` and `frames`.

pub mod arena;
pub mod cable;
pub mod control;
pub mod cq;
pub mod descriptor;
pub mod endpoint;
pub mod error;
pub mod frames;
pub mod host;
pub mod limits;
pub mod link;
pub mod machine;
pub mod nic;
pub mod options;
pub mod peers;
pub mod pin;
pub mod pingpong;
pub mod process_vm;
pub mod procmem;
pub mod region;
pub mod rendezvous;
pub mod report;
pub mod request;
pub mod server;
pub mod session;
pub mod size;
pub mod stats;
pub mod sys;
pub mod tcp;
pub mod udp;

pub use error::{Error, Result};
