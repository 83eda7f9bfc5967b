//! Memory registration (spec §3.17 to §3.19, §10).

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use vipl_sys::clock::Instant;

use vipl_abi::*;
use vipl_plugin_abi::*;

use super::Memory;
use super::mapped::is_mapped;
use super::table::{Access, Unknown, tag_name};
use super::tags::Ptags;
use crate::error::Error;
use crate::logger::{log_failure, log_leniency, log_mistake};
use crate::nic::{self, Nic};
use crate::vi::of_nic;

#[cfg(test)]
mod tests;

/// Total time for which VipDeregisterMem waits for peers that are using a region.
const QUIESCE_TIME: Duration = Duration::from_secs(1);

/// Time for a plug-in's first answer even if other VIs have used up the total.
const FIRST_ANSWER: Duration = Duration::from_millis(1);

/// The access requested by attributes; a reference to the tag is taken.
fn take_access(
    nic: &Nic,
    ptags: &mut Ptags,
    attributes: Option<&VIP_MEM_ATTRIBUTES>,
) -> Result<Access, Error> {
    let settings = &nic.process.settings;
    let Some(attributes) = attributes else {
        if !settings.null_mem_attributes() {
            log_failure!(
                "mem",
                nic.handle.addr(),
                "MemAttribs is NULL, which the strict mode does not accept (VIPL_NULL_MEM_ATTRIBUTES=1 does)"
            );
            return Err(Error::InvalidParameter);
        }
        log_leniency!("a region without attributes was registered");
        return Ok(Access {
            tag: VIPL_PTAG_NONE,
            flags: 0,
        });
    };
    let tag = if attributes.Ptag.is_null() && settings.null_ptag() {
        log_leniency!("a region without a protection tag was registered");
        VIPL_PTAG_NONE
    } else {
        ptags.number(attributes.Ptag)?
    };
    let mut flags = 0;
    if attributes.EnableRdmaWrite != 0 {
        flags |= VIPL_REGION_RDMA_WRITE;
    }
    if attributes.EnableRdmaRead != 0 {
        if nic.info.rdma_read_support == 0 {
            return Err(Error::RdmaRead);
        }
        flags |= VIPL_REGION_RDMA_READ;
    }
    ptags.hold(tag)?;
    Ok(Access { tag, flags })
}

/// VipRegisterMem.
pub fn register(
    nic: VIP_NIC_HANDLE,
    address: VIP_PVOID,
    length: VIP_ULONG,
    attributes: Option<&VIP_MEM_ATTRIBUTES>,
) -> Result<VIP_MEM_HANDLE, Error> {
    register_on(&*nic::resolve(nic)?, address, length, attributes)
}

