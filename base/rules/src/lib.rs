//! The rules of the specification that every transport shares, without input and output: whether a descriptor is valid
//! (§5.7), whether memory may be used (§10.2), and the status of a send that the peer could not receive (§6.4).
//!
//! A plug-in applies them to descriptors of its own process, the clan device to those of others.
//!
//! ```text
//!   kit              the functions of `vipl_host` for plug-ins in C
//!   port::transfer   one descriptor at a time: next_send, next_receive, gather, scatter, refuse
//!   posted           reads and checks a posted descriptor
//!   port             a VI during one operation: attributes, queues, completions
//!   host             the library's functions that are not about one VI
//!   descriptor  region   the rules themselves
//!   refusal          what a target of RDMA has refused, for the log
//!   words            bits of descriptors in words
//! ```

pub mod descriptor;
pub mod host;
pub mod kit;
pub mod port;
pub mod posted;
pub mod refusal;
pub mod region;
pub mod words;

pub use host::{Host, NicHandle, Status};
pub use port::{Entry, Port, Queue};
pub use vipl_guard::{Fault, Image, Segment};

use vipl_abi::*;

/// Status of a send that the peer could not receive, without the operation (E6 to E8).
#[inline]
pub fn receive_failed(reliability: u16) -> u32 {
    match reliability {
        VIP_SERVICE_UNRELIABLE => 0,
        VIP_SERVICE_RELIABLE_RECEPTION => VIP_STATUS_REMOTE_DESC_ERROR,
        _ => VIP_STATUS_TRANSPORT_ERROR,
    }
}

/// Names that `ctest/loom` replaces.
mod abi {
    pub(crate) use vipl_plugin_abi::{VIPL_PTAG_ANY, VIPL_PTAG_NONE, vipl_region};
}

/// Atomics, named in one place so that `ctest/loom` can put those of a model checker there.
mod sync {
    pub(crate) use std::sync::atomic;
}
