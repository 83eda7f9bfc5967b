//! Why a call failed, if no inner function has logged it: usually an invalid argument.

use std::ffi::c_void;

use vipl_abi::{VIP_NIC_HANDLE, VIP_RETURN};

use super::{Call, TARGET};
use crate::connect;
use crate::cq;
use crate::logger::{self, log_failure};
use crate::nic;
use crate::object::handle::{self, Kind};
use crate::vi::{self, state};

/// Arguments that may be NULL.
const MAY_BE_NULL: [&str; 8] = [
    "SendCQHandle",
    "RecvCQHandle",
    "MemAttribs",
    "NSInitInfo",
    "Context",
    "Data",
    "Ptag",
    "Buffer",
];

/// Logs what is known about a failed call.
pub(super) fn explain(call: &Call, result: VIP_RETURN) {
    if matches!(
        result,
        VIP_RETURN::VIP_INVALID_PARAMETER | VIP_RETURN::VIP_INVALID_PTAG
    ) && let Some(fault) = bad_argument(call)
    {
        if !logger::may_log_mistake() {
            return;
        }
        // This is how a thread that waits on an object learns that it was destroyed.
        let level = if call.waits() {
            log::Level::Info
        } else {
            log::Level::Warn
        };
        log::log!(target: TARGET, level, "{} = {result:?}: {fault}", call.text());
        return;
    }
    if matches!(
        result,
        VIP_RETURN::VIP_NO_MATCH | VIP_RETURN::VIP_NOT_REACHABLE
    ) {
        // The agent's reason has been logged, at most once a second (`agent/refusal.rs`).
        return;
    }
    if is_data(call.name) {
        // Other errors of these calls are asynchronous, except the one below.
        if call.name.ends_with("Wait") || call.name.ends_with("Notify") {
            log_failure!(
                "call",
                first_object(call),
                "{} = {result:?}: the queue is attached to a completion queue (use VipCQWait, VipCQNotify)",
                call.text()
            );
        }
        return;
    }
    // The result reports the required size.
    if call.name == "vipl_describe" && result == VIP_RETURN::VIP_ERROR_RESOURCE {
        return;
    }
    if !logger::has_logged(log::Level::Info) {
        let kind = (call.name, result as i32);
        let is_explained =
            result == VIP_RETURN::VIP_ERROR_RESOURCE && logger::has_warned_recently();
        let level = if is_explained {
            log::Level::Info
        } else {
            logger::first(kind, first_object(call), log::Level::Info)
        };
        log::log!(target: TARGET, level, "{} = {result:?}{}", call.text(), advice(call, result));
    }
}

/// The object of a call.
fn first_object(call: &Call) -> Option<usize> {
    call.inputs()
        .first()
        .and_then(|(_, object)| object.address())
}

