//! Memory registration (spec §3.17 to §3.19, §10).
//!
//! The table of regions is read by the data path and, for RDMA, by partners, all without a lock: an
//! entry's handle is 0 while the entry changes, and no handle comes back soon. Who reads an entry looks
//! at the handle before and after.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use vipl_abi::*;
use vipl_plugin_abi::*;

use crate::error::Error;
use crate::logger::log_leniency;
use crate::nic::{self, Nic};

pub mod tags;
#[cfg(test)]
mod tests;

/// How long VipDeregisterMem waits for partners that are using a region, all of them together.
const QUIESCE_TIME: Duration = Duration::from_secs(1);

/// What a plug-in may take for its first answer even when other VIs have used up the time.
const FIRST_ANSWER: Duration = Duration::from_millis(1);

/// Who has which entry of a NIC's table.
pub(crate) struct Regions {
    table: *mut vipl_region,
    count: u32,
    free: Vec<u32>,
    used: u32,
    generation: u32,
    regions: u32,
    bytes: u64,
}

// SAFETY: the table outlives the NIC, and its fields are atomic.
unsafe impl Send for Regions {}

/// A free entry.
pub(crate) fn free_region() -> vipl_region {
    vipl_region {
        base: AtomicU64::new(0),
        end: AtomicU64::new(0),
        access: AtomicU64::new(0),
        handle: AtomicU32::new(0),
        reserved: 0,
    }
}

/// Tag and flags of a region.
#[derive(Clone, Copy)]
struct Access {
    tag: u32,
    flags: u32,
}

impl Access {
    fn word(self) -> u64 {
        u64::from(self.tag) << 32 | u64::from(self.flags)
    }
}

impl Regions {
    pub(crate) fn new(table: *mut vipl_region, count: u32, seed: u32) -> Self {
        let generation = seed.wrapping_mul(0x9E37_79B9);
        Regions {
            table,
            count,
            free: Vec::new(),
            used: 0,
            generation,
            regions: 0,
            bytes: 0,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.regions as usize
    }

    fn entry(&self, index: u32) -> &vipl_region {
        debug_assert!(index < self.count);
        // SAFETY: the table has `count` entries.
        unsafe { &*self.table.add(index as usize) }
    }

    /// The entry that a handle names.
    fn find(&self, handle: u32) -> Option<&vipl_region> {
        let entry = self.entry(handle & (self.count - 1));
        (handle != 0 && entry.handle.load(Ordering::Relaxed) == handle).then_some(entry)
    }

    fn insert(&mut self, base: u64, length: u64, access: Access) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.used < self.count => {
                self.used += 1;
                self.used - 1
            }
            None => return None,
        };
        // The upper bits count; with a count of 4096 a handle comes back after a million others.
        let handle = loop {
            self.generation = self.generation.wrapping_add(self.count);
            let handle = (self.generation & !(self.count - 1)) | index;
            if handle != 0 {
                break handle;
            }
        };
        let entry = self.entry(index);
        // Pairs with the fence of readers: who sees a field of this region sees that the one before is gone.
        fence(Ordering::Release);
        entry.base.store(base, Ordering::Relaxed);
        entry.end.store(base + length, Ordering::Relaxed);
        entry.access.store(access.word(), Ordering::Relaxed);
        // Release pairs with the acquire of every reader: the fields above belong to this handle.
        entry.handle.store(handle, Ordering::Release);
        self.regions += 1;
        self.bytes += length;
        Some(handle)
    }

    fn remove(&mut self, handle: u32) -> Option<u32> {
        let entry = self.find(handle)?;
        let tag = (entry.access.load(Ordering::Relaxed) >> 32) as u32;
        let length = entry.end.load(Ordering::Relaxed) - entry.base.load(Ordering::Relaxed);
        entry.handle.store(0, Ordering::Release);
        self.free.push(handle & (self.count - 1));
        self.regions -= 1;
        self.bytes -= length;
        Some(tag)
    }
}

/// Whether every page of the range is mapped. Looks at the mappings only, not at the pages. Without the
/// C library's `msync`, which is a point of cancellation.
fn is_mapped(base: u64, length: u64) -> bool {
    let start = base & !(page_size() - 1);
    let bytes = (base + length - start) as usize;
    // SAFETY: MS_ASYNC changes nothing; the kernel checks the range.
    unsafe { libc::syscall(libc::SYS_msync, start as *mut c_void, bytes, libc::MS_ASYNC) == 0 }
}

fn page_size() -> u64 {
    static SIZE: crate::sync::OnceLock<u64> = crate::sync::OnceLock::new();
    // SAFETY: no pointers.
    *SIZE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as u64)
}

