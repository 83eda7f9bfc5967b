//! NICs: one opening of one device (spec §3.1 to §3.3). Owner of all other objects.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::sync::Mutex;
use vipl_abi::*;
use vipl_plugin_abi::*;

use crate::agent::{Agents, NicRegistration};
use crate::cq::Cq;
use crate::error::Error;
use crate::memory::table::Regions;
use crate::memory::tags::Ptags;
use crate::names::table::Names;
use crate::nic::events::Events;
use crate::object::handle::Kind;
use crate::object::table::{Slot, Table};
use crate::plugin::loader::LoadedPlugin;
use crate::plugin::map;
use crate::plugin::map::Nowhere;
use crate::process::{self, Process};
use crate::text::{hexadecimal, levels};
use crate::vi::Vi;

mod check;
mod door;
pub mod events;
mod failed;
pub(crate) mod idle;
#[cfg(test)]
mod tests;
pub(crate) mod wait;

use check::{check_info, refused};
use door::Door;
pub(crate) use door::Inside;
pub(crate) use failed::device_failed;
use failed::host_of;

/// Longest device name in bytes.
const NAME_BYTES_MAX: usize = 63;
/// Times a poll asks the plug-in which VIs have something.
const READY_ROUNDS: u32 = 16;

static NICS: Table<Arc<Nic>> = Table::new(Kind::Nic);

/// The part of a NIC that plug-ins see, at a fixed address, first: its address is that of the whole.
#[repr(C)]
struct Shared {
    nic: UnsafeCell<vipl_nic>,
    /// The plug-in says that the device has failed.
    failed: AtomicBool,
    /// The table of regions, where the plug-in has none of its own.
    regions: Option<Box<[vipl_region]>>,
}
// SAFETY: written during open only; afterwards read by everybody.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointers in it are the plug-in's and the host's own.
unsafe impl Send for Shared {}

/// One opening of one device.
pub struct Nic {
    shared: Box<Shared>,
    pub(crate) handle: VIP_NIC_HANDLE,
    pub(crate) process: &'static Process,
    pub(crate) plugin: &'static LoadedPlugin,
    pub(crate) ops: vipl_provider,
    pub(crate) info: vipl_nic_info,
    /// What LocalNicAddress points to.
    address: Box<[u8; VIPL_ADDRESS_MAX]>,
    /// The agent and its name for this NIC.
    pub(crate) registration: Arc<NicRegistration>,
    pub(crate) regions: Mutex<Regions>,
    /// Held while the plug-in is told of changes to a region, so that it hears of them in their order.
    pub(crate) region_changes: Mutex<()>,
    pub(crate) ptags: Mutex<Ptags>,
    /// VI numbers in use, and where each VI is.
    pub(crate) vis: Mutex<Numbers>,
    pub(crate) vi_slots: Box<[AtomicPtr<Slot<Vi>>]>,
    pub(crate) cq_count: AtomicU32,
    /// Connection handles that were not answered yet.
    pub(crate) incoming: Mutex<Vec<usize>>,
    pub(crate) events: Events,
    pub(crate) names: Mutex<Option<Names>>,
    door: Door,
    pub(crate) closing: AtomicBool,
    /// VIs have been told that the device failed.
    mourned: AtomicBool,
}

// SAFETY: handles and table pointers are plain values; everything that changes has its own lock.
unsafe impl Send for Nic {}
// SAFETY: as above.
unsafe impl Sync for Nic {}

/// Small numbers, the lowest free one first.
#[derive(Default)]
pub(crate) struct Numbers {
    free: std::collections::BinaryHeap<std::cmp::Reverse<u32>>,
    used: u32,
    in_use: u32,
}

impl Numbers {
    pub(crate) fn take(&mut self, max: u32) -> Option<u32> {
        let number = match self.free.pop() {
            Some(std::cmp::Reverse(number)) => number,
            None if self.used < max => {
                self.used += 1;
                self.used - 1
            }
            None => return None,
        };
        self.in_use += 1;
        Some(number)
    }

    pub(crate) fn give(&mut self, number: u32) {
        self.in_use -= 1;
        self.free.push(std::cmp::Reverse(number));
    }

    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    /// One past the highest number ever used.
    pub(crate) fn bound(&self) -> u32 {
        self.used
    }
}

impl Nic {
    /// The part that plug-ins see.
    pub(crate) fn abi(&self) -> *const vipl_nic {
        self.shared.nic.get()
    }

