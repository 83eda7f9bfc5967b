//! The routines for other machines: ordinary copies, in which an invalid address of the application causes a
//! crash.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::{Fault, Image, Segment};

/// # Safety
/// Both ranges are mapped and do not overlap.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe { core::ptr::copy_nonoverlapping(from, to, bytes) };
    0
}

/// This machine has one implementation only.
pub(crate) use copy as copy_blocks;

/// # Safety
/// `descriptor` is mapped.
pub(crate) unsafe fn load_descriptor(descriptor: *const u8) -> Result<Image, Fault> {
    // SAFETY: 64 bytes at a multiple of 64 lie in one page.
    let word = |offset: usize| unsafe { descriptor.add(offset).cast::<u32>().read_volatile() };
    let segment = |offset: usize| Segment {
        // SAFETY: as above.
        address: unsafe { descriptor.add(offset).cast::<u64>().read_volatile() },
        handle: word(offset + 8),
        length: word(offset + 12),
    };
    // SAFETY: as above.
    let half = |offset: usize| unsafe { descriptor.add(offset).cast::<u16>().read_volatile() };
    Ok(Image {
        seg_count: half(12),
        control: half(14),
        immediate: word(20),
        length: word(24),
        first: segment(32),
    })
}

/// # Safety
/// `descriptor` is mapped and owned by the provider.
pub(crate) unsafe fn complete(
    descriptor: *mut u8,
    immediate: u32,
    length: u32,
    status: u32,
) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        descriptor.add(20).cast::<u32>().write_volatile(immediate);
        descriptor.add(24).cast::<u32>().write_volatile(length);
        AtomicU32::from_ptr(descriptor.add(28).cast()).store(status, Ordering::Release);
    }
    0
}

/// # Safety
/// `descriptor` is mapped and owned by the provider.
pub(crate) unsafe fn store_status(descriptor: *mut u8, status: u32) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe { AtomicU32::from_ptr(descriptor.add(28).cast()).store(status, Ordering::Release) };
    0
}