/// The same, on a NIC that may have been closed since the lookup.
pub(crate) fn register_on(
    nic: &Nic,
    address: VIP_PVOID,
    length: VIP_ULONG,
    attributes: Option<&VIP_MEM_ATTRIBUTES>,
) -> Result<VIP_MEM_HANDLE, Error> {
    let _inside = nic.enter()?;
    let wraps = address.addr().checked_add(length as usize).is_none();
    let (base, length) = (address.addr() as u64, length as u64);
    if base == 0 || length == 0 || wraps {
        log_mistake!(
            "mem",
            "cannot register {length} bytes at {base:#x}: the range is empty, begins at 0 or wraps around"
        );
        return Err(Error::InvalidParameter);
    }
    if length > nic.info.register_block_max {
        log_failure!(
            "mem",
            nic.handle.addr(),
            "cannot register {length} bytes: one region has at most {}; register it in pieces",
            nic.info.register_block_max
        );
        return Err(Error::Resource);
    }
    let held = nic.process.allocated.hold(base..base + length);
    if !is_mapped(base, length) {
        log_mistake!(
            "mem",
            "cannot register {length} bytes at {base:#x}: not all of these pages are mapped; is the length right, was the memory freed? (/proc/{}/maps)",
            std::process::id()
        );
        return Err(Error::InvalidParameter);
    }
    let mut memory = nic.memory.lock();
    let Memory { regions, ptags, .. } = &mut *memory;
    if regions.bytes() + length > nic.info.register_bytes_max {
        log_failure!(
            "mem",
            nic.handle.addr(),
            "cannot register {length} bytes: {} of {} are registered (setting max_register_bytes)",
            regions.bytes(),
            nic.info.register_bytes_max
        );
        return Err(Error::Resource);
    }
    let access = take_access(nic, ptags, attributes)?;
    let handle = regions.insert(base, length, access).ok_or_else(|| {
        ptags.release(access.tag);
        log::info!(
            target: "mem",
            "cannot register {length} bytes: the NIC handle has {} regions, the maximum",
            regions.count()
        );
        Error::Resource
    })?;
    nic.publish_memory(&memory);
    drop(memory);
    if let Err(error) = add_to_plugin(nic, "VipRegisterMem", handle, (base, length), access) {
        let mut memory = nic.memory.lock();
        if let Ok((tag, _)) = memory.regions.remove(handle, base) {
            memory.regions.free(handle);
            memory.ptags.release(tag);
        }
        nic.publish_memory(&memory);
        drop(memory);
        quiesce(nic);
        return Err(error);
    }
    held.keep();
    log::debug!(
        target: "mem",
        "region {handle:#x} registered: {length} bytes at {base:#x}, {}{}{}",
        tag_name(access.tag),
        if access.flags & VIPL_REGION_RDMA_WRITE != 0 { ", RDMA Write" } else { "" },
        if access.flags & VIPL_REGION_RDMA_READ != 0 { ", RDMA Read" } else { "" }
    );
    Ok(handle)
}

/// Reports a region, or its new access, to the plug-in.
fn add_to_plugin(
    nic: &Nic,
    call: &str,
    handle: u32,
    (base, length): (u64, u64),
    access: Access,
) -> Result<(), Error> {
    let Some(region_add) = nic.ops.region_add else {
        return Ok(());
    };
    // SAFETY: the NIC is open; the plug-in keeps no pointer beyond the call.
    let status = unsafe { region_add(nic.abi(), handle, base, length, access.word()) };
    if status == VIPL_OK {
        return Ok(());
    }
    log_failure!(
        "mem",
        nic.handle.addr(),
        "{call}: the plug-in {} cannot use the {length} bytes at {base:#x} (status {status}): its device may be out of room for regions, or the process may not lock so much memory (ulimit -l)",
        nic.plugin.name
    );
    Err(Error::Resource)
}

/// Logs that the memory handle of a call names no region, or that the address is outside the region.
#[cold]
fn no_region(call: &str, address: VIP_PVOID, handle: u32, unknown: &Unknown) -> Error {
    match unknown {
        Unknown::Handle => log_mistake!(
            "mem",
            "{call}: the memory handle {handle:#x} names no region of this NIC handle; was it deregistered, or registered on another one?"
        ),
        Unknown::Address(first, end) => log_mistake!(
            "mem",
            "{call}: {address:?} does not belong to the region {handle:#x}, which is {first:#x} to {end:#x}"
        ),
    }
    Error::InvalidParameter
}

/// VipDeregisterMem. On return no transfer uses the region any more.
pub fn deregister(
    nic: VIP_NIC_HANDLE,
    address: VIP_PVOID,
    handle: VIP_MEM_HANDLE,
) -> Result<(), Error> {
    let nic = nic::resolve(nic)?;
    let base = address.addr() as u64;
    let unknown = |why| no_region("VipDeregisterMem", address, handle, &why);
    let (bytes, changing) = {
        let mut memory = nic.memory.lock();
        let (tag, bytes) = memory.regions.remove(handle, base).map_err(unknown)?;
        memory.ptags.release(tag);
        if nic.ops.region_remove.is_none() {
            memory.regions.free(handle);
        }
        nic.publish_memory(&memory);
        (bytes, memory.changing > 0)
    };
    quiesce(&nic);
    if let Some(region_remove) = nic.ops.region_remove {
        // Waits for a change of its access in progress; none can begin any more.
        let in_order = changing.then(|| nic.region_changes.lock());
        // SAFETY: the NIC is open.
        unsafe { region_remove(nic.abi(), handle) };
        drop(in_order);
        nic.memory.lock().regions.free(handle);
    }
    nic.process.allocated.release(base..base + bytes);
    log::debug!(target: "mem", "region {handle:#x} deregistered");
    Ok(())
}