    /// The agents that this NIC is registered with, one after the other.
    pub(crate) fn agents(&self) -> &'static Agents {
        &self.process.agents
    }

    /// To be held while something is made that VipCloseNic would have to see. An error: it is closed.
    pub(crate) fn enter(&self) -> Result<Inside<'_>, Error> {
        self.door.enter()
    }

    /// What is left on it, as VipCloseNic sees it.
    fn check_empty(&self) -> Result<(), Error> {
        let left = [
            ("VIs", self.vis.lock().in_use() as usize),
            ("CQs", self.cq_count.load(Ordering::Acquire) as usize),
            ("protection tags", self.ptags.lock().count()),
            ("memory regions", self.regions.lock().count()),
        ];
        if left.iter().all(|(_, count)| *count == 0) {
            return Ok(());
        }
        let text: Vec<String> = left
            .iter()
            .filter(|(_, n)| *n > 0)
            .map(|(what, n)| format!("{n} {what}"))
            .collect();
        log::info!(target: "nic", "VipCloseNic refused: {} left", text.join(", "));
        Err(Error::Resource)
    }

    pub(crate) fn address(&self) -> &[u8] {
        &self.info.address[..usize::from(self.info.address_len)]
    }

    /// Every VI of this NIC that may exist now.
    pub(crate) fn each_vi(&self, mut visit: impl FnMut(&'static Slot<Vi>)) {
        let bound = self.vis.lock().bound() as usize;
        for place in &self.vi_slots[..bound] {
            // SAFETY: slots are never unmapped.
            if let Some(slot) = unsafe { place.load(Ordering::Acquire).as_ref() } {
                visit(slot);
            }
        }
    }

    /// The slot of the VI with this number.
    pub(crate) fn vi_slot(&self, index: u32) -> Option<&'static Slot<Vi>> {
        // SAFETY: slots are never unmapped.
        unsafe {
            self.vi_slots
                .get(index as usize)?
                .load(Ordering::Acquire)
                .as_ref()
        }
    }

    /// Lets every VI that may have something take it.
    pub(crate) fn progress(&self) {
        let Some(ready) = self.ops.ready else {
            self.each_vi(|slot| {
                if let Some(mut vi) = slot.lock_any() {
                    vi.progress();
                }
            });
            return;
        };
        let mut indices = [0u32; 128];
        for _ in 0..READY_ROUNDS {
            // SAFETY: the NIC is open; the plug-in writes at most `room` numbers.
            let found = unsafe { ready(self.abi(), indices.as_mut_ptr(), indices.len() as u32) };
            if found == 0 {
                break;
            }
            for &index in indices.iter().take(found as usize) {
                if let Some(mut vi) = self.vi_slot(index).and_then(|slot| slot.lock_any())
                    && std::ptr::eq(vi.abi.nic, self.abi())
                {
                    vi.progress();
                }
            }
        }
    }

    /// Ends every sleep on this NIC.
    pub(crate) fn wake(&self) {
        if let Some(wake) = self.ops.wake {
            // SAFETY: the NIC is open.
            unsafe { wake(self.abi()) };
        }
    }

    pub(crate) fn attributes(&self) -> VIP_NIC_ATTRIBUTES {
        let info = &self.info;
        VIP_NIC_ATTRIBUTES {
            Name: info.name,
            HardwareVersion: info.hardware_version as VIP_ULONG,
            ProviderVersion: info.provider_version as VIP_ULONG,
            NicAddressLen: info.address_len,
            LocalNicAddress: self.address.as_ptr(),
            ThreadSafe: VIP_TRUE,
            MaxDiscriminatorLen: info.discriminator_max,
            MaxRegisterBytes: info.register_bytes_max as VIP_ULONG,
            MaxRegisterRegions: info.regions_max as VIP_ULONG,
            MaxRegisterBlockBytes: info.register_block_max as VIP_ULONG,
            MaxVI: info.vis_max as VIP_ULONG,
            MaxDescriptorsPerQueue: info.descriptors_max as VIP_ULONG,
            MaxSegmentsPerDesc: info.segments_max as VIP_ULONG,
            MaxCQ: info.cqs_max as VIP_ULONG,
            MaxCQEntries: info.cq_entries_max as VIP_ULONG,
            MaxTransferSize: info.transfer_max as VIP_ULONG,
            NativeMTU: info.native_mtu as VIP_ULONG,
            MaxPtags: info.ptags_max as VIP_ULONG,
            ReliabilityLevelSupport: info.reliability_support,
            RDMAReadSupport: info.rdma_read_support,
        }
    }
}

