//! Asynchronous errors (spec §3.31).

use vipl_abi::*;
use vipl_core::handlers;

use crate::edge::{call, entry};

/// Sets the handler for asynchronous errors of a NIC handle; NULL restores the default one, which logs.
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `Context`: Anything; passed to `Handler` as it is.
/// - `Handler`: Function that a thread of the library calls for each error, or NULL for the one that logs.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipErrorCallback(
    NicHandle: VIP_NIC_HANDLE,
    Context: VIP_PVOID,
    Handler: Option<unsafe extern "C" fn(Context: VIP_PVOID, ErrorDesc: *mut VIP_ERROR_DESCRIPTOR)>,
) -> VIP_RETURN {
    entry(
        call!(VipErrorCallback, NicHandle Context Handler;),
        move || handlers::set_error_handler(NicHandle, Context, Handler),
    )
}
