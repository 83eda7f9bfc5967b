//! Completion queues (spec §3.24 to §3.29).

use vipl_abi::*;
use vipl_core::Error;
use vipl_core::cq;
use vipl_core::waiting::Begun;

use crate::edge::{call, code, entry, fast, put, release, required, waiting};

/// Creates an empty completion queue (spec §3.24).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `EntryCount`: Entries that it has room for, from 1 to `MaxCQEntries`: the descriptors of all its queues.
/// - `CQHandle`: Out: the CQ.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipCreateCQ(
    NicHandle: VIP_NIC_HANDLE,
    EntryCount: VIP_ULONG,
    CQHandle: *mut VIP_CQ_HANDLE,
) -> VIP_RETURN {
    entry(
        call!(VipCreateCQ, NicHandle EntryCount; CQHandle),
        move || {
            let out = required(CQHandle)?;
            let handle = cq::create(NicHandle, EntryCount)?;
            // SAFETY: `out` was checked.
            unsafe { put(out, handle) };
            Ok(())
        },
    )
}

/// Destroys a completion queue without attached VIs (spec §3.25).
///
/// - `CQHandle`: CQ of VipCreateCQ.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipDestroyCQ(CQHandle: VIP_CQ_HANDLE) -> VIP_RETURN {
    release(call!(VipDestroyCQ, CQHandle;), move || {
        cq::destroy(CQHandle)
    })
}

/// Changes the number of entries (spec §3.26).
///
/// - `CQHandle`: CQ of VipCreateCQ.
/// - `EntryCount`: New number of entries, from 1 to `MaxCQEntries` and not below those it holds.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipResizeCQ(
    CQHandle: VIP_CQ_HANDLE,
    EntryCount: VIP_ULONG,
) -> VIP_RETURN {
    entry(call!(VipResizeCQ, CQHandle EntryCount;), move || {
        cq::resize(CQHandle, EntryCount)
    })
}

/// Returns a removed entry to the caller, for Done and Wait.
fn take(
    vi: *mut VIP_VI_HANDLE,
    recv: *mut VIP_BOOLEAN,
    body: impl FnOnce() -> Result<cq::Entry, Error>,
) -> Result<(), Error> {
    let (vi, recv) = (required(vi)?, required(recv)?);
    // SAFETY: both were checked.
    unsafe { hand_out(vi, recv, body()?) };
    Ok(())
}

/// The fast path of Done, whose arguments are valid.
#[inline(always)]
fn take_fast(
    cq: VIP_CQ_HANDLE,
    vi: *mut VIP_VI_HANDLE,
    recv: *mut VIP_BOOLEAN,
) -> Option<VIP_RETURN> {
    if vi.is_null() || recv.is_null() {
        return None;
    }
    Some(match cq::done_fast(cq)? {
        Ok(entry) => {
            // SAFETY: not NULL; the caller's outputs.
            unsafe { hand_out(vi, recv, entry) };
            VIP_RETURN::VIP_SUCCESS
        }
        // It has been destroyed meanwhile.
        Err(Error::InvalidParameter) => return None,
        Err(error) => error.to_return(),
    })
}

/// # Safety
/// Neither is NULL; otherwise as for `put`.
#[inline(always)]
unsafe fn hand_out(vi: *mut VIP_VI_HANDLE, recv: *mut VIP_BOOLEAN, entry: cq::Entry) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        put(vi, entry.vi);
        put(recv, VIP_BOOLEAN::from(entry.recv));
    }
}

/// Removes the oldest entry, if any (spec §3.27).
///
/// - `CQHandle`: CQ of VipCreateCQ.
/// - `ViHandle`: Out: VI that has a completion.
/// - `RecvQueue`: Out: VIP_TRUE if it is on the receive queue, VIP_FALSE if on the send queue.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipCQDone(
    CQHandle: VIP_CQ_HANDLE,
    ViHandle: *mut VIP_VI_HANDLE,
    RecvQueue: *mut VIP_BOOLEAN,
) -> VIP_RETURN {
    fast!(
        call!(VipCQDone, CQHandle; ViHandle RecvQueue),
        (CQHandle: VIP_CQ_HANDLE, ViHandle: *mut VIP_VI_HANDLE, RecvQueue: *mut VIP_BOOLEAN),
        move || take_fast(CQHandle, ViHandle, RecvQueue),
        code(move || take(ViHandle, RecvQueue, || cq::done(CQHandle))),
    )
}

/// Waits for an entry and removes it (spec §3.28).
///
/// - `CQHandle`: CQ of VipCreateCQ.
/// - `Timeout`: Milliseconds to wait. 0: look once; VIP_INFINITE: no limit.
/// - `ViHandle`: Out: VI that has a completion.
/// - `RecvQueue`: Out: VIP_TRUE if it is on the receive queue, VIP_FALSE if on the send queue.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipCQWait(
    CQHandle: VIP_CQ_HANDLE,
    Timeout: VIP_ULONG,
    ViHandle: *mut VIP_VI_HANDLE,
    RecvQueue: *mut VIP_BOOLEAN,
) -> VIP_RETURN {
    waiting(
        call!(VipCQWait, CQHandle Timeout; ViHandle RecvQueue),
        move || match required(ViHandle).and(required(RecvQueue)) {
            Ok(_) => cq::wait(CQHandle, Timeout),
            Err(error) => Begun::Over(Err(error)),
        },
        move |found| code(move || take(ViHandle, RecvQueue, || found))(),
    )
}

/// Requests one call of `Handler` for the next entry (spec §3.29).
///
/// - `CQHandle`: CQ of VipCreateCQ.
/// - `Context`: Anything; passed to `Handler` as it is.
/// - `Handler`: Function that a thread of the library calls once, with the VI and the queue that have a
///   completion. Not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipCQNotify(
    CQHandle: VIP_CQ_HANDLE,
    Context: VIP_PVOID,
    Handler: Option<
        unsafe extern "C" fn(
            Context: VIP_PVOID,
            NicHandle: VIP_NIC_HANDLE,
            ViHandle: VIP_VI_HANDLE,
            RecvQueue: VIP_BOOLEAN,
        ),
    >,
) -> VIP_RETURN {
    entry(call!(VipCQNotify, CQHandle Context Handler;), move || {
        cq::notify(CQHandle, Context, Handler)
    })
}
