//! The routines for i386. Everything between the first and the last label may fault.

use core::arch::{asm, global_asm};

use crate::{Fault, Image, Segment, checked};

// Not the C convention: edi is where to write, edx what to read, ecx how much, and eax is the result. So no
// routine needs the stack or a callee-saved register, and the common exit may simply return. esi and ebx are
// the compiler's.
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
    // copy
    "vipl_guard_copy:",
    "cmp ecx, 16",
    "ja 3f",
    "cmp ecx, 8",
    "jae 2f",
    "cmp ecx, 4",
    "jae 1f",
    "test ecx, ecx",
    "je 9f",
    "mov al, byte ptr [edx + ecx - 1]",
    "mov byte ptr [edi + ecx - 1], al",
    "shr ecx, 1",
    "mov al, byte ptr [edx + ecx]",
    "mov byte ptr [edi + ecx], al",
    "mov al, byte ptr [edx]",
    "mov byte ptr [edi], al",
    "9: xor eax, eax",
    "ret",
    "1: mov eax, dword ptr [edx + ecx - 4]",
    "mov edx, dword ptr [edx]",
    "mov dword ptr [edi + ecx - 4], eax",
    "mov dword ptr [edi], edx",
    "xor eax, eax",
    "ret",
    // Eight bytes at once: a peer may poll them as one number.
    "2: movq xmm0, qword ptr [edx]",
    "movq xmm1, qword ptr [edx + ecx - 8]",
    "movq qword ptr [edi], xmm0",
    "movq qword ptr [edi + ecx - 8], xmm1",
    "xor eax, eax",
    "ret",
    "3: cmp ecx, 32",
    "ja 4f",
    "movups xmm0, xmmword ptr [edx]",
    "movups xmm1, xmmword ptr [edx + ecx - 16]",
    "movups xmmword ptr [edi], xmm0",
    "movups xmmword ptr [edi + ecx - 16], xmm1",
    "xor eax, eax",
    "ret",
    // Whole 32-byte blocks, then the last 32 bytes once more.
    "4: movups xmm2, xmmword ptr [edx + ecx - 32]",
    "movups xmm3, xmmword ptr [edx + ecx - 16]",
    "lea eax, [edi + ecx - 32]",
    "5: movups xmm0, xmmword ptr [edx]",
    "movups xmm1, xmmword ptr [edx + 16]",
    "movups xmmword ptr [edi], xmm0",
    "movups xmmword ptr [edi + 16], xmm1",
    "add edx, 32",
    "add edi, 32",
    "cmp edi, eax",
    "jb 5b",
    "movups xmmword ptr [eax], xmm2",
    "movups xmmword ptr [eax + 16], xmm3",
    "xor eax, eax",
    "ret",
    // load_descriptor: descriptor in edx, room for the fields, which is ours, in edi. Each is loaded with its own
    // width, so that the loads are forwarded from the stores with which the application has just written them.
    "vipl_guard_load:",
    "movzx eax, word ptr [edx + 12]",
    "mov dword ptr [edi], eax",
    "movzx eax, word ptr [edx + 14]",
    "mov dword ptr [edi + 4], eax",
    "mov eax, dword ptr [edx + 20]",
    "mov dword ptr [edi + 8], eax",
    "mov eax, dword ptr [edx + 24]",
    "mov dword ptr [edi + 12], eax",
    "mov eax, dword ptr [edx + 32]",
    "mov dword ptr [edi + 16], eax",
    "mov eax, dword ptr [edx + 36]",
    "mov dword ptr [edi + 20], eax",
    "mov eax, dword ptr [edx + 40]",
    "mov dword ptr [edi + 24], eax",
    "mov eax, dword ptr [edx + 44]",
    "mov dword ptr [edi + 28], eax",
    "xor eax, eax",
    "ret",
    // complete: descriptor in edi, immediate data in eax, length in edx, status in ecx, which is written last: that is
    // release order here.
    "vipl_guard_complete:",
    "mov dword ptr [edi + 20], eax",
    "mov dword ptr [edi + 24], edx",
    "mov dword ptr [edi + 28], ecx",
    "xor eax, eax",
    "ret",
    // store_status: descriptor in edi, status in edx
    "vipl_guard_store_status:",
    "mov dword ptr [edi + 28], edx",
    "xor eax, eax",
    "ret",
    "vipl_guard_last:",
    "mov eax, 1",
    "ret",
);

unsafe extern "C" {
    fn vipl_guard_copy();
    fn vipl_guard_load();
    fn vipl_guard_complete();
    fn vipl_guard_store_status();
}

/// # Safety
/// See [`crate::copy`].
#[inline(always)]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> u32 {
    let fault: u32;
    // SAFETY: the routine writes the registers named here and memory guaranteed by the caller; faults are
    // caught.
    unsafe {
        asm!(
            "call {copy}",
            copy = sym vipl_guard_copy,
            inout("edi") to => _,
            inout("edx") from => _,
            inout("ecx") bytes => _,
            lateout("eax") fault,
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
        );
    }
    fault
}

/// This machine has one implementation only.
pub(crate) use copy as copy_blocks;

/// # Safety
/// See [`crate::load_descriptor`].
#[inline(always)]
pub(crate) unsafe fn load_descriptor(descriptor: *const u8) -> Result<Image, Fault> {
    let fault: u32;
    let mut fields = [0u32; 8];
    // SAFETY: the routine writes the registers named here and the fields; faults are caught.
    unsafe {
        asm!(
            "call {load}",
            load = sym vipl_guard_load,
            in("edi") fields.as_mut_ptr(),
            in("edx") descriptor,
            lateout("eax") fault,
        );
    }
    checked(fault)?;
    let [
        seg_count,
        control,
        immediate,
        length,
        low,
        high,
        handle,
        bytes,
    ] = fields;
    Ok(Image {
        seg_count: seg_count as u16,
        control: control as u16,
        immediate,
        length,
        first: Segment {
            address: u64::from(high) << 32 | u64::from(low),
            handle,
            length: bytes,
        },
    })
}

/// # Safety
/// See [`crate::complete`].
#[inline(always)]
pub(crate) unsafe fn complete(
    descriptor: *mut u8,
    immediate: u32,
    length: u32,
    status: u32,
) -> u32 {
    let fault: u32;
    // SAFETY: guaranteed by the caller; faults are caught.
    unsafe {
        asm!(
            "call {complete}",
            complete = sym vipl_guard_complete,
            in("edi") descriptor,
            in("edx") length,
            in("ecx") status,
            inlateout("eax") immediate => fault,
        );
    }
    fault
}

/// # Safety
/// See [`crate::store_status`].
#[inline(always)]
pub(crate) unsafe fn store_status(descriptor: *mut u8, status: u32) -> u32 {
    let fault: u32;
    // SAFETY: guaranteed by the caller; faults are caught.
    unsafe {
        asm!(
            "call {store}",
            store = sym vipl_guard_store_status,
            in("edi") descriptor,
            in("edx") status,
            lateout("eax") fault,
        );
    }
    fault
}
