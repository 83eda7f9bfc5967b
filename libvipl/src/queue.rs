//! Work queues: post, done, wait, notify (spec §3.20 to §3.23). Post and done are the data path.

use vipl_abi::*;
use vipl_core::trace::Call;
use vipl_core::vi::{self, Dequeued, Which};
use vipl_core::waiting::Begun;

use crate::edge::{call, code, contained, fast, full, put, waiting};

/// Returns a removed descriptor to the caller, for Done and Wait (spec §3.21); NULL with every result that
/// removes none.
fn take(out: *mut *mut VIP_DESCRIPTOR, body: impl FnOnce() -> Dequeued) -> VIP_RETURN {
    if out.is_null() {
        return VIP_RETURN::VIP_INVALID_PARAMETER;
    }
    let taken = body();
    if taken.result != VIP_RETURN::VIP_INVALID_PARAMETER {
        // SAFETY: not NULL; the caller's output.
        unsafe { put(out, taken.descriptor) };
    }
    taken.result
}

/// VipSendWait and VipRecvWait.
fn wait(
    describe: impl Fn() -> Call,
    vi: VIP_VI_HANDLE,
    which: Which,
    timeout: VIP_ULONG,
    out: *mut *mut VIP_DESCRIPTOR,
) -> VIP_RETURN {
    waiting(
        describe,
        move || {
            if out.is_null() {
                return Begun::Over(Dequeued {
                    result: VIP_RETURN::VIP_INVALID_PARAMETER,
                    descriptor: std::ptr::null_mut(),
                });
            }
            vi::wait(vi, which, timeout)
        },
        move |taken| take(out, move || taken),
    )
}

/// The fast path of VipRecvDone, whose arguments are valid. Most polls find nothing complete and make progress.
#[inline(always)]
fn receive_fast(vi: VIP_VI_HANDLE, out: *mut *mut VIP_DESCRIPTOR) -> Option<VIP_RETURN> {
    if out.is_null() {
        return None;
    }
    let taken = vi::own(vi)?.poll(Which::Recv)?;
    // SAFETY: not NULL; the caller's output.
    unsafe { put(out, taken.descriptor) };
    Some(taken.result)
}

/// The fast path of VipSendDone, whose arguments are valid. Most sends are complete when they are asked for: no
/// other function is called then, and no register saved.
#[inline(always)]
fn sent_fast(vi: VIP_VI_HANDLE, out: *mut *mut VIP_DESCRIPTOR) -> Option<VIP_RETURN> {
    if out.is_null() {
        return None;
    }
    let mut vi = vi::own(vi)?;
    let Some(descriptor) = vi.take(Which::Send) else {
        return Some(poll_sent(vi, out));
    };
    // SAFETY: not NULL; the caller's output.
    unsafe { put(out, descriptor) };
    Some(VIP_RETURN::VIP_SUCCESS)
}

/// The rest of it, if no send is complete without an error. A panic ends here.
#[inline(never)]
#[expect(improper_ctypes_definitions, reason = "called from this file only")]
extern "C" fn poll_sent(vi: vi::Owned, out: *mut *mut VIP_DESCRIPTOR) -> VIP_RETURN {
    contained(|| take(out, || vi.poll_any(Which::Send)))
}

/// The fast path of a post.
#[inline(always)]
fn post_fast(
    vi: VIP_VI_HANDLE,
    which: Which,
    descriptor: *mut VIP_DESCRIPTOR,
    memory: VIP_MEM_HANDLE,
) -> Option<VIP_RETURN> {
    vi::post_fast(vi, which, descriptor, memory).then_some(VIP_RETURN::VIP_SUCCESS)
}

/// Posts to the send queue (spec §3.20).
///
/// - `ViHandle`: VI of VipCreateVi.
/// - `DescriptorPtr`: Descriptor, at a multiple of 64 bytes. It and its buffers belong to the library until
///   it is complete.
/// - `MemoryHandle`: Region that the descriptor itself is in.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipPostSend(
    ViHandle: VIP_VI_HANDLE,
    DescriptorPtr: *mut VIP_DESCRIPTOR,
    MemoryHandle: VIP_MEM_HANDLE,
) -> VIP_RETURN {
    fast!(
        call!(VipPostSend, ViHandle DescriptorPtr MemoryHandle;),
        (ViHandle: VIP_VI_HANDLE, DescriptorPtr: *mut VIP_DESCRIPTOR, MemoryHandle: VIP_MEM_HANDLE),
        move || post_fast(ViHandle, Which::Send, DescriptorPtr, MemoryHandle),
        code(move || vi::post(ViHandle, Which::Send, DescriptorPtr, MemoryHandle)),
    )
}

/// Posts to the receive queue (spec §3.20).
///
/// - `ViHandle`: VI of VipCreateVi.
/// - `DescriptorPtr`: Descriptor, at a multiple of 64 bytes. It and its buffers belong to the library until
///   it is complete.
/// - `MemoryHandle`: Region that the descriptor itself is in.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipPostRecv(
    ViHandle: VIP_VI_HANDLE,
    DescriptorPtr: *mut VIP_DESCRIPTOR,
    MemoryHandle: VIP_MEM_HANDLE,
) -> VIP_RETURN {
    fast!(
        call!(VipPostRecv, ViHandle DescriptorPtr MemoryHandle;),
        (ViHandle: VIP_VI_HANDLE, DescriptorPtr: *mut VIP_DESCRIPTOR, MemoryHandle: VIP_MEM_HANDLE),
        move || post_fast(ViHandle, Which::Recv, DescriptorPtr, MemoryHandle),
        code(move || vi::post(ViHandle, Which::Recv, DescriptorPtr, MemoryHandle)),
    )
}

