//! What a program's side and the clan device share.
//!
//! ```text
//!     program                                           vipl-clan
//!     plug-in ── doorbells (per VI) ──────────────────▶ device
//!             ◀── completions (per VI) ────────────────
//!             ◀── bell (per NIC handle) ─────────────── raised only where somebody waits
//!             ◀── device page (one, read-only) ──────── asleep or at work
//!             ◀─▶ socket: make and connect VIs; wake the device
//! ```
//!
//! Each NIC handle has one socket to the device. All shared memory is made by the device, sealed against
//! resizing, and sent to the process. Nothing in it is a lock. What one side finds there it reads once,
//! checks and uses as a copy: a process that scribbles over its pages hurts its own VIs only.
//!
//! | module | is |
//! | --- | --- |
//! | `claim` | who puts a completion into the program's memory |
//! | `message` | the packets of the sockets |
//! | `nic` | the pages of a NIC handle and of the device: bell, table of regions, asleep |
//! | `vi` | the pages of a VI: doorbells and completions |
//! | `channel` | packets with descriptors |

#[cfg(not(target_os = "linux"))]
compile_error!("clan needs memfd, futex and process_vm_*: Linux");

pub mod channel;
pub mod claim;
pub mod message;
pub mod nic;
pub mod vi;

/// Atomics, named in one place so that `ctest/loom` can put those of a model checker there.
mod sync {
    pub(crate) use std::sync::atomic;
}
