//! The memory and messages that an application's side and the clan device share.
//!
//! ```text
//!     application                                       vipl-clan
//!     plug-in ── doorbells (per VI) ──────────────────▶ device
//!             ◀── completions (per VI) ────────────────
//!             ◀── bell (per NIC handle) ─────────────── rung only if a thread waits
//!             ◀── device page (one, read-only) ──────── asleep or in a round
//!             ◀─▶ socket: make and connect VIs; wake the device
//! ```
//!
//! Each NIC handle has one socket to the device. All shared memory is made by the device, sealed against
//! resizing, and sent to the process. It contains no lock. Each side reads a value once, checks it and uses the copy: a
//! process that overwrites its pages damages its own VIs only.
//!
//! | module | contents |
//! | --- | --- |
//! | `claim` | which side writes a completion into the application's memory |
//! | `message` | the packets of the sockets |
//! | `nic` | the pages of a NIC handle and of the device: bell, table of regions, sleep |
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