/// The NIC behind a handle.
#[inline]
pub fn resolve(handle: VIP_NIC_HANDLE) -> Result<Arc<Nic>, Error> {
    NICS.lock(handle)
        .map(|nic| nic.clone())
        .ok_or(Error::InvalidParameter)
}

/// What later calls take for granted, so that none of them has to make it when data waits.
fn prepare() -> &'static Process {
    vipl_guard::install();
    crate::object::barrier::prepare();
    process::get()
}

/// VipOpenNic.
pub fn open(name: &CStr) -> Result<VIP_NIC_HANDLE, Error> {
    let process = prepare();
    let name = name.to_str().map_err(|_| Error::InvalidParameter)?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        log::warn!(target: "nic", "cannot open {name:?}: a device name has 1 to {NAME_BYTES_MAX} bytes");
        return Err(Error::InvalidParameter);
    }
    let route = map::find(process, name).map_err(|why| match why {
        Nowhere::Unknown(tried) => {
            log::warn!(target: "nic", "cannot open {name:?}: {tried}");
            Error::InvalidParameter
        }
        Nowhere::Shortage(what) => {
            log::error!(target: "nic", "cannot open {name:?}: {what}");
            Error::Resource
        }
    })?;
    log::info!(
        target: "nic",
        "{name} is served by {}:{} ({})", route.plugin.name, route.argument, route.reason
    );
    open_route(process, &route)
}

fn open_route(process: &'static Process, route: &map::Route) -> Result<VIP_NIC_HANDLE, Error> {
    process.agents.want()?;
    let (shared, info) = open_device(process, route)?;
    finish_open(process, route, shared, info)
}

/// Calls the plug-in's `nic_open` and checks what it says.
fn open_device(
    process: &Process,
    route: &map::Route,
) -> Result<(Box<Shared>, vipl_nic_info), Error> {
    let settings = &process.settings;
    let mut options = 0;
    if settings.carry_unflagged_immediate() {
        options |= VIPL_OPTION_CARRY_IMMEDIATE;
    }
    if settings.check_descriptor_memory() {
        options |= VIPL_OPTION_CHECK_DESCRIPTOR;
    }
    if settings.check_receive_whole() {
        options |= VIPL_OPTION_CHECK_RECEIVE_WHOLE;
    }
    let nic = UnsafeCell::new(vipl_nic {
        context: std::ptr::null_mut(),
        host: std::ptr::null_mut(),
        regions: std::ptr::null(),
        region_count: 0,
        options,
        segments_max: 0,
        reserved: 0,
    });
    let mut shared = Box::new(Shared {
        nic,
        failed: AtomicBool::new(false),
        regions: None,
    });
    let mut info = route.plugin.blank_info();
    let argument =
        std::ffi::CString::new(route.argument.as_str()).map_err(|_| Error::InvalidParameter)?;
    let Some(nic_open) = route.plugin.ops.nic_open else {
        return Err(Error::NotSupported);
    };
    // SAFETY: all three are valid for the call; the plug-in keeps the NIC's address only.
    let status = unsafe { nic_open(argument.as_ptr(), shared.nic.get(), &raw mut info) };
    if status != VIPL_OK {
        return Err(refused(route, status));
    }
    if let Err(what) = check_info(&info) {
        log::error!(
            target: "plugin",
            "{}: nic_open describes an impossible device: {what}; the plug-in is {}",
            route.plugin.name,
            route.plugin.path.display()
        );
        close_device(&route.plugin.ops, &shared);
        return Err(Error::Resource);
    }
    let mut own_regions: Option<Box<[vipl_region]>> = None;
    if info.regions.is_null() {
        let made = (0..info.regions_max).map(|_| crate::memory::table::free_region());
        info.regions = own_regions.insert(made.collect()).as_mut_ptr();
    }
    // SAFETY: nobody else has the NIC yet.
    unsafe {
        let nic = &mut *shared.nic.get();
        nic.regions = info.regions;
        nic.region_count = info.regions_max;
        nic.segments_max = info.segments_max;
    }
    shared.regions = own_regions;
    Ok((shared, info))
}

fn close_device(ops: &vipl_provider, shared: &Shared) {
    if let Some(nic_close) = ops.nic_close {
        // SAFETY: opened by `nic_open`; closed once.
        unsafe { nic_close(shared.nic.get()) };
    }
}

