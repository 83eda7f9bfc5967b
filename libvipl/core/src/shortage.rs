//! Calls that begin while there is no memory. Those that make something are refused; all others work, with what the heap
//! keeps in reserve (`vipl_sys::reserve`).

use vipl_abi::VIP_RETURN;
use vipl_heap::HEAP;

use crate::process;
use crate::trace::Call;

/// The calls that take memory for longer than they last.
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

/// Whether there is no memory. One load while there has always been some.
#[inline]
pub fn is_here() -> bool {
    HEAP.is_short()
}

/// What a call gives that cannot begin now.
#[cold]
pub fn refuse(call: &Call) -> Option<VIP_RETURN> {
    if !MAKING.contains(&call.name) {
        return None;
    }
    process::get();
    log::error!(target: "core", "there is no memory left for {}", call.name);
    Some(VIP_RETURN::VIP_ERROR_RESOURCE)
}
