//! The routines for x86-64. Those of a few instructions are inlined where they are called, each with an entry in the table;
//! the others are functions and have one entry together.

use core::arch::{asm, global_asm};

use crate::{Fault, Image, Segment};

/// Instructions that may fault, their fixup address, and their operands.
macro_rules! guarded {
    ($($instruction:literal),+; $landing:literal; $($operands:tt)*) => {
        asm!(
            "2:",
            $($instruction,)+
            "3:",
            ".pushsection vipl_guard, \"aR\", @progbits",
            ".balign 4",
            concat!(".long 2b - ., 3b - ., ", $landing, " - ."),
            ".popsection",
            $($operands)*
        )
    };
}

// System V: rdi, rsi, rdx are the arguments, eax the result. No routine writes to the stack, so the
// common exit may simply return. They change no other registers than those that `call` names.
global_asm!(
    ".globl vipl_guard_first",
    ".hidden vipl_guard_first",
    ".globl vipl_guard_last",
    ".hidden vipl_guard_last",
    ".globl vipl_guard_copy",
    ".hidden vipl_guard_copy",
    ".globl vipl_guard_copy_blocks",
    ".hidden vipl_guard_copy_blocks",
    ".p2align 6",
    "vipl_guard_first:",
    // copy(to, from, bytes)
    "vipl_guard_copy:",
    "cmp rdx, 16",
    "ja 3f",
    "cmp rdx, 8",
    "jae 2f",
    "cmp rdx, 4",
    "jae 1f",
    "test rdx, rdx",
    "je 9f",
    "mov r8, rdx",
    "shr r8, 1",
    "movzx eax, byte ptr [rsi]",
    "movzx ecx, byte ptr [rsi + rdx - 1]",
    "movzx esi, byte ptr [rsi + r8]",
    "mov byte ptr [rdi], al",
    "mov byte ptr [rdi + r8], sil",
    "mov byte ptr [rdi + rdx - 1], cl",
    "9: xor eax, eax",
    "ret",
    "1: mov eax, dword ptr [rsi]",
    "mov ecx, dword ptr [rsi + rdx - 4]",
    "mov dword ptr [rdi], eax",
    "mov dword ptr [rdi + rdx - 4], ecx",
    "xor eax, eax",
    "ret",
    "2: mov rax, qword ptr [rsi]",
    "mov rcx, qword ptr [rsi + rdx - 8]",
    "mov qword ptr [rdi], rax",
    "mov qword ptr [rdi + rdx - 8], rcx",
    "xor eax, eax",
    "ret",
    "3: cmp rdx, 32",
    "ja 4f",
    "movups xmm0, xmmword ptr [rsi]",
    "movups xmm1, xmmword ptr [rsi + rdx - 16]",
    "movups xmmword ptr [rdi], xmm0",
    "movups xmmword ptr [rdi + rdx - 16], xmm1",
    "xor eax, eax",
    "ret",
    "4: cmp rdx, 768",
    "jae 7f",
    // copy_blocks(to, from, bytes), more than 32: whole 32-byte blocks, then the last 32 bytes once more.
    "vipl_guard_copy_blocks:",
    "lea rcx, [rsi + rdx - 32]",
    "movups xmm2, xmmword ptr [rcx]",
    "movups xmm3, xmmword ptr [rcx + 16]",
    "lea r8, [rdi + rdx - 32]",
    "5: movups xmm0, xmmword ptr [rsi]",
    "movups xmm1, xmmword ptr [rsi + 16]",
    "movups xmmword ptr [rdi], xmm0",
    "movups xmmword ptr [rdi + 16], xmm1",
    "add rsi, 32",
    "add rdi, 32",
    "cmp rdi, r8",
    "jb 5b",
    "movups xmmword ptr [r8], xmm2",
    "movups xmmword ptr [r8 + 16], xmm3",
    "xor eax, eax",
    "ret",
    // If `to` is 1 to 31 bytes ahead of `from`, modulo pages, some processors copy one byte at a time.
    "7: lea ecx, [rdi - 1]",
    "sub ecx, esi",
    "and ecx, 4095",
    "cmp ecx, 31",
    "jb vipl_guard_copy_blocks",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    "vipl_guard_last:",
    "mov eax, 1",
    "ret",
);

unsafe extern "C" {
    fn vipl_guard_copy(to: *mut u8, from: *const u8, bytes: usize) -> u32;
    fn vipl_guard_copy_blocks(to: *mut u8, from: *const u8, bytes: usize) -> u32;
}

/// Calls a routine. The caller keeps its other registers, also where it does not come to the call: what lives across it
/// need not be stored before (a send of 8 bytes, which makes none, took ten instructions more).
macro_rules! call {
    ($routine:ident, $to:expr, $from:expr, $bytes:expr) => {{
        let result: u32;
        asm!(
            "call {routine}",
            routine = sym $routine,
            inout("rdi") $to => _,
            inout("rsi") $from => _,
            inout("rdx") $bytes => _,
            out("eax") result,
            out("rcx") _,
            out("r8") _,
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
        );
        result
    }};
}

