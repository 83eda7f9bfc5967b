//! NICs, VIs, completion queues, tags, regions and allocated memory.

use std::ffi::{CStr, CString};

use vipl_client::raw::Functions;
use vipl_client::raw::abi::*;

use super::super::file::{Call, shown};
use super::super::process::{BAD, Nic, Process};
use super::fit::{self, Fit};
use super::given::{
    EMPTY, bad, has_handler, input, mem_attributes, nothing, null, output, vi_attributes,
    was_refused,
};
use super::{Outcome, Stage, made, optional, succeeded};

unsafe extern "C" fn on_error(_: VIP_PVOID, _: *mut VIP_ERROR_DESCRIPTOR) {}
unsafe extern "C" fn on_descriptor(
    _: VIP_PVOID,
    _: VIP_NIC_HANDLE,
    _: VIP_VI_HANDLE,
    _: *mut VIP_DESCRIPTOR,
) {
}
unsafe extern "C" fn on_entry(_: VIP_PVOID, _: VIP_NIC_HANDLE, _: VIP_VI_HANDLE, _: VIP_BOOLEAN) {}

impl Stage<'_> {
    /// NICs, VIs, completion queues, tags.
    ///
    /// # Safety
    /// As `make` says; also of those below.
    pub(super) unsafe fn object(&self, process: &Process, call: &Call) -> Option<Outcome> {
        let f = self.functions;
        let (nic_then, vi_then) = (call.number("NicHandle"), call.number("ViHandle"));
        let nic = process.nic_handle(nic_then);
        let (vi, cq) = (
            process.handle(vi_then),
            process.handle(call.number("CQHandle")),
        );
        let mut out: VIP_PVOID = null();
        let entries = call.number("EntryCount") as VIP_ULONG;
        let handler = has_handler(call);
        // SAFETY: as the caller says.
        unsafe {
            Some(match call.name.as_str() {
                "VipOpenNic" => {
                    let recorded = call.bytes("DeviceName");
                    // A device that was not there then is not there now.
                    let asked = self.device.filter(|_| call.result == "VIP_SUCCESS");
                    let name = asked.map(|device| device.as_bytes().to_vec()).or(recorded);
                    let name = name.map(|name| CString::new(name).unwrap_or_default());
                    let given = name.clone();
                    let name = match (&name, call.text("DeviceName")) {
                        (_, Some("bad")) => nothing(),
                        (Some(name), _) => name.as_ptr().cast_mut(),
                        (None, _) => null(),
                    };
                    let to = output(call, "NicHandle", &raw mut out);
                    let code = (f.VipOpenNic)(name, to);
                    if succeeded(code) {
                        process.add_nic(nic_then, nic_of(f, out));
                    } else if call.result == "VIP_SUCCESS" {
                        return Some(unopened(given.as_deref(), code));
                    }
                    made(code)
                }
                "VipCloseNic" => made((f.VipCloseNic)(nic)),
                "VipQueryNic" => {
                    // What another device can do is no difference.
                    let mut attributes = std::mem::MaybeUninit::<VIP_NIC_ATTRIBUTES>::uninit();
                    let to = output(call, "NicAttribs", attributes.as_mut_ptr());
                    made((f.VipQueryNic)(nic, to))
                }
                "VipErrorCallback" => {
                    let handler: ErrorHandler = handler.then_some(on_error);
                    made((f.VipErrorCallback)(nic, null(), handler))
                }
                "VipCreatePtag" => {
                    let code = (f.VipCreatePtag)(nic, output(call, "Ptag", &raw mut out));
                    if succeeded(code) {
                        process.add(call.number("Ptag"), out);
                    }
                    made(code)
                }
                "VipDestroyPtag" => {
                    made((f.VipDestroyPtag)(nic, process.handle(call.number("Ptag"))))
                }
                "VipCreateVi" => {
                    let mut attributes = vi_attributes(process, call);
                    let send = process.handle(call.number("SendCQHandle"));
                    let receive = process.handle(call.number("RecvCQHandle"));
                    let nic_now = process.nic(nic_then);
                    let fit = fit::vi(self, process, call, &nic_now, attributes.as_mut());
                    if let Fit::Not(what) = fit {
                        return Some(Outcome::Unfit(what));
                    }
                    let from = input(call, "ViAttribs", attributes.as_mut());
                    let to = output(call, "ViHandle", &raw mut out);
                    let code = (f.VipCreateVi)(nic, from, send, receive, to);
                    if succeeded(code) {
                        process.add_vi(vi_then, out, nic_then);
                    }
                    fit.outcome(code)
                }
                "VipDestroyVi" => made((f.VipDestroyVi)(vi)),
                "VipSetViAttributes" => {
                    let mut attributes = vi_attributes(process, call);
                    let nic = process.nic_of(vi_then).1;
                    let fit = fit::vi(self, process, call, &nic, attributes.as_mut());
                    if let Fit::Not(what) = fit {
                        return Some(Outcome::Unfit(what));
                    }
                    let from = input(call, "ViAttribs", attributes.as_mut());
                    match optional!(f.VipSetViAttributes, vi, from) {
                        Outcome::Made(code, None) => fit.outcome(code),
                        other => other,
                    }
                }
                "VipSetUserData" => match f.VipSetUserData {
                    Some(set) => {
                        let data = call.number("Data") as usize;
                        set(vi, std::ptr::with_exposed_provenance_mut(data));
                        Outcome::Done
                    }
                    None => optional!(None::<fn() -> i32>,),
                },
                "VipGetUserData" => match f.VipGetUserData {
                    Some(get) => {
                        get(vi);
                        Outcome::Done
                    }
                    None => optional!(None::<fn() -> i32>,),
                },
                "VipCreateCQ" => {
                    let to = output(call, "CQHandle", &raw mut out);
                    let code = (f.VipCreateCQ)(nic, entries, to);
                    if succeeded(code) {
                        process.add(call.number("CQHandle"), out);
                    }
                    made(code)
                }
                "VipDestroyCQ" => made((f.VipDestroyCQ)(cq)),
                "VipResizeCQ" => optional!(f.VipResizeCQ, cq, entries),
                "VipCQNotify" => {
                    let handler: CqHandler = handler.then_some(on_entry);
                    optional!(f.VipCQNotify, cq, null(), handler)
                }
                "VipSendNotify" => {
                    let handler: DescriptorHandler = handler.then_some(on_descriptor);
                    optional!(f.VipSendNotify, vi, null(), handler)
                }
                "VipRecvNotify" => {
                    let handler: DescriptorHandler = handler.then_some(on_descriptor);
                    optional!(f.VipRecvNotify, vi, null(), handler)
                }
                "vipl_cq_fd" => {
                    let mut number = 0;
                    optional!(
                        f.vipl_cq_fd,
                        cq,
                        output(call, "Descriptor", &raw mut number)
                    )
                }
                "vipl_cq_arm" => optional!(f.vipl_cq_arm, cq),
                "VipQueryVi" => {
                    let (mut state, mut send, mut receive) = (0, 0, 0);
                    let mut attributes = EMPTY;
                    // The state may change at any time; a program that asks for it usually waits for it.
                    made((f.VipQueryVi)(
                        vi,
                        output(call, "State", &raw mut state),
                        output(call, "ViAttribs", &raw mut attributes),
                        output(call, "ViSendQEmpty", &raw mut send),
                        output(call, "ViRecvQEmpty", &raw mut receive),
                    ))
                }
                _ => return None,
            })
        }
    }

    /// Regions, and memory for them.
    pub(super) unsafe fn region(&self, process: &Process, call: &Call) -> Option<Outcome> {
        let f = self.functions;
        let nic_then = call.number("NicHandle");
        let nic = process.nic_handle(nic_then);
        let base = |name| {
            std::ptr::with_exposed_provenance_mut(process.memory.now(call.number(name)) as usize)
        };
        let mut attributes = mem_attributes(process, call);
        let nic_now = process.nic(nic_then);
        let fit = fit::region(self, call, &nic_now, attributes.as_mut());
        if let Fit::Not(what) = fit {
            return Some(Outcome::Unfit(what));
        }
        let attributes = input(call, "MemAttribs", attributes.as_mut());
        let length = call.number("Length");
        // SAFETY: as the caller says.
        unsafe {
            Some(match call.name.as_str() {
                "VipRegisterMem" => {
                    let then = call.number("VirtualAddress");
                    let from = match process.memory.has(then, length) {
                        true => base("VirtualAddress"),
                        false if was_refused(call) => bad(),
                        false => return Some(Outcome::Left(MEMORY)),
                    };
                    let mut handle = 0;
                    let to = output(call, "MemoryHandle", &raw mut handle);
                    let code = (f.VipRegisterMem)(nic, from, length as VIP_ULONG, attributes, to);
                    if succeeded(code) {
                        process.add_region(nic_then, call.number("MemoryHandle"), handle);
                    }
                    fit.outcome(code)
                }
                "VipDeregisterMem" => {
                    let handle = process.region(nic_then, call.number("MemoryHandle"));
                    made((f.VipDeregisterMem)(nic, base("VirtualAddress"), handle))
                }
                "VipQueryMem" => {
                    let handle = process.region(nic_then, call.number("MemHandle"));
                    let mut found = std::mem::MaybeUninit::<VIP_MEM_ATTRIBUTES>::uninit();
                    let to = output(call, "MemAttribs", found.as_mut_ptr());
                    optional!(f.VipQueryMem, nic, base("Address"), handle, to)
                }
                "VipSetMemAttributes" => {
                    let handle = process.region(nic_then, call.number("MemHandle"));
                    optional!(
                        f.VipSetMemAttributes,
                        nic,
                        base("Address"),
                        handle,
                        attributes
                    )
                }
                "vipl_alloc" => {
                    if !process.memory.may_allocate(length) {
                        return Some(Outcome::Left(MEMORY));
                    }
                    let mut out: VIP_PVOID = null();
                    let to = output(call, "Address", &raw mut out);
                    let outcome = optional!(f.vipl_alloc, length as VIP_ULONG, to);
                    if matches!(outcome, Outcome::Made(code, _) if succeeded(code)) {
                        let then = call.number("Address");
                        process.memory.allocated(then, length, out);
                    }
                    outcome
                }
                "vipl_free" => {
                    let Some(free) = f.vipl_free else {
                        return Some(optional!(None::<fn() -> i32>,));
                    };
                    let then = call.number("Address");
                    made(process.memory.free(then, |now| {
                        let now = now.unwrap_or(if then == 0 { 0 } else { BAD });
                        let code = free(std::ptr::with_exposed_provenance_mut(now));
                        (succeeded(code), code)
                    }))
                }
                _ => return None,
            })
        }
    }
}