/// Removes a completed descriptor from the send queue (spec §3.21).
///
/// - `ViHandle`: VI of VipCreateVi.
/// - `DescriptorPtr`: Out: the descriptor that was taken off, as it was posted; NULL if none was.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipSendDone(
    ViHandle: VIP_VI_HANDLE,
    DescriptorPtr: *mut *mut VIP_DESCRIPTOR,
) -> VIP_RETURN {
    fast!(
        call!(VipSendDone, ViHandle; DescriptorPtr),
        (ViHandle: VIP_VI_HANDLE, DescriptorPtr: *mut *mut VIP_DESCRIPTOR),
        move || sent_fast(ViHandle, DescriptorPtr),
        move || take(DescriptorPtr, || vi::done(ViHandle, Which::Send)),
    )
}

/// Removes a completed descriptor from the receive queue (spec §3.21).
///
/// - `ViHandle`: VI of VipCreateVi.
/// - `DescriptorPtr`: Out: the descriptor that was taken off, as it was posted; NULL if none was.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipRecvDone(
    ViHandle: VIP_VI_HANDLE,
    DescriptorPtr: *mut *mut VIP_DESCRIPTOR,
) -> VIP_RETURN {
    fast!(
        call!(VipRecvDone, ViHandle; DescriptorPtr),
        (ViHandle: VIP_VI_HANDLE, DescriptorPtr: *mut *mut VIP_DESCRIPTOR),
        move || receive_fast(ViHandle, DescriptorPtr),
        move || take(DescriptorPtr, || vi::done(ViHandle, Which::Recv)),
    )
}

/// Waits for a completed descriptor of the send queue (spec §3.22).
///
/// - `ViHandle`: VI whose queue has no CQ.
/// - `Timeout`: Milliseconds to wait. 0: look once; VIP_INFINITE: no limit.
/// - `DescriptorPtr`: Out: the descriptor that was taken off, as it was posted; NULL if none was.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipSendWait(
    ViHandle: VIP_VI_HANDLE,
    Timeout: VIP_ULONG,
    DescriptorPtr: *mut *mut VIP_DESCRIPTOR,
) -> VIP_RETURN {
    wait(
        call!(VipSendWait, ViHandle Timeout; DescriptorPtr),
        ViHandle,
        Which::Send,
        Timeout,
        DescriptorPtr,
    )
}

/// Waits for a completed descriptor of the receive queue (spec §3.22).
///
/// - `ViHandle`: VI whose queue has no CQ.
/// - `Timeout`: Milliseconds to wait. 0: look once; VIP_INFINITE: no limit.
/// - `DescriptorPtr`: Out: the descriptor that was taken off, as it was posted; NULL if none was.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipRecvWait(
    ViHandle: VIP_VI_HANDLE,
    Timeout: VIP_ULONG,
    DescriptorPtr: *mut *mut VIP_DESCRIPTOR,
) -> VIP_RETURN {
    wait(
        call!(VipRecvWait, ViHandle Timeout; DescriptorPtr),
        ViHandle,
        Which::Recv,
        Timeout,
        DescriptorPtr,
    )
}

/// Requests one call of `Handler` for the next completion of the send queue (spec §3.23).
///
/// - `ViHandle`: VI whose queue has no CQ.
/// - `Context`: Anything; passed to `Handler` as it is.
/// - `Handler`: Function that a thread of the library calls once, with the descriptor that was taken off the
///   queue. Not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipSendNotify(
    ViHandle: VIP_VI_HANDLE,
    Context: VIP_PVOID,
    Handler: Option<
        unsafe extern "C" fn(
            Context: VIP_PVOID,
            NicHandle: VIP_NIC_HANDLE,
            ViHandle: VIP_VI_HANDLE,
            DescriptorPtr: *mut VIP_DESCRIPTOR,
        ),
    >,
) -> VIP_RETURN {
    full(
        call!(VipSendNotify, ViHandle Context Handler;),
        code(move || vi::notify(ViHandle, Which::Send, Context, Handler)),
    )
}

/// Requests one call of `Handler` for the next completion of the receive queue (spec §3.23).
///
/// - `ViHandle`: VI whose queue has no CQ.
/// - `Context`: Anything; passed to `Handler` as it is.
/// - `Handler`: Function that a thread of the library calls once, with the descriptor that was taken off the
///   queue. Not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipRecvNotify(
    ViHandle: VIP_VI_HANDLE,
    Context: VIP_PVOID,
    Handler: Option<
        unsafe extern "C" fn(
            Context: VIP_PVOID,
            NicHandle: VIP_NIC_HANDLE,
            ViHandle: VIP_VI_HANDLE,
            DescriptorPtr: *mut VIP_DESCRIPTOR,
        ),
    >,
) -> VIP_RETURN {
    full(
        call!(VipRecvNotify, ViHandle Context Handler;),
        code(move || vi::notify(ViHandle, Which::Recv, Context, Handler)),
    )
}
