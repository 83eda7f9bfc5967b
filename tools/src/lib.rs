//! What the tools `vipinfo`, `vip_pingpong` and `vip_perf` (`tools/perf`) share.
//!
//! The tools use the library as a C program does: `vipl-client` opens `libvipl.so.1` at run time, so they measure what a
//! user's program gets, and work with any VIPL. From bottom to top:
//!
//! ```text
//!   sys                       the system
//!   nic, region, descriptor, endpoint, cq     unowned descriptors of many VIs in one region
//!   control, request, rendezvous, session, server  two processes that do something together
//!   pingpong, blocks, arena, placement     measuring
//!   replay                    a recorded run, again
//!   answering                 whether the Kernel Agent answers
//!   why                       what keeps a device from working, or slows it
//!   size, stats, patience, report, host, options, pin   helpers
//! ```
//!
//! `unsafe` is confined to `sys`, `arena`, `nic`, `region`, `descriptor`, `endpoint`, `cq` and `replay::calls`.

pub mod answering;
pub mod arena;
pub mod blocks;
pub mod control;
pub mod cq;
pub mod descriptor;
pub mod endpoint;
pub mod error;
pub mod host;
pub mod nic;
pub mod options;
pub mod patience;
pub mod pin;
pub mod pingpong;
pub mod placement;
pub mod region;
pub mod rendezvous;
pub mod replay;
pub mod report;
pub mod request;
pub mod server;
pub mod session;
pub mod size;
pub mod stats;
pub mod sys;
pub mod why;

pub use error::{Error, Result};
