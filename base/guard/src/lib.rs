//! Copies that tolerate invalid addresses.
//!
//! Descriptors and buffers belong to the application, which may unmap or write-protect them while they are
//! posted. That is an error of the application, but it must cause a protection error, not a crash (spec
//! §10.4), and must not cost a system call per message. Therefore every access of the data path to an
//! application's memory uses the few routines of this crate. They are written in assembly and do not use the
//! stack; if one of them faults, a handler for SIGSEGV and SIGBUS continues it where it reports the error.
//! All other faults are passed to the previous handler.
//!
//! An application that later replaces the handler without chaining only loses this protection. There are
//! routines for x86-64, i386 and aarch64. On other machines, and under Miri, they are ordinary copies, and
//! [`CATCHES`] is false.

use core::sync::atomic::{Ordering, fence};

/// Whether the routines tolerate invalid addresses on this machine.
pub const CATCHES: bool = cfg!(all(
    not(miri),
    any(
        target_arch = "x86_64",
        target_arch = "x86",
        target_arch = "aarch64"
    )
));

mod handler;
#[cfg_attr(all(not(miri), target_arch = "x86_64"), path = "x86_64.rs")]
#[cfg_attr(all(not(miri), target_arch = "x86"), path = "x86.rs")]
#[cfg_attr(all(not(miri), target_arch = "aarch64"), path = "aarch64.rs")]
#[cfg_attr(
    any(
        miri,
        not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64"))
    ),
    path = "portable.rs"
)]
mod routines;
mod table;

pub use handler::{Printer, Range, install, on_fault, register, register_range};
pub use table::{Entry, table};

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

impl Segment {
    /// The same as a data segment of this process. A 32-bit application may have stored only half of the
    /// address, and the other half may contain anything (spec §2.4).
    #[inline(always)]
    pub fn local(self) -> Segment {
        Segment {
            address: own_address(self.address),
            ..self
        }
    }
}

/// Truncates an address to the address size of this process.
#[inline(always)]
pub fn own_address(address: u64) -> u64 {
    address & usize::MAX as u64
}

/// The memory could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Converts the result of a routine.
#[inline(always)]
fn checked(result: u32) -> Result<(), Fault> {
    if result == 0 { Ok(()) } else { Err(Fault) }
}

/// Copies `bytes` bytes; after a fault some of them may have been copied.
///
/// # Safety
/// Neither range may be memory that this process's own Rust or C objects rely on not to change, and the
/// ranges must not overlap. They need not be mapped if the routines tolerate that ([`CATCHES`]).
#[inline(always)]
pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Fault> {
    // SAFETY: guaranteed by the caller; faults are caught.
    checked(unsafe { routines::copy(to, from, bytes) })
}

/// Copies so that the last eight bytes become visible after all others, and together: applications poll them
/// as a flag (spec §5.4). Of fewer than eight bytes these are the last four.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub unsafe fn copy_watched(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Fault> {
    let last = match bytes {
        8.. => 8,
        4..8 => 4,
        _ => bytes,
    };
    let first = bytes - last;
    // SAFETY: guaranteed by the caller, in two or three parts.
    unsafe {
        copy(to, from, first)?;
        let (to, from) = (to.wrapping_add(first), from.wrapping_add(first));
        fence(Ordering::Release);
        if last == 8 && to.addr() % STORED > STORED - 8 {
            // Such a store is split in any order. The last four bytes may be a separate flag.
            copy(to, from, 4)?;
            fence(Ordering::Release);
            copy(to.wrapping_add(4), from.wrapping_add(4), 4)
        } else {
            copy(to, from, last)
        }
    }
}

/// A store is not split within this number of aligned bytes: a cache line on x86, a word elsewhere.
const STORED: usize = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
    64
} else {
    8
};

/// Copies more than 32 bytes. On x86-64 without REP MOVSB, which [`copy`] uses for large sizes: REP MOVSB
/// starts later if another processor has the lines of `to`, and is faster for many consecutive copies.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub unsafe fn copy_blocks(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Fault> {
    debug_assert!(bytes > 32, "the routine copies the last 32 bytes at once");
    // SAFETY: guaranteed by the caller; faults are caught.
    checked(unsafe { routines::copy_blocks(to, from, bytes) })
}

/// Bits of Control that are set if the first segment is an address in the peer's memory.
const RDMA: u16 = 3;

/// Reads the fields of a descriptor that is aligned to 64 bytes. Its first segment is a [local](Segment::local) one
/// unless the operation is RDMA.
///
/// # Safety
/// `descriptor` is an application's descriptor; it need not be mapped, as for [`copy`].
#[inline(always)]
pub unsafe fn load_descriptor(descriptor: *const u8) -> Result<Image, Fault> {
    // SAFETY: guaranteed by the caller; faults are caught.
    let image = unsafe { routines::load_descriptor(descriptor) }?;
    if usize::BITS == 64 || image.control & RDMA != 0 {
        return Ok(image);
    }
    Ok(Image {
        first: image.first.local(),
        ..image
    })
}

/// The same for a descriptor that is of use only with so many segments. `None`: it has another number of them, or its
/// memory is not accessible. On x86-64 one comparison finds both.
///
/// # Safety
/// As for [`load_descriptor`].
#[inline(always)]
pub unsafe fn load_descriptor_with(descriptor: *const u8, segments: u16) -> Option<Image> {
    #[cfg(all(not(miri), target_arch = "x86_64", target_pointer_width = "64"))]
    // SAFETY: guaranteed by the caller; faults are caught.
    return unsafe { routines::load_descriptor_with(descriptor, segments) };
    #[cfg(not(all(not(miri), target_arch = "x86_64", target_pointer_width = "64")))]
    // SAFETY: as above.
    unsafe { load_descriptor(descriptor) }
        .ok()
        .filter(|image| image.seg_count == segments)
}

/// Writes ImmediateData, Length and, last, Status.
///
/// # Safety
/// `descriptor` is an application's descriptor, owned by the provider; it need not be mapped, as for [`copy`].
#[inline(always)]
pub unsafe fn complete(
    descriptor: *mut u8,
    immediate: u32,
    length: u32,
    status: u32,
) -> Result<(), Fault> {
    publish(descriptor.wrapping_add(28));
    // SAFETY: guaranteed by the caller; faults are caught.
    checked(unsafe { routines::complete(descriptor, immediate, length, status) })
}

/// Writes Status alone, which lies at offset 28 (spec §2.4).
///
/// # Safety
/// As for [`complete`].
#[inline(always)]
pub unsafe fn store_status(descriptor: *mut u8, status: u32) -> Result<(), Fault> {
    publish(descriptor.wrapping_add(28));
    // SAFETY: guaranteed by the caller; faults are caught.
    checked(unsafe { routines::store_status(descriptor, status) })
}

/// Status publishes the rest of a descriptor, and its buffers, to other threads of the application.
/// ThreadSanitizer does not see the routines; with `--cfg tsan` it is informed of this order here.
#[inline(always)]
fn publish(_status: *mut u8) {
    #[cfg(tsan)]
    {
        unsafe extern "C" {
            fn __tsan_release(at: *const core::ffi::c_void);
        }
        // SAFETY: only the address is used.
        unsafe { __tsan_release(_status.cast_const().cast()) };
    }
}

#[cfg(test)]
mod tests;
