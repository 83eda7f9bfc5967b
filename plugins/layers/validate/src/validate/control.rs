//! The calls that make, connect and destroy objects.

use std::sync::atomic::Ordering;

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::layer::{Argument, Call, Local, Outcome, arguments, read};

use super::Validate;
use crate::findings::Finding;
use crate::objects::{Kind, Object, Region};
use crate::place::{self, shown};
use crate::posted::{Image, Which};

/// Objects of which a line names each.
const NAMED: usize = 4;
/// Words of `Local` in VipDestroyVi: descriptors on the queues, those of them that are complete, where the last of these was posted.
const QUEUED: usize = 0;
const NOT_TAKEN: usize = 1;
const EXAMPLE: usize = 2;

impl Validate {
    /// Another call begins.
    pub(crate) fn control_before(&self, call: &Call<'_>, local: &mut Local) {
        match call.function() {
            VIPL_CALL_DEREGISTER_MEM => self.deregister(call),
            VIPL_CALL_DESTROY_VI => self.destroy_vi(call, local),
            VIPL_CALL_CQ_WAIT => self.wait_begins(call, local),
            VIPL_CALL_SEND_NOTIFY => self.asks(call, Which::Send),
            VIPL_CALL_RECV_NOTIFY => self.asks(call, Which::Recv),
            _ => {}
        }
    }

    fn asks(&self, call: &Call<'_>, which: Which) {
        if let Some(vi) = self.objects.vi(call.argument(0)) {
            vi.ask(which);
        }
    }

    /// Another call ends.
    pub(crate) fn control_after(&self, call: &Call<'_>, local: &Local, result: Outcome) {
        if matches!(call.function(), VIPL_CALL_CQ_WAIT | VIPL_CALL_CQ_DONE) {
            self.look_ends(call, local, result);
        }
        if result.is_success() {
            self.succeeded(call, local);
        } else if result.0 == Some(VIP_RETURN::VIP_INVALID_PARAMETER) {
            self.refused(call);
        } else if call.function() == VIPL_CALL_CLOSE_NIC
            && result.0 == Some(VIP_RETURN::VIP_ERROR_RESOURCE)
        {
            let place = place::of(call);
            self.left(
                call.argument(0),
                Finding::LeftAtClose,
                place,
                "VipCloseNic is refused",
            );
        }
    }

    fn succeeded(&self, call: &Call<'_>, local: &Local) {
        let made = |out: usize, kind: Kind, nic: u64| {
            let made = place::of(call);
            if let Some(handle) = read::<usize>(call.pointer(out)) {
                let handle = handle as u64;
                let nic = if kind == Kind::Nic { handle } else { nic };
                let object = Object { kind, nic, made };
                match kind {
                    Kind::Vi => {
                        let cqs = [call.argument(2), call.argument(3)];
                        self.objects.add_vi(handle, object, cqs);
                    }
                    _ => self.objects.add(handle, object),
                }
            }
        };
        let first = call.argument(0);
        match call.function() {
            VIPL_CALL_OPEN_NIC => made(1, Kind::Nic, 0),
            VIPL_CALL_CREATE_VI => {
                made(4, Kind::Vi, first);
                self.check_vi_tag(call);
            }
            VIPL_CALL_CREATE_CQ => made(2, Kind::Cq, first),
            VIPL_CALL_CREATE_PTAG => made(1, Kind::Ptag, first),
            VIPL_CALL_REGISTER_MEM => self.registered(call),
            VIPL_CALL_DEREGISTER_MEM => self.objects.remove_region(first, call.argument(2) as u32),
            VIPL_CALL_DESTROY_VI | VIPL_CALL_DESTROY_CQ | VIPL_CALL_CLOSE_NIC => {
                if let Some(vi) = self.objects.vi(first) {
                    self.report_missed(&vi);
                }
                self.destroyed_with(call, local);
                self.objects.remove(first, place::of(call));
            }
            VIPL_CALL_DESTROY_PTAG => self.objects.remove(call.argument(1), place::of(call)),
            VIPL_CALL_CONNECT_ACCEPT => self.connected(call, call.argument(1)),
            VIPL_CALL_CONNECT_REQUEST
            | VIPL_CALL_CONNECT_PEER_DONE
            | VIPL_CALL_CONNECT_PEER_WAIT => {
                self.connected(call, first);
            }
            _ => {}
        }
    }