/// Why memory is not there.
const MEMORY: &str = "it needs more memory than --memory allows";

fn unopened(device: Option<&CStr>, code: i32) -> Outcome {
    let device = device.map_or("NULL".into(), |name| name.to_string_lossy());
    let code = VIP_RETURN::of(code).map_or_else(|| code.to_string(), |code| format!("{code:?}"));
    let device = shown(&device);
    Outcome::Unopened(format!("the device {device} does not open: {code}"))
}

/// A NIC with its host address.
///
/// # Safety
/// The handle of an open NIC.
unsafe fn nic_of(functions: &Functions, nic: VIP_NIC_HANDLE) -> Nic {
    let mut attributes = std::mem::MaybeUninit::<VIP_NIC_ATTRIBUTES>::zeroed();
    // SAFETY: room for the answer; zero is a value of each of its fields.
    let attributes = unsafe {
        (functions.VipQueryNic)(nic, attributes.as_mut_ptr());
        attributes.assume_init()
    };
    let bytes = usize::from(attributes.NicAddressLen);
    let mut host = Vec::new();
    if !attributes.LocalNicAddress.is_null() {
        let address = attributes.LocalNicAddress.cast::<u8>();
        // SAFETY: the library's array, which lives as long as the NIC.
        host.extend_from_slice(unsafe { std::slice::from_raw_parts(address, bytes) });
    }
    let name = attributes.Name.map(|letter| letter as u8);
    Nic {
        handle: nic.expose_provenance(),
        host,
        transfer_max: attributes.MaxTransferSize as u64,
        levels: attributes.ReliabilityLevelSupport,
        levels_of_reads: attributes.RDMAReadSupport,
        is_ip: name.starts_with(b"ip:") || name.starts_with(b"verbs:"),
    }
}
