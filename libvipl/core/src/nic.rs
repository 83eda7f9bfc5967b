//! NICs: one opening of one device (spec §3.1 to §3.3).
//!
//! A NIC owns its protection tags, regions, numbers of VIs and pending calls of handlers. VIs and CQs hold a
//! reference to it; it refers to its VIs by their handles only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::thread::Thread;

use vipl_abi::*;
use vipl_pages::layout;
use vipl_plugin_abi::*;
use vipl_sys::{cancel, table};

use crate::agent::{Agents, NicRegistration};
use crate::error::Error;
use crate::layers;
use crate::logger::log_failure;
use crate::memory::Memory;
use crate::names::table::Names;
use crate::object::handle::Kind;
use crate::object::table::Table;
use crate::plugin::loaded::LoadedPlugin;
use crate::process::{Ends, Process};
use crate::sync::{Mutex, OnceLock};

pub(crate) mod events;
mod gate;
pub(crate) mod idle;
pub(crate) mod notices;
mod numbers;
pub(crate) mod shared;
pub(crate) mod wait;
pub(crate) mod waiters;

use events::{Events, Job};
use gate::{Gate, Inside};
use notices::Notice;
use numbers::Numbers;
use shared::Shared;

static NICS: Table<Arc<Nic>> = Table::new(Kind::Nic);

/// One opening of one device.
pub struct Nic {
    shared: Arc<Shared>,
    pub(crate) handle: VIP_NIC_HANDLE,
    pub(crate) process: &'static Process,
    pub(crate) plugin: &'static LoadedPlugin,
    pub(crate) ops: vipl_provider,
    pub(crate) info: vipl_nic_info,
    /// The target of LocalNicAddress.
    address: Box<[u8; VIPL_ADDRESS_MAX]>,
    /// The registration at the agent.
    pub(crate) registration: Arc<NicRegistration>,
    /// What `vipstat` sees of it.
    pub(crate) page: &'static layout::Nic,
    pub(crate) memory: Mutex<Memory>,
    /// Held while changes to a region are reported to the plug-in, so that it receives them in order.
    pub(crate) region_changes: Mutex<()>,
    /// Numbers of VIs in use; and the handle of the VI with each number; 0: none.
    vis: Mutex<Numbers>,
    /// Upper bound of the numbers of VIs. It changes under `vis`.
    vi_bound: AtomicU32,
    vi_handles: Box<[AtomicUsize]>,
    pub(crate) cq_count: AtomicU32,
    /// Unanswered connection handles.
    pub(crate) incoming: Mutex<Vec<usize>>,
    pub(crate) events: Events,
    pub(crate) names: Mutex<Option<Names>>,
    gate: Gate,
    pub(crate) closing: AtomicBool,
    /// Whether the failure of the device has been reported.
    failure_reported: AtomicBool,
    /// Number of threads that sleep on this NIC, or are about to.
    sleepers: AtomicU32,
    /// The thread that makes progress if the plug-in has none; it sleeps while there are no VIs.
    pub(crate) poller: OnceLock<Thread>,
}

// SAFETY: handles and table pointers are plain values; everything mutable has its own lock.
unsafe impl Send for Nic {}
// SAFETY: as above.
unsafe impl Sync for Nic {}

impl Nic {
    /// The part visible to plug-ins.
    pub(crate) fn abi(&self) -> *const vipl_nic {
        Shared::abi(&self.shared)
    }