    fn check_vi_tag(&self, call: &Call<'_>) {
        let attributes = read(call.pointer::<VIP_VI_ATTRIBUTES>(1));
        if attributes.is_some_and(|attributes| attributes.Ptag.is_null()) {
            self.report(Finding::NullTag, place::of(call), || {
                "the VI has no protection tag: the strict mode and other providers refuse NULL"
                    .to_owned()
            });
        }
    }

    fn registered(&self, call: &Call<'_>) {
        let made = place::of(call);
        let (nic, base) = (call.argument(0), call.argument(1));
        if let Some(handle) = read::<u32>(call.pointer(4)) {
            let end = base.saturating_add(call.argument(2));
            self.objects.add_region(Region {
                nic,
                handle,
                base,
                end,
                made,
            });
        }
        let attributes = call.pointer::<VIP_MEM_ATTRIBUTES>(3);
        if attributes.is_null() {
            self.report(Finding::NullMemAttributes, made, || {
                "MemAttribs is NULL: the strict mode and other providers refuse that".to_owned()
            });
            return;
        }
        if read(attributes).is_some_and(|attributes| attributes.Ptag.is_null()) {
            self.report(Finding::NullTag, made, || {
                "the region has no protection tag: the strict mode and other providers refuse NULL"
                    .to_owned()
            });
        }
    }

    /// Memory that posted descriptors use, or that is not there any more.
    fn deregister(&self, call: &Call<'_>) {
        let (nic, handle) = (call.argument(0), call.argument(2) as u32);
        let Some(region) = self.objects.region(nic, handle) else {
            return;
        };
        for vi in self.objects.vis().iter().filter(|vi| vi.nic == nic) {
            let Ok(queues) = vi.queues.try_lock() else {
                continue;
            };
            let entries = queues.iter().flat_map(|queue| queue.entries());
            let used = entries
                .filter(|entry| entry.memory.contains(&handle))
                .map(|entry| entry.place);
            let used: Vec<usize> = used.collect();
            drop(queues);
            if let Some(first) = used.first() {
                self.report(Finding::DeregisteredInUse, place::of(call), || {
                    format!(
                        "the region {handle:#x} is used by {} posted descriptors of VI {:#x}; the first was posted {}",
                        used.len(),
                        vi.handle,
                        shown(*first)
                    )
                });
            }
        }
        let there = |address: u64| {
            read::<u8>(std::ptr::with_exposed_provenance(address as usize)).is_some()
        };
        if region.end > region.base && !(there(region.base) && there(region.end - 1)) {
            self.report(Finding::UnmappedBeforeDeregistered, place::of(call), || {
                format!(
                    "the memory of the region {handle:#x} is not mapped any more; it was registered {}",
                    shown(region.made)
                )
            });
        }
    }

    /// Counts what is on the queues, which a refused call leaves there.
    fn destroy_vi(&self, call: &Call<'_>, local: &mut Local) {
        let Some(vi) = self.objects.vi(call.argument(0)) else {
            return;
        };
        let mut inside = vi.inside.iter();
        if inside.any(|inside| inside.load(Ordering::Relaxed) != 0) {
            self.report(Finding::DestroyedInUse, place::of(call), || {
                format!(
                    "VI {:#x} is destroyed while another thread is inside a call on it",
                    vi.handle
                )
            });
        }
        // What VipDisconnect has flushed was still to be taken off, too, but has never been of use.
        const OF_USE: u32 = VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR;
        if let Ok(queues) = vi.queues.try_lock() {
            for entry in queues.iter().flat_map(|queue| queue.entries()) {
                match Image::read(entry.at) {
                    Some(image) if image.status() & OF_USE == VIP_STATUS_DONE => {
                        local[NOT_TAKEN] += 1;
                        local[EXAMPLE] = entry.place as u64;
                    }
                    _ => local[QUEUED] += 1,
                }
            }
        }
    }