/// # Safety
/// See [`crate::copy_blocks`].
#[inline(always)]
pub(crate) unsafe fn copy_blocks(to: *mut u8, from: *const u8, bytes: usize) -> u32 {
    // SAFETY: guaranteed by the caller; faults are caught, and the direction flag is clear.
    unsafe { call!(vipl_guard_copy_blocks, to, from, bytes) }
}

/// # Safety
/// See [`crate::copy`].
#[inline(always)]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> u32 {
    if !(8..=16).contains(&bytes) {
        // SAFETY: guaranteed by the caller.
        return unsafe { call!(vipl_guard_copy, to, from, bytes) };
    }
    // SAFETY: guaranteed by the caller; faults are caught.
    unsafe {
        guarded!(
            "mov {first}, qword ptr [{from}]",
            "mov {last}, qword ptr [{from} + {bytes} - 8]",
            "mov qword ptr [{to}], {first}",
            "mov qword ptr [{to} + {bytes} - 8], {last}";
            "{landing}";
            to = in(reg) to,
            from = in(reg) from,
            bytes = in(reg) bytes,
            first = out(reg) _,
            last = out(reg) _,
            landing = label { return 1 },
            options(nostack, preserves_flags),
        );
    }
    0
}

/// The number of segments of a descriptor that cannot be read; 16 bits cannot hold it.
const FAULT: u32 = u32::MAX;

/// The number of segments, the length, and the descriptor. Each field is loaded with its own width, so that the loads are forwarded
/// from the stores with which the application has just written them.
///
/// # Safety
/// See [`crate::load_descriptor`].
#[inline(always)]
unsafe fn load(descriptor: *const u8) -> (u32, u64, Image) {
    let seg_count: u32;
    let (control, immediate): (u32, u32);
    let length: u64;
    let (address, handle, segment_length): (u64, u32, u32);
    // SAFETY: the instructions only read, and faults are caught. The count is loaded last; after a fault it
    // has this value.
    unsafe {
        guarded!(
            "movzx {control:e}, word ptr [{at} + 14]",
            "mov {immediate:e}, dword ptr [{at} + 20]",
            "mov {length:e}, dword ptr [{at} + 24]",
            "mov {address}, qword ptr [{at} + 32]",
            "mov {handle:e}, dword ptr [{at} + 40]",
            "mov {segment_length:e}, dword ptr [{at} + 44]",
            "movzx {seg_count:e}, word ptr [{at} + 12]";
            "3b";
            at = in(reg) descriptor,
            seg_count = inout(reg) FAULT => seg_count,
            control = out(reg) control,
            immediate = out(reg) immediate,
            length = out(reg) length,
            address = out(reg) address,
            handle = out(reg) handle,
            segment_length = out(reg) segment_length,
            options(readonly, nostack, preserves_flags),
        );
    }
    let image = Image {
        seg_count: seg_count as u16,
        control: control as u16,
        immediate,
        length: length as u32,
        first: Segment {
            address,
            handle,
            length: segment_length,
        },
    };
    (seg_count, length, image)
}

/// # Safety
/// See [`crate::load_descriptor`].
#[inline(always)]
pub(crate) unsafe fn load_descriptor(descriptor: *const u8) -> Result<Image, Fault> {
    // SAFETY: guaranteed by the caller.
    let (seg_count, _, image) = unsafe { load(descriptor) };
    if seg_count == FAULT {
        return Err(Fault);
    }
    Ok(image)
}

/// # Safety
/// See [`crate::load_descriptor_with`].
#[inline(always)]
pub(crate) unsafe fn load_descriptor_with(descriptor: *const u8, segments: u16) -> Option<Image> {
    // SAFETY: guaranteed by the caller.
    let (seg_count, length, image) = unsafe { load(descriptor) };
    if seg_count != u32::from(segments) {
        return None;
    }
    // Callers need it with 64 bits; it has them without an instruction.
    // SAFETY: without a fault, 32 bits were loaded into the lower half of the register, which clears the upper one.
    unsafe { std::hint::assert_unchecked(length <= u64::from(u32::MAX)) };
    Some(image)
}

/// Status is stored last, which is release order here.
///
/// # Safety
/// See [`crate::complete`].
#[inline(always)]
pub(crate) unsafe fn complete(
    descriptor: *mut u8,
    immediate: u32,
    length: u32,
    status: u32,
) -> u32 {
    // SAFETY: guaranteed by the caller; faults are caught.
    unsafe {
        guarded!(
            "mov dword ptr [{at} + 20], {immediate:e}",
            "mov dword ptr [{at} + 24], {length:e}",
            "mov dword ptr [{at} + 28], {status:e}";
            "{landing}";
            at = in(reg) descriptor,
            immediate = in(reg) immediate,
            length = in(reg) length,
            status = in(reg) status,
            landing = label { return 1 },
            options(nostack, preserves_flags),
        );
    }
    0
}

/// # Safety
/// See [`crate::store_status`].
#[inline(always)]
pub(crate) unsafe fn store_status(descriptor: *mut u8, status: u32) -> u32 {
    // SAFETY: guaranteed by the caller; faults are caught.
    unsafe {
        guarded!(
            "mov dword ptr [{at} + 28], {status:e}";
            "{landing}";
            at = in(reg) descriptor,
            status = in(reg) status,
            landing = label { return 1 },
            options(nostack, preserves_flags),
        );
    }
    0
}