    /// Whether the device has failed: nothing can be connected any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.has_failed()
    }

    /// Claims the report of the device's failure; returns true once.
    pub(crate) fn claim_failure_report(&self) -> bool {
        !self.failure_reported.swap(true, Ordering::SeqCst)
    }

    /// The agents that this NIC is registered with, one after the other.
    pub(crate) fn agents(&self) -> &'static Agents {
        &self.process.agents
    }

    /// To be held while an object is created that VipCloseNic must see. Fails if the NIC is closed.
    pub(crate) fn enter(&self) -> Result<Inside<'_>, Error> {
        self.gate.enter()
    }

    /// Checks for VipCloseNic that no object is left.
    pub(crate) fn check_empty(&self) -> Result<(), Error> {
        let (tags, regions) = {
            let memory = self.memory.lock();
            (memory.ptags.count(), memory.regions.count())
        };
        let left = [
            ("VIs", self.vis.lock().in_use() as usize),
            ("CQs", self.cq_count.load(Ordering::Acquire) as usize),
            ("protection tags", tags),
            ("memory regions", regions),
        ];
        if left.iter().all(|(_, count)| *count == 0) {
            return Ok(());
        }
        let text: Vec<String> = left
            .iter()
            .filter(|(_, n)| *n > 0)
            .map(|(what, n)| format!("{n} {what}"))
            .collect();
        log_failure!(
            "nic",
            self.handle.addr(),
            "VipCloseNic refused: {} left; destroy them first",
            text.join(", ")
        );
        Err(Error::Resource)
    }

    pub(crate) fn address(&self) -> &[u8] {
        &self.info.address[..usize::from(self.info.address_len)]
    }

    /// Upper bound of the numbers of this NIC's VIs.
    #[inline]
    pub(crate) fn vi_bound(&self) -> u32 {
        self.vi_bound.load(Ordering::SeqCst)
    }

    /// A number for a new VI; `None` if the device allows no more.
    pub(crate) fn take_vi_number(&self) -> Option<u32> {
        let mut vis = self.vis.lock();
        let number = vis.take(self.info.vis_max)?;
        self.vi_bound.store(vis.bound(), Ordering::SeqCst);
        drop(vis);
        // Pairs with the fence of a deregistration: either it sees the bound and visits the VI, or the VI's
        // later transfers see that the region was removed.
        fence(Ordering::SeqCst);
        if let Some(poller) = self.poller.get() {
            poller.unpark();
        }
        Some(number)
    }

    /// Releases the number of a destroyed VI.
    pub(crate) fn release_vi_number(&self, number: u32) {
        let mut vis = self.vis.lock();
        vis.release(number);
        self.vi_bound.store(vis.bound(), Ordering::SeqCst);
    }

    /// Handle of the VI with this number; NULL if there is none.
    #[inline]
    pub(crate) fn vi_handle(&self, index: u32) -> VIP_VI_HANDLE {
        let place = self.vi_handles.get(index as usize);
        std::ptr::without_provenance_mut(place.map_or(0, |vi| vi.load(Ordering::Acquire)))
    }

    /// Sets the handle of the VI with this number; NULL removes it.
    pub(crate) fn set_vi_handle(&self, index: u32, vi: VIP_VI_HANDLE) {
        self.vi_handles[index as usize].store(vi.addr(), Ordering::Release);
    }

    /// Queues calls for the handler thread.
    pub(crate) fn push(&self, jobs: Vec<Job>) {
        if self.events.push(jobs) {
            self.wake();
        }
    }

    /// Counts open notify requests.
    pub(crate) fn count_requests(&self, change: i32) {
        if self.events.count_requests(change) {
            self.wake();
        }
    }

    /// Fills the record of a new NIC.
    fn publish(&self) {
        let (page, info) = (self.page, &self.info);
        page.sequence.change(|| {
            page.address.set(self.address());
            page.address_bytes.set(info.address_len);
            page.address_form.set(info.address_form);
            page.transfer_max.set(info.transfer_max);
            page.vis_max.set(info.vis_max);
            page.plugin.set(self.plugin.name.as_bytes());
            let name = info.name.map(|byte| byte as u8);
            page.device
                .set(name.split(|byte| *byte == 0).next().unwrap_or_default());
            page.errors.set(0_u64);
            self.publish_memory(&self.memory.lock());
            page.handle.set(self.handle.addr() as u64);
        });
    }

    /// Publishes how much memory is registered.
    pub(crate) fn publish_memory(&self, memory: &Memory) {
        self.page.regions.set(memory.regions.count() as u64);
        self.page.region_bytes.set(memory.regions.bytes());
        self.page.tags.set(memory.ptags.count() as u64);
    }

    /// Raises an asynchronous error.
    pub(crate) fn raise(&self, error: VIP_ERROR_DESCRIPTOR) {
        layers::error(&error);
        self.page.errors.add(1);
        if self.events.raise(error) {
            self.wake();
        }
    }

    /// Schedules the report of a lost connection.
    pub(crate) fn report_later(&self, notice: Notice) {
        if self.events.add_notice(notice) {
            self.wake();
        }
    }

    /// Wakes all threads that sleep on this NIC. This takes a system call, which polling threads do not need.
    pub(crate) fn wake(&self) {
        // Pairs with the fence in `fall_asleep`: either the sleeper is seen here, or its last check sees the
        // change.
        fence(Ordering::SeqCst);
        if let (1.., Some(wake)) = (self.sleepers.load(Ordering::Relaxed), self.ops.wake) {
            let _off = cancel::Off::new();
            // SAFETY: the NIC is open.
            unsafe { wake(self.abi()) };
        }
    }

    /// Counts a sleeper while the result lives. To be called before its last check.
    pub(crate) fn fall_asleep(&self) -> impl Drop + use<'_> {
        struct Asleep<'a>(&'a AtomicU32);
        impl Drop for Asleep<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Asleep(&self.sleepers)
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
            MaxRegisterBytes: at_most(info.register_bytes_max),
            MaxRegisterRegions: info.regions_max as VIP_ULONG,
            MaxRegisterBlockBytes: at_most(info.register_block_max),
            MaxVI: info.vis_max as VIP_ULONG,
            MaxDescriptorsPerQueue: info.descriptors_max as VIP_ULONG,
            MaxSegmentsPerDesc: info.segments_max as VIP_ULONG,
            MaxCQ: info.cqs_max as VIP_ULONG,
            MaxCQEntries: info.cq_entries_max as VIP_ULONG,
            MaxTransferSize: at_most(info.transfer_max),
            NativeMTU: info.native_mtu as VIP_ULONG,
            MaxPtags: info.ptags_max as VIP_ULONG,
            ReliabilityLevelSupport: info.reliability_support,
            RDMAReadSupport: info.rdma_read_support,
        }
    }
}

