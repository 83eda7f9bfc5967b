//! Copies that survive a bad address.
//!
//! Descriptors and buffers belong to the application, which may unmap or write-protect them while they are
//! posted. That is the application's mistake, but it must end as a protection error and not as a crash (spec
//! §10.4), and it must not cost a system call per message. So every access of the data path to a
//! application's memory goes through the few leaf routines of this crate. They are written in assembly,
//! touch no stack, and return 0; when one of them faults, a handler for SIGSEGV and SIGBUS sends it to a
//! common exit that returns 1. Faults anywhere else go to whatever handler was there before.
//!
//! An application that replaces the handler later and does not chain loses this protection and nothing else.
//! There are routines for x86-64, i386 and aarch64. On other machines they are plain copies, and [`CATCHES`] is false.

/// Whether the routines survive a bad address on this machine.
pub const CATCHES: bool = cfg!(any(
    target_arch = "x86_64",
    target_arch = "x86",
    target_arch = "aarch64"
));

mod handler;
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "x86", path = "x86.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")),
    path = "portable.rs"
)]
mod routines;

pub use handler::{Blame, Range, blame, install, register};
pub use routines::{complete, copy, copy_blocks, load_descriptor, range, store32};

/// The fields of a descriptor that a provider reads, each read once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Segments that follow the control segment.
    pub seg_count: u16,
    /// Operation and flags.
    pub control: u16,
    /// Immediate data.
    pub immediate: u32,
    /// Total length.
    pub length: u32,
    /// The first segment, whether used or not.
    pub first: Segment,
}

/// One segment, address or data.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Virtual address.
    pub address: u64,
    /// Memory handle.
    pub handle: u32,
    /// Bytes; reserved in an address segment.
    pub length: u32,
}

/// The memory could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

#[cfg(test)]
mod tests;
