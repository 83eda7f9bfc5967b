//! A device without a network. When the library polls it, it completes what the test has planned, and records
//! it. Plans and record belong to the test's thread: for a waiting thread or the handler thread nothing has
//! arrived. Therefore the test alone decides at which call a descriptor completes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::path::PathBuf;

use vipl_abi::*;
use vipl_plugin_abi::*;

use crate::nic::resolve;
use crate::plugin::host::HOST;
use crate::plugin::loaded::LoadedPlugin;
use crate::vi::{Which, create_on};

/// Maximum descriptors of one queue: small, so that queues are often full.
pub(super) const DESCRIPTORS_MAX: u32 = 64;
/// Maximum entries of a CQ.
pub(super) const CQ_ENTRIES_MAX: u32 = 256;

/// An action of the device.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// Completed the oldest descriptor of a queue.
    Completed {
        vi: u32,
        which: Which,
        descriptor: usize,
        status: u32,
    },
    /// Reported new completions to the library.
    Signalled { vi: u32, which: Which },
}

/// Planned completions of one VI.
#[derive(Default)]
pub(super) struct Plan {
    /// Queues and statuses, in this order.
    pub due: Vec<(Which, u32)>,
    /// Whether the library is informed after each of them, or at the end.
    pub signal_each: bool,
}

/// The answers of a VI whose peer is using a region.
#[derive(Default)]
pub(crate) struct Busy {
    /// The peer finishes at the question with this number.
    pub(crate) ends: Option<usize>,
    /// The remaining time, and the word passed back by the library, at each question.
    pub(crate) asked: Vec<(u64, u64)>,
}

#[derive(Default)]
struct Bench {
    plans: BTreeMap<u32, Plan>,
    record: Vec<Event>,
    busy: BTreeMap<u32, Busy>,
    regions: Regions,
}

/// The regions reported by the library.
#[derive(Default)]
pub(crate) struct Regions {
    /// First byte, length and access of present regions, by handle.
    pub(crate) present: BTreeMap<u32, (u64, u64, u64)>,
    /// Whether the device refuses further regions and changes of access.
    pub(crate) full: bool,
}

/// Accesses the device's record of regions.
pub(crate) fn regions<R>(body: impl FnOnce(&mut Regions) -> R) -> R {
    bench(|bench| body(&mut bench.regions))
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::default();
}

fn bench<R>(body: impl FnOnce(&mut Bench) -> R) -> R {
    BENCH.with_borrow_mut(body)
}

/// Adds planned completions of a VI.
pub(super) fn plan(vi: u32, more: Plan) {
    bench(|bench| {
        let plan = bench.plans.entry(vi).or_default();
        plan.due.extend(more.due);
        plan.signal_each = more.signal_each;
    });
}

/// Number of planned completions of a queue.
pub(super) fn planned(vi: u32, which: Which) -> usize {
    bench(|bench| {
        let plan = bench.plans.get(&vi);
        plan.map_or(0, |plan| plan.due.iter().filter(|d| d.0 == which).count())
    })
}

/// Drops the plans of a VI whose connection has ended.
pub(super) fn forget(vi: u32) {
    bench(|bench| bench.plans.remove(&vi));
}

/// Sets the answers of a VI whose peer is using a region.
pub(crate) fn set_busy(vi: u32, busy: Busy) {
    bench(|bench| bench.busy.insert(vi, busy));
}

/// Takes the record of its questions.
pub(crate) fn take_busy(vi: u32) -> Busy {
    bench(|bench| bench.busy.remove(&vi)).expect("a busy VI")
}

/// Takes the record.
pub(super) fn record() -> Vec<Event> {
    bench(|bench| std::mem::take(&mut bench.record))
}

unsafe extern "C" fn nic_open(
    _argument: *const c_char,
    _nic: *mut vipl_nic,
    info: *mut vipl_nic_info,
) -> c_int {
    // SAFETY: valid for the call.
    let info = unsafe { &mut *info };
    info.address_len = 6;
    info.reliability_support = VIP_SERVICE_RELIABLE_DELIVERY;
    info.transfer_max = 65536;
    info.register_bytes_max = 1 << 20;
    info.register_block_max = 1 << 20;
    info.descriptors_max = DESCRIPTORS_MAX;
    info.cq_entries_max = CQ_ENTRIES_MAX;
    VIPL_OK
}

unsafe extern "C" fn nic_close(_nic: *mut vipl_nic) {}

unsafe extern "C" fn attach(_vi: *mut vipl_vi, _connection: *const vipl_connection) -> c_int {
    VIPL_E_NOT_SUPPORTED
}

unsafe extern "C" fn detach(_vi: *mut vipl_vi) {}

unsafe extern "C" fn peer_gone(_vi: *mut vipl_vi, _orderly: bool) {}

unsafe extern "C" fn doorbell(_vi: *mut vipl_vi) {}

unsafe extern "C" fn progress(vi: *mut vipl_vi) {
    // SAFETY: the VI is locked.
    let index = unsafe { (*vi).index };
    let Some(plan) = bench(|bench| bench.plans.remove(&index)) else {
        return;
    };
    for (which, status) in plan.due {
        // SAFETY: as above; the test plans no more than is posted.
        let descriptor = unsafe { complete(queue(vi, which), which, status) };
        let event = Event::Completed {
            vi: index,
            which,
            descriptor,
            status,
        };
        bench(|bench| bench.record.push(event));
        if plan.signal_each {
            signal_host(vi, which);
        }
    }
    if !plan.signal_each {
        signal_host(vi, Which::Send);
        signal_host(vi, Which::Recv);
    }
}