/// Waits until no transfer uses a region that has just been taken out of the table. A transfer of this
/// process holds its VI's lock; the plug-in knows the transfers of peers. All peers share `QUIESCE_TIME`:
/// several stopped ones take no longer than one, and the others are still asked.
fn quiesce(nic: &Nic) {
    // The clock is read only if a VI is connected.
    let mut end = None;
    // Acquiring a VI's lock waits for the transfer that holds it; later transfers see that the region was
    // removed.
    fence(Ordering::SeqCst);
    let mut busy = Vec::new();
    of_nic::each(nic, |mut vi| {
        if let Some(side) = vi.connection {
            // Every VI is asked a second time before the call gives up.
            let end = *end.get_or_insert_with(|| Instant::now() + QUIESCE_TIME);
            let left = end.saturating_duration_since(Instant::now());
            let mut since = 0;
            if !vi.quiesced(&mut since, left.max(FIRST_ANSWER)) {
                busy.push((vi.slot(), side, since));
            }
        }
    });
    let (Some(end), false) = (end, busy.is_empty()) else {
        return;
    };
    let mut left = QUIESCE_TIME;
    while !busy.is_empty() && !left.is_zero() {
        std::thread::yield_now();
        left = end.saturating_duration_since(Instant::now());
        // A VI with another connection, or none, has been detached since.
        busy.retain_mut(|(slot, side, since)| {
            let locked = slot.lock_any().filter(|vi| vi.connection == Some(*side));
            locked.is_some_and(|mut vi| !vi.quiesced(since, left))
        });
    }
    if !busy.is_empty() {
        log::warn!(
            target: "mem",
            "VipDeregisterMem: the peers of {} VIs were still using memory of this program after one second: their connections are broken; is one of the programs stopped?",
            busy.len()
        );
    }
}

/// VipQueryMem.
pub fn query(
    nic: VIP_NIC_HANDLE,
    address: VIP_PVOID,
    handle: VIP_MEM_HANDLE,
) -> Result<VIP_MEM_ATTRIBUTES, Error> {
    let nic = nic::resolve(nic)?;
    let memory = nic.memory.lock();
    let access = memory
        .regions
        .access(handle, address.addr() as u64)
        .map_err(|why| no_region("VipQueryMem", address, handle, &why))?;
    Ok(VIP_MEM_ATTRIBUTES {
        Ptag: memory.ptags.handle(access.tag),
        EnableRdmaWrite: VIP_BOOLEAN::from(access.flags & VIPL_REGION_RDMA_WRITE != 0),
        EnableRdmaRead: VIP_BOOLEAN::from(access.flags & VIPL_REGION_RDMA_READ != 0),
    })
}

/// VipSetMemAttributes: all or nothing, in one store.
pub fn set_attributes(
    nic: VIP_NIC_HANDLE,
    address: VIP_PVOID,
    handle: VIP_MEM_HANDLE,
    attributes: &VIP_MEM_ATTRIBUTES,
) -> Result<(), Error> {
    let nic = nic::resolve(nic)?;
    let at = address.addr() as u64;
    let unknown = |why| no_region("VipSetMemAttributes", address, handle, &why);
    let in_order = nic.region_changes.lock();
    let (range, access) = {
        let memory = &mut *nic.memory.lock();
        let range = memory.regions.range(handle, at).map_err(unknown)?;
        let access = take_access(&nic, &mut memory.ptags, Some(attributes))?;
        memory.changing += 1;
        (range, access)
    };
    let added = add_to_plugin(&nic, "VipSetMemAttributes", handle, range, access);
    let mut memory = nic.memory.lock();
    memory.changing -= 1;
    let changed = added.and_then(|()| {
        let set = memory.regions.set_access(handle, at, access);
        set.map_err(unknown)
    });
    drop(in_order);
    let unused = changed.as_ref().map_or(access, |before| *before);
    memory.ptags.release(unused.tag);
    changed.map(drop)
}