    /// A VI was destroyed with what was on its queues.
    fn destroyed_with(&self, call: &Call<'_>, local: &Local) {
        let vi = call.argument(0);
        let (queued, not_taken) = (local[QUEUED], local[NOT_TAKEN]);
        if not_taken > 0 {
            self.report(Finding::NotTaken, place::of(call), || {
                format!(
                    "VI {vi:#x} is destroyed with {not_taken} completed descriptors that were never taken off; the last was posted {}",
                    shown(local[EXAMPLE] as usize)
                )
            });
        }
        if queued > 0 {
            self.report(Finding::DestroyedWithDescriptors, place::of(call), || {
                format!(
                    "VI {vi:#x} is destroyed with {queued} descriptors on its queues: the strict mode and other providers refuse that"
                )
            });
        }
    }

    /// What is sent to a VI without receives is lost, unless the peer waits for a message first: `taken` sees which it is.
    fn connected(&self, call: &Call<'_>, vi: u64) {
        let Some(vi) = self.objects.vi(vi) else {
            return;
        };
        let Ok(queues) = vi.queues.lock() else {
            return;
        };
        let bare = match queues[Which::Recv as usize].len() {
            0 => place::of(call),
            _ => 0,
        };
        vi.bare.store(bare, Ordering::Relaxed);
    }

    /// A call with a bad argument: is it a handle that was good, or one of another NIC?
    pub(crate) fn refused(&self, call: &Call<'_>) {
        let mut first: Option<u64> = None;
        for (number, (name, kind)) in arguments(call.function()).iter().enumerate() {
            let handle = call.argument(number);
            let is_handle = matches!(
                kind,
                Argument::Nic | Argument::Vi | Argument::Cq | Argument::Ptag
            );
            if !is_handle || handle == 0 {
                continue;
            }
            if let Some(object) = self.objects.get(handle) {
                match first {
                    Some(nic) if nic != object.nic => {
                        self.report(Finding::OtherNic, place::of(call), || {
                            format!(
                                "{name} {handle:#x} belongs to the NIC handle {:#x}, and another argument to {nic:#x}; it was made {}",
                                object.nic,
                                shown(object.made)
                            )
                        });
                        return;
                    }
                    _ => first = Some(object.nic),
                }
            } else if let Some((kind, place)) = self.objects.destroyed(handle) {
                self.report(Finding::Destroyed, place::of(call), || {
                    format!("{} {handle:#x} was destroyed {}", kind.name(), shown(place))
                });
                return;
            }
        }
    }

    /// What is left of a NIC.
    fn left(&self, nic: u64, finding: Finding, place: usize, what: &str) {
        let mut all: Vec<String> = self
            .objects
            .of_nic(nic)
            .iter()
            .map(|(handle, object)| {
                format!(
                    "{} {handle:#x}, made {}",
                    object.kind.name(),
                    shown(object.made)
                )
            })
            .collect();
        all.extend(self.objects.regions_of(nic).iter().map(|region| {
            format!(
                "the region {:#x}, registered {}",
                region.handle,
                shown(region.made)
            )
        }));
        if all.is_empty() {
            return;
        }
        self.report(finding, place, || {
            let more = match all.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            all.truncate(NAMED);
            format!("{what}: there are left {}{more}", all.join("; "))
        });
    }

    /// The process ends: NICs that are open, and sends that were never taken off.
    pub(crate) fn at_exit(&self) {
        for vi in self.objects.vis() {
            self.report_missed(&vi);
            let Ok(queues) = vi.queues.try_lock() else {
                continue;
            };
            let sends = queues[Which::Send as usize].entries();
            let done = sends.filter(|entry| {
                Image::read(entry.at).is_some_and(|image| image.status() & VIP_STATUS_DONE != 0)
            });
            let places: Vec<usize> = done.map(|entry| entry.place).collect();
            drop(queues);
            if let Some(last) = places.last() {
                self.report(Finding::NotTaken, *last, || {
                    format!(
                        "{} completed sends of VI {:#x} were never taken off the queue; the last was posted here",
                        places.len(),
                        vi.handle
                    )
                });
            }
        }
        for (nic, object) in self.objects.nics() {
            self.left(
                nic,
                Finding::LeftAtExit,
                object.made,
                "the process ends with the NIC that was opened here",
            );
        }
    }
}