/// # Safety
/// The VI is locked.
unsafe fn queue<'a>(vi: *mut vipl_vi, which: Which) -> &'a mut vipl_queue {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match which {
            Which::Send => &mut (*vi).send,
            Which::Recv => &mut (*vi).recv,
        }
    }
}

/// # Safety
/// The VI is locked and has a descriptor that is not complete.
unsafe fn complete(queue: &mut vipl_queue, which: Which, status: u32) -> usize {
    // SAFETY: masked, so inside the ring.
    let entry = unsafe { &mut *queue.entries.add((queue.completed & queue.mask) as usize) };
    let length = if which == Which::Recv { 77 } else { 0 };
    // SAFETY: the test's descriptor; a fault is caught.
    let written = unsafe { vipl_guard::complete(entry.descriptor.cast(), 0, length, status) };
    entry.status = status;
    queue.completed = queue.completed.wrapping_add(1);
    // The oracle detects an address that was not posted.
    written.map_or(0, |()| entry.descriptor.addr())
}

fn signal_host(vi: *mut vipl_vi, which: Which) {
    // SAFETY: within `progress`, so locked.
    let (index, queue, signal) = unsafe {
        let queue: *mut vipl_queue = queue(vi, which);
        ((*vi).index, queue, (*queue).signal)
    };
    if signal != 0 {
        bench(|bench| bench.record.push(Event::Signalled { vi: index, which }));
        // SAFETY: as above.
        unsafe { (HOST.completed)(vi, queue) };
    }
}

unsafe extern "C" fn ready(_nic: *const vipl_nic, indices: *mut u32, room: u32) -> u32 {
    let due: Vec<u32> = bench(|bench| bench.plans.keys().copied().collect());
    for (place, index) in due.iter().take(room as usize).enumerate() {
        // SAFETY: within the room provided by the library.
        unsafe { indices.add(place).write(*index) };
    }
    due.len().min(room as usize) as u32
}

unsafe extern "C" fn quiesced(vi: *mut vipl_vi, since: *mut u64, left_ns: u64) -> bool {
    // SAFETY: the VI is locked, and the word is the library's.
    let (index, since) = unsafe { ((*vi).index, &mut *since) };
    let answer = |busy: &mut Busy| {
        busy.asked.push((left_ns, *since));
        *since = u64::from(index) << 32 | busy.asked.len() as u64;
        busy.ends == Some(busy.asked.len())
    };
    bench(|bench| bench.busy.get_mut(&index).is_none_or(answer))
}

unsafe extern "C" fn region_add(
    _nic: *const vipl_nic,
    handle: u32,
    base: u64,
    bytes: u64,
    access: u64,
) -> c_int {
    regions(|regions| {
        if regions.full {
            return VIPL_E_RESOURCE;
        }
        regions.present.insert(handle, (base, bytes, access));
        VIPL_OK
    })
}

unsafe extern "C" fn region_remove(_nic: *const vipl_nic, handle: u32) {
    let there = regions(|regions| regions.present.remove(&handle));
    assert!(there.is_some(), "removed once, and only what was added");
}

/// The plug-in, with or without the operation `ready`.
pub(crate) fn plugin(with_ready: bool) -> &'static LoadedPlugin {
    let ready: Option<unsafe extern "C" fn(*const vipl_nic, *mut u32, u32) -> u32> = Some(ready);
    // Never freed, like a plug-in from a file.
    Box::leak(Box::new(LoadedPlugin {
        name: "bench".to_owned(),
        version: String::new(),
        path: PathBuf::new(),
        ops: vipl_provider {
            size: size_of::<vipl_provider>(),
            claim: None,
            device: None,
            nic_open: Some(nic_open),
            nic_close: Some(nic_close),
            vi_create: None,
            vi_destroy: None,
            attach: Some(attach),
            detach: Some(detach),
            peer_gone: Some(peer_gone),
            post_send: Some(doorbell),
            post_recv: Some(doorbell),
            progress: Some(progress),
            ready: ready.filter(|_| with_ready),
            watch: None,
            arm: None,
            sleep: None,
            wake: None,
            quiesced: Some(quiesced),
            region_add: Some(region_add),
            region_remove: Some(region_remove),
        },
    }))
}

/// A VI on Reliable Delivery, without CQs.
pub(crate) fn vi(nic: VIP_NIC_HANDLE) -> VIP_VI_HANDLE {
    let attributes = VIP_VI_ATTRIBUTES {
        ReliabilityLevel: VIP_SERVICE_RELIABLE_DELIVERY,
        MaxTransferSize: 4096,
        QoS: std::ptr::null_mut(),
        Ptag: std::ptr::null_mut(),
        EnableRdmaWrite: VIP_FALSE,
        EnableRdmaRead: VIP_FALSE,
    };
    let none = std::ptr::null_mut();
    create_on(&resolve(nic).unwrap(), &attributes, none, none).unwrap()
}
