//! VIs: create, destroy, query, set, user data (spec §3.4 to §3.7, §3.35).

use vipl_abi::*;
use vipl_core::vi;

use crate::edge::{call, code, entry, full, put, put_vi_attributes, release, required};

/// Creates a VI in state Idle (spec §3.4).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `ViAttribs`: Attributes of the VI, all fields set.
/// - `SendCQHandle`: CQ of the same NIC handle that reports completions of the send queue, or NULL for none.
/// - `RecvCQHandle`: The same for the receive queue. Both may be the same CQ.
/// - `ViHandle`: Out: the VI.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipCreateVi(
    NicHandle: VIP_NIC_HANDLE,
    ViAttribs: *mut VIP_VI_ATTRIBUTES,
    SendCQHandle: VIP_CQ_HANDLE,
    RecvCQHandle: VIP_CQ_HANDLE,
    ViHandle: *mut VIP_VI_HANDLE,
) -> VIP_RETURN {
    entry(
        call!(VipCreateVi, NicHandle ViAttribs SendCQHandle RecvCQHandle; ViHandle),
        move || {
            let attributes = required(ViAttribs)?;
            let out = required(ViHandle)?;
            // SAFETY: checked; the structure is copied once.
            let attributes = unsafe { attributes.read_unaligned() };
            let handle = vi::create(NicHandle, &attributes, SendCQHandle, RecvCQHandle)?;
            // SAFETY: `out` was checked.
            unsafe { put(out, handle) };
            Ok(())
        },
    )
}

/// Destroys an Idle VI (spec §3.5).
///
/// - `ViHandle`: VI of VipCreateVi.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipDestroyVi(ViHandle: VIP_VI_HANDLE) -> VIP_RETURN {
    release(call!(VipDestroyVi, ViHandle;), move || {
        vi::destroy(ViHandle)
    })
}

/// Returns state, attributes and emptiness of both queues, all from one instant (spec §3.6).
///
/// - `ViHandle`: VI of VipCreateVi.
/// - `State`: Out: the state.
/// - `ViAttribs`: Out: the attributes, as they were set.
/// - `ViSendQEmpty`: Out: VIP_TRUE if the send queue has no descriptor, neither posted nor completed.
/// - `ViRecvQEmpty`: Out: the same of the receive queue.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipQueryVi(
    ViHandle: VIP_VI_HANDLE,
    State: *mut VIP_VI_STATE,
    ViAttribs: *mut VIP_VI_ATTRIBUTES,
    ViSendQEmpty: *mut VIP_BOOLEAN,
    ViRecvQEmpty: *mut VIP_BOOLEAN,
) -> VIP_RETURN {
    entry(
        call!(VipQueryVi, ViHandle; State ViAttribs ViSendQEmpty ViRecvQEmpty),
        move || {
            let query = vi::query(ViHandle)?;
            let (state, attributes) = (required(State)?, required(ViAttribs)?);
            let (send, recv) = (required(ViSendQEmpty)?, required(ViRecvQEmpty)?);
            // SAFETY: all four were checked.
            unsafe {
                put(state, query.state);
                put_vi_attributes(attributes, query.attributes);
                put(send, VIP_BOOLEAN::from(query.send_empty));
                put(recv, VIP_BOOLEAN::from(query.recv_empty));
            }
            Ok(())
        },
    )
}

/// Changes the attributes of an Idle VI, all or none (spec §3.7).
///
/// - `ViHandle`: VI of VipCreateVi.
/// - `ViAttribs`: New attributes, all fields set.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipSetViAttributes(
    ViHandle: VIP_VI_HANDLE,
    ViAttribs: *mut VIP_VI_ATTRIBUTES,
) -> VIP_RETURN {
    entry(call!(VipSetViAttributes, ViHandle ViAttribs;), move || {
        let attributes = required(ViAttribs)?;
        // SAFETY: checked; the structure is copied once.
        vi::set_attributes(ViHandle, &unsafe { attributes.read_unaligned() })
    })
}

/// Stores one pointer per VI (cLAN, spec §3.35).
///
/// - `ViHandle`: VI of VipCreateVi.
/// - `Data`: Any pointer. A new VI has NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipSetUserData(ViHandle: VIP_VI_HANDLE, Data: VIP_PVOID) {
    let _ = full(
        call!(VipSetUserData, ViHandle Data;),
        code(move || vi::set_user_data(ViHandle, Data)),
    );
}

/// Fetches the pointer stored by VipSetUserData; NULL for a bad handle (cLAN, spec §3.35).
///
/// - `ViHandle`: VI of VipCreateVi.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipGetUserData(ViHandle: VIP_VI_HANDLE) -> VIP_PVOID {
    let mut data: VIP_PVOID = std::ptr::null_mut();
    let Data = &raw mut data;
    let _ = full(
        call!(VipGetUserData, ViHandle; Data),
        code(move || {
            // SAFETY: the variable above.
            unsafe { put(Data, vi::user_data(ViHandle)?) };
            Ok(())
        }),
    );
    data
}
