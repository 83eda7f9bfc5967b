//! The routines for x86-64. Everything between the first and the last label may fault.

use core::arch::global_asm;

use crate::{Fault, Image, Segment, checked};

// System V: rdi, rsi, rdx are the arguments, eax the result. No routine writes to the stack, so the
// common exit may simply return.
global_asm!(
    ".globl vipl_guard_first",
    ".hidden vipl_guard_first",
    ".globl vipl_guard_copy",
    ".hidden vipl_guard_copy",
    ".globl vipl_guard_copy_blocks",
    ".hidden vipl_guard_copy_blocks",
    ".globl vipl_guard_load",
    ".hidden vipl_guard_load",
    ".globl vipl_guard_complete",
    ".hidden vipl_guard_complete",
    ".globl vipl_guard_store32",
    ".hidden vipl_guard_store32",
    ".globl vipl_guard_last",
    ".hidden vipl_guard_last",
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
    "movzx r9d, byte ptr [rsi + r8]",
    "movzx ecx, byte ptr [rsi + rdx - 1]",
    "mov byte ptr [rdi], al",
    "mov byte ptr [rdi + r8], r9b",
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
    // Where `to` is 1 to 31 bytes ahead of `from`, pages apart or not, some processors copy a byte at a time.
    "7: lea ecx, [rdi - 1]",
    "sub ecx, esi",
    "and ecx, 4095",
    "cmp ecx, 31",
    "jb vipl_guard_copy_blocks",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    // load_descriptor: descriptor in rdi; fields in registers. Each is loaded with its own width, so
    // that the loads are forwarded from the stores with which the application has just written them.
    "vipl_guard_load:",
    "movzx ecx, word ptr [rdi + 12]",
    "movzx edx, word ptr [rdi + 14]",
    "mov esi, dword ptr [rdi + 20]",
    "mov r8d, dword ptr [rdi + 24]",
    "mov r9, qword ptr [rdi + 32]",
    "mov r10d, dword ptr [rdi + 40]",
    "mov r11d, dword ptr [rdi + 44]",
    "xor eax, eax",
    "ret",
    // complete(descriptor, immediate, length, status): status last, which is release order here.
    "vipl_guard_complete:",
    "mov dword ptr [rdi + 20], esi",
    "mov dword ptr [rdi + 24], edx",
    "mov dword ptr [rdi + 28], ecx",
    "xor eax, eax",
    "ret",
    // store32(address, value)
    "vipl_guard_store32:",
    "mov dword ptr [rdi], esi",
    "xor eax, eax",
    "ret",
    "vipl_guard_last:",
    "mov eax, 1",
    "ret",
);

unsafe extern "C" {
    static vipl_guard_first: u8;
    static vipl_guard_last: u8;
    #[link_name = "vipl_guard_copy"]
    pub(crate) fn copy(to: *mut u8, from: *const u8, bytes: usize) -> u32;
    #[link_name = "vipl_guard_copy_blocks"]
    pub(crate) fn copy_blocks(to: *mut u8, from: *const u8, bytes: usize) -> u32;
    fn vipl_guard_load();
    #[link_name = "vipl_guard_complete"]
    pub(crate) fn complete(descriptor: *mut u8, immediate: u32, length: u32, status: u32) -> u32;
    #[link_name = "vipl_guard_store32"]
    pub(crate) fn store32(address: *mut u8, value: u32) -> u32;
}

/// Where the first label and the last one are.
pub(crate) fn bounds() -> (usize, usize) {
    let first = &raw const vipl_guard_first as usize;
    (first, &raw const vipl_guard_last as usize)
}

/// # Safety
/// See [`crate::load_descriptor`].
#[inline(always)]
pub(crate) unsafe fn load_descriptor(descriptor: *const u8) -> Result<Image, Fault> {
    let fault: u32;
    let (seg_count, control, immediate, length): (u32, u32, u32, u32);
    let (address, handle, segment_length): (u64, u32, u32);
    // SAFETY: the routine only reads, writes the registers named here, and catches faults.
    unsafe {
        core::arch::asm!(
            "call {load}",
            load = sym vipl_guard_load,
            in("rdi") descriptor,
            lateout("eax") fault,
            lateout("ecx") seg_count,
            lateout("edx") control,
            lateout("esi") immediate,
            lateout("r8d") length,
            lateout("r9") address,
            lateout("r10d") handle,
            lateout("r11d") segment_length,
            options(readonly),
        );
    }
    checked(fault)?;
    Ok(Image {
        seg_count: seg_count as u16,
        control: control as u16,
        immediate,
        length,
        first: Segment {
            address,
            handle,
            length: segment_length,
        },
    })
}