/// Data path calls, which do not reset the record of logged lines.
fn is_data(name: &str) -> bool {
    ["VipSend", "VipRecv", "VipPost"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Kind of object that an argument of this name refers to.
fn expected(name: &str) -> Option<Kind> {
    Some(match name {
        "NicHandle" => Kind::Nic,
        "ViHandle" => Kind::Vi,
        "CQHandle" | "SendCQHandle" | "RecvCQHandle" => Kind::Cq,
        "Ptag" => Kind::Ptag,
        "ConnHandle" => Kind::Connection,
        _ => return None,
    })
}

/// The NIC handle that a live object belongs to.
fn owner(kind: Kind, handle: *mut c_void) -> Option<VIP_NIC_HANDLE> {
    match kind {
        Kind::Nic => nic::resolve(handle).ok().map(|nic| nic.handle),
        Kind::Vi => vi::lock(handle).ok().map(|vi| vi.nic.handle),
        Kind::Cq => cq::owner(handle),
        Kind::Connection => connect::owner(handle),
        Kind::Ptag => None,
    }
}

/// Checks a handle: the NIC handle that it belongs to, or the error.
fn judge(kind: Kind, handle: *mut c_void) -> Result<VIP_NIC_HANDLE, String> {
    if handle.is_null() {
        return Err("is NULL".to_owned());
    }
    match handle::kind(handle) {
        None => Err(format!("is not a handle of this library; expected: {kind}")),
        Some(found) if found != kind => Err(format!("is the handle of {found}; expected: {kind}")),
        Some(_) => owner(kind, handle).ok_or_else(|| {
            format!(
                "was the handle of {kind}, which has been destroyed or belongs to another process (also after a fork)"
            )
        }),
    }
}

/// The first argument that is invalid.
fn bad_argument(call: &Call) -> Option<String> {
    let mut first: Option<(&str, VIP_NIC_HANDLE)> = None;
    for (name, argument) in call.inputs() {
        let Some(address) = argument.address() else {
            continue;
        };
        let optional = MAY_BE_NULL.contains(name) && call.name != "VipSetMemAttributes";
        if address == 0 && optional {
            continue;
        }
        let Some(kind) = expected(name) else {
            if address == 0 {
                return Some(format!("{name} is NULL"));
            }
            continue;
        };
        let handle = std::ptr::without_provenance_mut(address);
        if kind == Kind::Ptag {
            return bad_tag(address, first.map(|(_, nic)| nic));
        }
        match (judge(kind, handle), first) {
            (Err(fault), _) => return Some(format!("{name} {fault}")),
            (Ok(owner), Some((before, nic))) if owner != nic => {
                return Some(format!(
                    "{name} belongs to the NIC handle {owner:?}, {before} to {nic:?}"
                ));
            }
            (Ok(owner), None) => first = Some((name, owner)),
            _ => {}
        }
    }
    let absent = call
        .outputs()
        .iter()
        .find(|(name, argument)| argument.address() == Some(0) && !MAY_BE_NULL.contains(name));
    absent.map(|(name, _)| format!("{name} is NULL"))
}

/// Checks a protection tag.
fn bad_tag(address: usize, nic: Option<VIP_NIC_HANDLE>) -> Option<String> {
    let handle = std::ptr::without_provenance_mut(address);
    Some(match handle::kind(handle) {
        Some(Kind::Ptag) => match nic.and_then(|nic| nic::resolve(nic).ok()) {
            Some(nic) if nic.memory.lock().ptags.number(handle).is_ok() => return None,
            _ => "Ptag has been destroyed or belongs to another NIC handle".to_owned(),
        },
        Some(found) => format!("Ptag is the handle of {found}; expected: {}", Kind::Ptag),
        None => "Ptag is not a handle of this library".to_owned(),
    })
}

/// Advice.
fn advice(call: &Call, result: VIP_RETURN) -> String {
    let accept = call.name == "VipConnectAccept";
    let text = match result {
        VIP_RETURN::VIP_INVALID_PTAG => {
            "a protection tag of this NIC handle is required (the strict mode does not accept NULL)"
        }
        VIP_RETURN::VIP_INVALID_RELIABILITY_LEVEL | VIP_RETURN::VIP_INVALID_MTU if accept => {
            "it must be equal on both VIs; call VipSetViAttributes, then accept again"
        }
        VIP_RETURN::VIP_INVALID_RELIABILITY_LEVEL => {
            "exactly one level that the device offers (vipinfo shows them)"
        }
        VIP_RETURN::VIP_INVALID_MTU => {
            "MaxTransferSize is 1 to that of the device (vipinfo shows it, VIPL_MAX_TRANSFER_SIZE sets it)"
        }
        VIP_RETURN::VIP_INVALID_QOS => "QoS must be NULL",
        VIP_RETURN::VIP_INVALID_RDMAREAD => {
            "the device does not support RDMA Read on this level (see vipinfo)"
        }
        VIP_RETURN::VIP_INVALID_STATE => return state(call),
        VIP_RETURN::VIP_ERROR_RESOURCE if call.name == "VipDestroyPtag" => {
            "VIs or memory regions have this protection tag; destroy or deregister them first"
        }
        VIP_RETURN::VIP_ERROR_NAMESERVICE if call.name.starts_with("VipNS") => {
            "if VipNSInit has not succeeded on this NIC handle, call it first"
        }
        _ => return String::new(),
    };
    format!(": {text}")
}

/// The state of the VI, if it is the cause.
fn state(call: &Call) -> String {
    let handle = call.inputs().iter().find_map(|(name, argument)| {
        (*name == "ViHandle").then_some(std::ptr::without_provenance_mut(argument.address()?))
    });
    let Some(vi) = handle.and_then(|handle| vi::lock(handle).ok()) else {
        return String::new();
    };
    let advice = match vi.abi.state {
        state::IDLE => "no connection was requested",
        _ => "call VipDisconnect first",
    };
    format!(": the VI is {} ({advice})", state::name(vi.abi.state))
}

#[cfg(test)]
mod tests {
    use super::super::Argument;
    use super::*;

    #[test]
    fn a_bad_argument_is_named() {
        let parts = handle::Parts {
            generation: 7,
            slot: 3,
        };
        let cq = Argument::from(handle::join(Kind::Cq, parts));
        let fault = |name, argument| {
            bad_argument(&Call::new("VipDestroyVi", 0, [(name, argument)], [])).unwrap_or_default()
        };
        assert_eq!(
            fault("ViHandle", cq),
            "ViHandle is the handle of a completion queue; expected: a VI"
        );
        assert!(fault("CQHandle", cq).contains("has been destroyed"));
        assert_eq!(fault("ViHandle", Argument::Pointer(0)), "ViHandle is NULL");
        assert!(fault("NicHandle", Argument::Pointer(5)).contains("is not a handle"));
        assert_eq!(fault("Context", Argument::Pointer(0)), "");
    }
}
