//! The routines for aarch64. Everything between the first and the last label may fault.

use core::arch::global_asm;

use crate::{Fault, Image, Segment, checked};

// The C convention: arguments in x0 to x3, the result in w0. No routine touches the stack or the link register, so the
// common exit may simply return.
global_asm!(
    ".globl vipl_guard_first",
    ".hidden vipl_guard_first",
    ".globl vipl_guard_last",
    ".hidden vipl_guard_last",
    ".globl vipl_guard_copy",
    ".hidden vipl_guard_copy",
    ".globl vipl_guard_load",
    ".hidden vipl_guard_load",
    ".globl vipl_guard_complete",
    ".hidden vipl_guard_complete",
    ".globl vipl_guard_store_status",
    ".hidden vipl_guard_store_status",
    ".p2align 6",
    "vipl_guard_first:",
    // copy(to, from, bytes)
    "vipl_guard_copy:",
    "add x3, x0, x2",
    "add x4, x1, x2",
    "cmp x2, #16",
    "b.hi 3f",
    "cmp x2, #8",
    "b.hs 2f",
    "cmp x2, #4",
    "b.hs 1f",
    "cbz x2, 9f",
    "lsr x5, x2, #1",
    "ldrb w6, [x1]",
    "ldrb w7, [x1, x5]",
    "ldurb w8, [x4, #-1]",
    "strb w6, [x0]",
    "strb w7, [x0, x5]",
    "sturb w8, [x3, #-1]",
    "9: mov w0, #0",
    "ret",
    "1: ldr w5, [x1]",
    "ldur w6, [x4, #-4]",
    "str w5, [x0]",
    "stur w6, [x3, #-4]",
    "mov w0, #0",
    "ret",
    "2: ldr x5, [x1]",
    "ldur x6, [x4, #-8]",
    "str x5, [x0]",
    "stur x6, [x3, #-8]",
    "mov w0, #0",
    "ret",
    "3: cmp x2, #32",
    "b.hi 4f",
    "ldr q0, [x1]",
    "ldur q1, [x4, #-16]",
    "str q0, [x0]",
    "stur q1, [x3, #-16]",
    "mov w0, #0",
    "ret",
    // Whole 32-byte blocks, then the last 32 bytes once more.
    "4: ldp q2, q3, [x4, #-32]",
    "sub x3, x3, #32",
    "5: ldp q0, q1, [x1], #32",
    "stp q0, q1, [x0], #32",
    "cmp x0, x3",
    "b.lo 5b",
    "stp q2, q3, [x3]",
    "mov w0, #0",
    "ret",
    // load_descriptor(descriptor, fields): each is loaded with its own width, as the application has written it.
    "vipl_guard_load:",
    "ldrh w2, [x0, #12]",
    "ldrh w3, [x0, #14]",
    "ldr w4, [x0, #20]",
    "ldr w5, [x0, #24]",
    "ldr x6, [x0, #32]",
    "ldr w7, [x0, #40]",
    "ldr w8, [x0, #44]",
    "stp w2, w3, [x1]",
    "stp w4, w5, [x1, #8]",
    "str x6, [x1, #16]",
    "stp w7, w8, [x1, #24]",
    "mov w0, #0",
    "ret",
    // complete(descriptor, immediate, length, status): status last, in release order.
    "vipl_guard_complete:",
    "stp w1, w2, [x0, #20]",
    "dmb ish",
    "str w3, [x0, #28]",
    "mov w0, #0",
    "ret",
    // store_status(descriptor, status), in release order. With a barrier: a store-release faults at an odd address.
    "vipl_guard_store_status:",
    "dmb ish",
    "str w1, [x0, #28]",
    "mov w0, #0",
    "ret",
    "vipl_guard_last:",
    "mov w0, #1",
    "ret",
);

unsafe extern "C" {
    #[link_name = "vipl_guard_copy"]
    pub(crate) fn copy(to: *mut u8, from: *const u8, bytes: usize) -> u32;
    fn vipl_guard_load(descriptor: *const u8, fields: *mut Fields) -> u32;
    #[link_name = "vipl_guard_complete"]
    pub(crate) fn complete(descriptor: *mut u8, immediate: u32, length: u32, status: u32) -> u32;
    #[link_name = "vipl_guard_store_status"]
    pub(crate) fn store_status(descriptor: *mut u8, status: u32) -> u32;
}

/// What `vipl_guard_load` writes.
#[repr(C)]
#[derive(Default)]
struct Fields {
    seg_count: u32,
    control: u32,
    immediate: u32,
    length: u32,
    first: Segment,
}

/// This machine has one implementation only.
pub(crate) use copy as copy_blocks;

/// # Safety
/// See [`crate::load_descriptor`].
#[inline(always)]
pub(crate) unsafe fn load_descriptor(descriptor: *const u8) -> Result<Image, Fault> {
    let mut fields = Fields::default();
    // SAFETY: guaranteed by the caller; faults are caught.
    checked(unsafe { vipl_guard_load(descriptor, &raw mut fields) })?;
    Ok(Image {
        seg_count: fields.seg_count as u16,
        control: fields.control as u16,
        immediate: fields.immediate,
        length: fields.length,
        first: fields.first,
    })
}