/// Limits a value to the application's word, which is shorter than the plug-in's in a 32-bit process.
pub(crate) fn at_most(limit: u64) -> VIP_ULONG {
    limit.min(VIP_ULONG::MAX as u64) as VIP_ULONG
}

/// Inserts an opened device into the table of NICs. `None` if the table is full.
pub(crate) fn insert(
    process: &'static Process,
    plugin: &'static LoadedPlugin,
    shared: &Arc<Shared>,
    info: vipl_nic_info,
    registration: &Arc<NicRegistration>,
) -> Option<Arc<Nic>> {
    let mut made = None;
    NICS.insert(&process.nics, |handle| {
        let seed = handle.addr() as u32;
        let nic = Arc::new(Nic {
            handle,
            process,
            sleepers: AtomicU32::new(0),
            plugin,
            ops: plugin.ops,
            address: Box::new(info.address),
            registration: registration.clone(),
            page: process.pages().nic(handle.addr()),
            memory: Mutex::new(Memory::new(&info, seed)),
            region_changes: Mutex::default(),
            vis: Mutex::default(),
            vi_bound: AtomicU32::new(0),
            // SAFETY: zeroes are valid.
            vi_handles: unsafe { table::zeroed(info.vis_max as usize) },
            cq_count: AtomicU32::new(0),
            incoming: Mutex::default(),
            events: Events::default(),
            names: Mutex::new(None),
            gate: Gate::default(),
            closing: AtomicBool::new(false),
            failure_reported: AtomicBool::new(false),
            poller: OnceLock::new(),
            info,
            shared: shared.clone(),
        });
        shared.set_host(Arc::as_ptr(&nic).cast());
        made.insert(nic).clone()
    })?;
    let made = made?;
    made.publish();
    let ends: Arc<dyn Ends> = made.clone();
    process.notify_of_end(Arc::downgrade(&ends));
    Some(made)
}

/// Records that the device has failed. `None` if its NIC is still being opened, which will detect the
/// failure.
///
/// # Safety
/// `nic` came from [`Nic::abi`], and the NIC is open, or being opened, as long as the result is used.
pub(crate) unsafe fn device_failed<'a>(nic: *const vipl_nic) -> Option<&'a Nic> {
    // SAFETY: guaranteed by the caller; the host's word is NULL or the NIC.
    unsafe { shared::fail(nic).cast::<Nic>().as_ref() }
}

/// The NIC referred to by a thread of the plug-in.
///
/// # Safety
/// `nic` came from [`Nic::abi`], and the NIC is open as long as the result is used.
pub(crate) unsafe fn of_plugin<'a>(nic: *const vipl_nic) -> &'a Nic {
    // SAFETY: an open NIC has its host's word, which is the NIC.
    unsafe { &*shared::host(nic).cast::<Nic>() }
}

/// Removes a NIC from the table; its handle becomes stale. Refused while an object is left on it.
pub(crate) fn remove(nic: &Nic) -> Result<(), Error> {
    nic.gate.close(|| nic.check_empty())?;
    let guard = NICS.lock(nic.handle).ok_or(Error::InvalidParameter)?;
    nic.closing.store(true, Ordering::Release);
    nic.process.pages().nic_closed(nic.page);
    drop(NICS.remove(&nic.process.nics, guard, nic.handle));
    Ok(())
}

/// The NIC behind a handle.
#[inline]
pub fn resolve(handle: VIP_NIC_HANDLE) -> Result<Arc<Nic>, Error> {
    NICS.lock(handle)
        .map(|nic| nic.clone())
        .ok_or(Error::InvalidParameter)
}

impl Ends for Nic {
    fn process_ends(&self) {
        self.events.log_undelivered(self.handle);
    }
}

impl Drop for Nic {
    /// The device is closed when no thread can be inside it any more: a thread that waits on an object that
    /// was just destroyed holds the NIC until it has noticed.
    fn drop(&mut self) {
        if let Some(poller) = self.poller.get() {
            poller.unpark();
        }
        self.shared.close(&self.ops);
    }
}
