//! Completion queues (spec §3.24 to §3.29).

use vipl_abi::*;
use vipl_core::cq;

use crate::edge::{entry, put, required};

/// Creates an empty completion queue (spec §3.24).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreateCQ(
    NicHandle: VIP_NIC_HANDLE,
    EntryCount: VIP_ULONG,
    CQHandle: *mut VIP_CQ_HANDLE,
) -> VIP_RETURN {
    entry(|| {
        let out = required(CQHandle)?;
        let handle = cq::create(NicHandle, EntryCount)?;
        // SAFETY: `out` was checked.
        unsafe { put(out, handle) };
        Ok(())
    })
}

/// Destroys a completion queue that no VI is attached to (spec §3.25).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipDestroyCQ(CQHandle: VIP_CQ_HANDLE) -> VIP_RETURN {
    entry(|| cq::destroy(CQHandle))
}

/// Changes the room for entries (spec §3.26).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipResizeCQ(CQHandle: VIP_CQ_HANDLE, EntryCount: VIP_ULONG) -> VIP_RETURN {
    entry(|| cq::resize(CQHandle, EntryCount))
}

/// Takes the oldest entry off, if there is one (spec §3.27).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQDone(
    CQHandle: VIP_CQ_HANDLE,
    ViHandle: *mut VIP_VI_HANDLE,
    RecvQueue: *mut VIP_BOOLEAN,
) -> VIP_RETURN {
    entry(|| {
        let (vi, recv) = (required(ViHandle)?, required(RecvQueue)?);
        let entry = cq::done(CQHandle)?;
        // SAFETY: both were checked.
        unsafe {
            put(vi, entry.vi);
            put(recv, VIP_BOOLEAN::from(entry.recv));
        }
        Ok(())
    })
}

/// Waits for an entry and takes it off (spec §3.28).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQWait(
    CQHandle: VIP_CQ_HANDLE,
    Timeout: VIP_ULONG,
    ViHandle: *mut VIP_VI_HANDLE,
    RecvQueue: *mut VIP_BOOLEAN,
) -> VIP_RETURN {
    entry(|| {
        let (vi, recv) = (required(ViHandle)?, required(RecvQueue)?);
        let entry = cq::wait(CQHandle, Timeout)?;
        // SAFETY: both were checked.
        unsafe {
            put(vi, entry.vi);
            put(recv, VIP_BOOLEAN::from(entry.recv));
        }
        Ok(())
    })
}

/// Asks for one call of `Handler`, for the next entry (spec §3.29).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQNotify(
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
    entry(|| cq::notify(CQHandle, Context, Handler))
}