fn access_of(nic: &Nic, attributes: Option<&VIP_MEM_ATTRIBUTES>) -> Result<Access, Error> {
    let settings = &nic.process.settings;
    let Some(attributes) = attributes else {
        if !settings.null_mem_attributes() {
            log::info!(target: "mem", "MemAttribs is NULL, which the strict mode does not accept (VIPL_NULL_MEM_ATTRIBUTES=1 does)");
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
        nic.ptags.lock().number(attributes.Ptag)?
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

/// The same, on a NIC that may have been closed since it was found.
pub(crate) fn register_on(
    nic: &Nic,
    address: VIP_PVOID,
    length: VIP_ULONG,
    attributes: Option<&VIP_MEM_ATTRIBUTES>,
) -> Result<VIP_MEM_HANDLE, Error> {
    let _inside = nic.enter()?;
    let (base, length) = (address.addr() as u64, length as u64);
    if base == 0 || length == 0 || base.checked_add(length).is_none() {
        log::warn!(
            target: "mem",
            "cannot register {length} bytes at {base:#x}: the range is empty, begins at 0 or wraps around"
        );
        return Err(Error::InvalidParameter);
    }
    let access = access_of(nic, attributes)?;
    if length > nic.info.register_block_max {
        log::info!(
            target: "mem",
            "cannot register {length} bytes: one region has at most {}; register it in pieces", nic.info.register_block_max
        );
        return Err(Error::Resource);
    }
    if !is_mapped(base, length) {
        log::warn!(
            target: "mem",
            "cannot register {length} bytes at {base:#x}: not all of these pages are mapped; is the length right, was the memory freed? (/proc/{}/maps)",
            std::process::id()
        );
        return Err(Error::InvalidParameter);
    }
    let mut regions = nic.regions.lock();
    if regions.bytes + length > nic.info.register_bytes_max {
        log::warn!(
            target: "mem",
            "cannot register {length} bytes: {} of {} are registered (setting max_register_bytes)",
            regions.bytes, nic.info.register_bytes_max
        );
        return Err(Error::Resource);
    }
    // Held before the region exists: the tag may be destroyed at any moment until then.
    nic.ptags.lock().hold(access.tag)?;
    let handle = regions.insert(base, length, access).ok_or_else(|| {
        nic.ptags.lock().release(access.tag);
        log::info!(
            target: "mem",
            "cannot register {length} bytes: the NIC handle has {} regions, the maximum",
            regions.count()
        );
        Error::Resource
    })?;
    log::debug!(
        target: "mem",
        "region {handle:#x} registered: {length} bytes at {base:#x}, {}{}{}",
        tag_name(access.tag),
        if access.flags & VIPL_REGION_RDMA_WRITE != 0 { ", RDMA Write" } else { "" },
        if access.flags & VIPL_REGION_RDMA_READ != 0 { ", RDMA Read" } else { "" }
    );
    Ok(handle)
}

/// A tag's number as lines of the log name it.
pub(crate) fn tag_name(tag: u32) -> String {
    match tag {
        VIPL_PTAG_ANY | VIPL_PTAG_NONE => "no tag".to_owned(),
        tag => format!("tag {tag:#x}"),
    }
}

/// The memory handle of a call names no region, or the address is not the region's.
#[cold]
fn no_region(call: &str, regions: &Regions, address: VIP_PVOID, handle: u32) -> Error {
    match regions.find(handle) {
        None => log::warn!(
            target: "mem",
            "{call}: the memory handle {handle:#x} names no region of this NIC handle; was it deregistered, or registered on another one?"
        ),
        Some(entry) => log::warn!(
            target: "mem",
            "{call}: {address:?} does not belong to the region {handle:#x}, which is {:#x} to {:#x}",
            entry.base.load(Ordering::Relaxed),
            entry.end.load(Ordering::Relaxed)
        ),
    }
    Error::InvalidParameter
}

/// VipDeregisterMem. On return nobody uses the region any more.
pub fn deregister(
    nic: VIP_NIC_HANDLE,
    address: VIP_PVOID,
    handle: VIP_MEM_HANDLE,
) -> Result<(), Error> {
    let nic = nic::resolve(nic)?;
    {
        let mut regions = nic.regions.lock();
        let base = address.addr() as u64;
        let found = regions.find(handle);
        if found.is_none_or(|entry| entry.base.load(Ordering::Relaxed) != base) {
            return Err(no_region("VipDeregisterMem", &regions, address, handle));
        }
        let tag = regions.remove(handle).ok_or(Error::InvalidParameter)?;
        nic.ptags.lock().release(tag);
    }
    quiesce(&nic);
    log::debug!(target: "mem", "region {handle:#x} deregistered");
    Ok(())
}

/// Waits until no transfer uses a region that was just taken out of the table. A transfer of this
/// process holds its VI's lock; one of a partner is the plug-in's business. All partners together get
/// `QUIESCE_TIME`, so that those who are stopped cost no more than one of them, and nothing of what the
/// others need.
fn quiesce(nic: &Arc<Nic>) {
    // The clock is read only if there is somebody to wait for.
    let mut end = None;
    // To take a VI's lock is to wait for the transfer that holds it; later ones see the region gone.
    fence(Ordering::SeqCst);
    let mut busy = Vec::new();
    nic.each_vi(|slot| {
        if let Some(mut vi) = slot.lock_any()
            && let Some(link) = vi.connection
        {
            // None is given up before it was asked a second time.
            let end = *end.get_or_insert_with(|| Instant::now() + QUIESCE_TIME);
            let left = end.saturating_duration_since(Instant::now());
            let mut since = 0;
            if !vi.quiesced(&mut since, left.max(FIRST_ANSWER)) {
                busy.push((slot, link, since));
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
        // A VI that has another connection, or none, has been through `detach`.
        busy.retain_mut(|(slot, link, since)| {
            let locked = slot.lock_any().filter(|vi| vi.connection == Some(*link));
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

/// Finds the region that a handle names, if the address lies inside.
fn find_inside<'a>(
    call: &str,
    regions: &'a Regions,
    address: VIP_PVOID,
    handle: u32,
) -> Result<&'a vipl_region, Error> {
    let found = regions.find(handle).filter(|entry| {
        let inside = entry.base.load(Ordering::Relaxed)..entry.end.load(Ordering::Relaxed);
        inside.contains(&(address.addr() as u64))
    });
    found.ok_or_else(|| no_region(call, regions, address, handle))
}

/// VipQueryMem.
pub fn query(
    nic: VIP_NIC_HANDLE,
    address: VIP_PVOID,
    handle: VIP_MEM_HANDLE,
) -> Result<VIP_MEM_ATTRIBUTES, Error> {
    let nic = nic::resolve(nic)?;
    let regions = nic.regions.lock();
    let access = find_inside("VipQueryMem", &regions, address, handle)?
        .access
        .load(Ordering::Relaxed);
    Ok(VIP_MEM_ATTRIBUTES {
        Ptag: nic.ptags.lock().handle((access >> 32) as u32),
        EnableRdmaWrite: VIP_BOOLEAN::from(access as u32 & VIPL_REGION_RDMA_WRITE != 0),
        EnableRdmaRead: VIP_BOOLEAN::from(access as u32 & VIPL_REGION_RDMA_READ != 0),
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
    {
        let regions = nic.regions.lock();
        find_inside("VipSetMemAttributes", &regions, address, handle)?;
    }
    let access = access_of(&nic, Some(attributes))?;
    let regions = nic.regions.lock();
    let entry = find_inside("VipSetMemAttributes", &regions, address, handle)?;
    let mut ptags = nic.ptags.lock();
    ptags.hold(access.tag)?;
    let before = entry.access.swap(access.word(), Ordering::AcqRel);
    ptags.release((before >> 32) as u32);
    Ok(())
}

/// Why a VI with this tag may not use a range by this handle, if it may not.
pub(crate) fn objection(
    nic: *const vipl_nic,
    handle: u32,
    base: u64,
    length: u64,
    tag: u32,
) -> Option<String> {
    // SAFETY: the NIC is open while a VI of it exists.
    let nic = unsafe { &*nic };
    // SAFETY: the table has `region_count` entries, a power of two.
    let entry = unsafe { &*nic.regions.add((handle & (nic.region_count - 1)) as usize) };
    if handle == 0 || entry.handle.load(Ordering::Acquire) != handle {
        return Some(format!("{handle:#x} names no region of this NIC handle"));
    }
    let (first, end) = (
        entry.base.load(Ordering::Relaxed),
        entry.end.load(Ordering::Relaxed),
    );
    if base < first || base.checked_add(length).is_none_or(|last| last > end) {
        return Some(format!(
            "outside of the region {handle:#x}, which is {first:#x} to {end:#x}"
        ));
    }
    let region = (entry.access.load(Ordering::Relaxed) >> 32) as u32;
    if tag == region || tag == VIPL_PTAG_ANY || region == VIPL_PTAG_NONE {
        return (!is_mapped(base, length))
            .then(|| format!("the memory of the region {handle:#x} is not mapped any more"));
    }
    Some(format!(
        "the region {handle:#x} has {}, the VI {}",
        tag_name(region),
        tag_name(tag)
    ))
}

/// Whether descriptor memory is registered as the post says (strict mode, POST-03 and POST-04).
pub(crate) fn covers(nic: *const vipl_nic, handle: u32, base: u64, length: u64, tag: u32) -> bool {
    // SAFETY: the NIC is open while a VI of it exists.
    let nic = unsafe { &*nic };
    // SAFETY: the table has `region_count` entries, a power of two.
    let entry = unsafe { &*nic.regions.add((handle & (nic.region_count - 1)) as usize) };
    if handle == 0 || entry.handle.load(Ordering::Acquire) != handle {
        return false;
    }
    let region_tag = (entry.access.load(Ordering::Relaxed) >> 32) as u32;
    base.checked_add(length).is_some_and(|end| {
        entry.base.load(Ordering::Relaxed) <= base && end <= entry.end.load(Ordering::Relaxed)
    }) && (tag == VIPL_PTAG_ANY || region_tag == VIPL_PTAG_NONE || region_tag == tag)
}