fn finish_open(
    process: &'static Process,
    route: &map::Route,
    shared: Box<Shared>,
    info: vipl_nic_info,
) -> Result<VIP_NIC_HANDLE, Error> {
    let registration = process
        .agents
        .open_nic(&route.plugin.name, &info)
        .inspect_err(|_| close_device(&route.plugin.ops, &shared))?;
    insert(process, route.plugin, shared, info, registration)
}

/// Makes the handle of an opened device.
fn insert(
    process: &'static Process,
    plugin: &'static LoadedPlugin,
    shared: Box<Shared>,
    info: vipl_nic_info,
    registration: Arc<NicRegistration>,
) -> Result<VIP_NIC_HANDLE, Error> {
    let mut shared = Some((shared, registration));
    let inserted = NICS.insert(&process.nics, |handle| {
        // `insert` calls this at most once.
        let (shared, registration) = shared.take().unwrap_or_else(|| unreachable!());
        let seed = handle.addr() as u32;
        let nic = Arc::new(Nic {
            handle,
            process,
            plugin,
            ops: plugin.ops,
            address: Box::new(info.address),
            registration,
            regions: Mutex::new(Regions::new(info.regions, info.regions_max, seed)),
            region_changes: Mutex::default(),
            ptags: Mutex::new(Ptags::new(seed, info.ptags_max)),
            vis: Mutex::default(),
            vi_slots: (0..info.vis_max).map(|_| AtomicPtr::default()).collect(),
            cq_count: AtomicU32::new(0),
            incoming: Mutex::default(),
            events: Events::default(),
            names: Mutex::new(None),
            door: Door::default(),
            closing: AtomicBool::new(false),
            mourned: AtomicBool::new(false),
            info,
            shared,
        });
        // SAFETY: the Arc outlives every use by the plug-in.
        let host = unsafe { host_of(nic.abi()) };
        host.store(Arc::as_ptr(&nic).cast_mut().cast(), Ordering::SeqCst);
        if nic.has_failed() {
            nic.mourn();
        }
        log::debug!(
            target: "nic",
            "NIC {handle:?} opened: plug-in {}, address {}, {}, messages up to {} bytes",
            plugin.name,
            hexadecimal(nic.address()),
            levels(nic.info.reliability_support),
            nic.info.transfer_max
        );
        nic
    });
    inserted.ok_or_else(|| {
        if let Some((shared, registration)) = shared {
            process.agents.close_nic(&registration);
            close_device(&plugin.ops, &shared);
        }
        log::error!(target: "nic", "too many NIC handles in this process; VipCloseNic releases them");
        Error::Resource
    })
}

/// A NIC of a plug-in that is part of a test. No agent knows it: nothing on it can be connected by one.
#[cfg(test)]
pub(crate) fn open_without_agent(plugin: &'static LoadedPlugin) -> Result<VIP_NIC_HANDLE, Error> {
    let process = prepare();
    let route = map::Route {
        plugin,
        argument: String::new(),
        reason: String::new(),
    };
    let (shared, info) = open_device(process, &route)?;
    let registration = Arc::new(NicRegistration::new(&plugin.name, &info));
    insert(process, plugin, shared, info, registration)
}

/// VipCloseNic.
pub fn close(handle: VIP_NIC_HANDLE) -> Result<(), Error> {
    let nic = resolve(handle)?;
    if nic.events.on_handler_thread() {
        log::info!(target: "nic", "VipCloseNic refused: a handler of this NIC handle called it");
        return Err(Error::Resource);
    }
    nic.door.shut(|| nic.check_empty())?;
    let guard = NICS.lock(handle).ok_or(Error::InvalidParameter)?;
    nic.closing.store(true, Ordering::Release);
    drop(NICS.remove(&nic.process.nics, guard, handle));
    crate::connect::forget_incoming(&nic);
    nic.agents().close_nic(&nic.registration);
    nic.events.stop(&nic);
    log::debug!(target: "nic", "NIC {handle:?} closed");
    Ok(())
}

impl Drop for Nic {
    /// The device is closed when nobody can be inside it any more: a thread that still waits on an object
    /// that has just been destroyed holds the NIC until it has noticed.
    fn drop(&mut self) {
        close_device(&self.ops, &self.shared);
    }
}

/// VipQueryNic.
pub fn query(handle: VIP_NIC_HANDLE) -> Result<VIP_NIC_ATTRIBUTES, Error> {
    Ok(resolve(handle)?.attributes())
}

/// Whether a CQ belongs to this NIC.
pub(crate) fn owns_cq(nic: &Arc<Nic>, cq: &Cq) -> bool {
    Arc::ptr_eq(nic, &cq.nic)
}
