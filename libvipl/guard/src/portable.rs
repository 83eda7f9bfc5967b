//! The routines for other machines: plain copies, which a bad address of the application does crash.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::{Fault, Image, Range, Segment};

/// An empty range: nothing to register.
pub fn range() -> Range {
    Range {
        start: 0,
        end: 0,
        fixup: 0,
    }
}

/// Copies `bytes` bytes.
///
/// # Safety
/// Both ranges are mapped and do not overlap.
pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Fault> {
    // SAFETY: as asked of the caller.
    unsafe { core::ptr::copy_nonoverlapping(from, to, bytes) };
    Ok(())
}

/// Copies more than 32 bytes.
///
/// # Safety
/// As for [`copy`].
pub unsafe fn copy_blocks(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Fault> {
    // SAFETY: as asked of the caller.
    unsafe { copy(to, from, bytes) }
}

/// Reads the fields of a descriptor that is aligned to 64 bytes.
///
/// # Safety
/// `descriptor` is mapped.
pub unsafe fn load_descriptor(descriptor: *const u8) -> Result<Image, Fault> {
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

/// Writes ImmediateData, Length and, last, Status.
///
/// # Safety
/// `descriptor` is mapped and owned by the provider.
pub unsafe fn complete(
    descriptor: *mut u8,
    immediate: u32,
    length: u32,
    status: u32,
) -> Result<(), Fault> {
    // SAFETY: as asked of the caller.
    unsafe {
        descriptor.add(20).cast::<u32>().write_volatile(immediate);
        descriptor.add(24).cast::<u32>().write_volatile(length);
        AtomicU32::from_ptr(descriptor.add(28).cast()).store(status, Ordering::Release);
    }
    Ok(())
}

/// Writes four bytes.
///
/// # Safety
/// `address` is mapped.
pub unsafe fn store32(address: *mut u8, value: u32) -> Result<(), Fault> {
    // SAFETY: as asked of the caller.
    unsafe { address.cast::<u32>().write_unaligned(value) };
    Ok(())
}
