//! Calls while memory is exhausted. Calls that allocate objects are refused; all others work, with the heap's
//! reserve (`vipl_sys::reserve`).

use vipl_abi::VIP_RETURN;
use vipl_heap::HEAP;

use crate::process;
use crate::trace::Call;

/// The calls that allocate memory that outlives them.
const MAKING: &[&str] = &[
    "VipOpenNic",
    "VipErrorCallback",
    "VipCreatePtag",
    "VipRegisterMem",
    "VipCreateCQ",
    "VipCreateVi",
    "VipConnectWait",
    "VipConnectAccept",
    "VipConnectRequest",
    "VipConnectPeerRequest",
    "VipNSInit",
    "VipNSGetHostByName",
];

/// Whether memory is exhausted. One load unless it has been before.
#[inline]
pub fn is_here() -> bool {
    HEAP.is_short()
}

/// The result of a call that is refused now.
#[cold]
pub fn refuse(call: &Call) -> Option<VIP_RETURN> {
    if !MAKING.contains(&call.name()) {
        return None;
    }
    process::get();
    log::error!(target: "core", "there is no memory left for {}", call.name());
    Some(VIP_RETURN::VIP_ERROR_RESOURCE)
}
