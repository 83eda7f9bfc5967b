//! VIs: the endpoint with its two work queues (spec §3.4 to §3.7, §4).
//!
//! Everything of a VI lies behind the lock of its slot, which every call takes once. The first fields
//! are what the data path uses.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kagent_proto::Attributes;
use vipl_abi::*;
use vipl_plugin_abi::*;

use crate::agent::{Side, Ticket};
use crate::cq::{self, Cq};
use crate::error::Error;
use crate::logger::log_leniency;
use crate::memory;
use crate::nic::{self, Nic};
use crate::object::handle::Kind;
use crate::object::table::{Guard, Slot, Table};
use crate::text::levels;
use crate::vi::queue::{WorkQueue, free_ring};

mod diagnosis;
pub mod queue;
pub(crate) mod state;

use state::{CONNECTED, ERROR, IDLE, PENDING};

pub(crate) static VIS: Table<Vi> = Table::new(Kind::Vi);

/// One VI.
#[repr(C)]
pub(crate) struct Vi {
    pub(crate) abi: vipl_vi,
    pub(crate) post_send: unsafe extern "C" fn(*mut vipl_vi),
    pub(crate) post_recv: unsafe extern "C" fn(*mut vipl_vi),
    progress: unsafe extern "C" fn(*mut vipl_vi),
    pub(crate) send: WorkQueue,
    pub(crate) recv: WorkQueue,
    pub(crate) check_descriptor: bool,
    pub(crate) handle: VIP_VI_HANDLE,
    pub(crate) nic: Arc<Nic>,
    attributes: VIP_VI_ATTRIBUTES,
    user_data: VIP_PVOID,
    /// The connection; set from `attach` to `detach`.
    pub(crate) connection: Option<Side>,
    /// The partner is on another host.
    pub(crate) remote: bool,
    /// The call at the agent that shall connect this VI.
    pub(crate) attempt: Option<u64>,
    /// The peer request of this VI, from the call to the taking of its result.
    pub(crate) peer: Option<Arc<Ticket<Result<Attributes, Error>>>>,
    /// Counts connections, so that a late event can be told from a new one.
    pub(crate) epoch: u64,
}

// SAFETY: raw pointers in it are only used under the slot's lock.
unsafe impl Send for Vi {}

/// Operations of the plug-in on a locked VI.
///
/// They may call the host back, which then makes a `&mut Vi` of its own from `vipl_vi.host`. So none of them runs
/// while a reference to the VI exists: all pointers come from the slot itself, not from the guard's references.
impl Guard<Vi> {
    /// The part that plug-ins see.
    #[inline(always)]
    pub(crate) fn abi(&self) -> *mut vipl_vi {
        // The first field of the VI.
        self.as_ptr().cast()
    }

    /// Lets the plug-in take what has arrived.
    #[inline(always)]
    pub(crate) fn progress(&mut self) {
        if self.abi.state == CONNECTED {
            let progress = self.progress;
            // SAFETY: attached and locked.
            unsafe { progress(self.abi()) };
        }
    }

    /// Attaches the VI to a connection; gives the plug-in's status.
    pub(crate) fn attach(&mut self, connection: &vipl_connection) -> c_int {
        let Some(attach) = self.nic.ops.attach else {
            return VIPL_E_NOT_SUPPORTED;
        };
        // SAFETY: locked and not attached.
        unsafe { attach(self.abi(), connection) }
    }

    /// Takes the VI off its connection.
    pub(crate) fn detach(&mut self) {
        if let Some(detach) = self.nic.ops.detach {
            // SAFETY: attached and locked.
            unsafe { detach(self.abi()) };
        }
    }

    /// Tells the plug-in that the partner has gone.
    pub(crate) fn tell_partner_gone(&mut self, orderly: bool) {
        if let Some(partner_gone) = self.nic.ops.partner_gone {
            // SAFETY: attached and locked.
            unsafe { partner_gone(self.abi(), c_int::from(orderly)) };
        }
    }

    /// Tells the plug-in whether somebody looks at the NIC rather than at this VI.
    pub(crate) fn set_watch(&mut self) {
        let on = self.recv.cq.is_some()
            || self.send.cq.is_some()
            || self.send.notifications() + self.recv.notifications() > 0;
        if let (Some(watch), true) = (self.nic.ops.watch, self.connection.is_some()) {
            // SAFETY: attached and locked.
            unsafe { watch(self.abi(), c_int::from(on)) };
        }
    }

    /// Whether the partner touches no region that has gone. `since` is 0 in the first call, then the plug-in's;
    /// a call with no time left is the last one.
    pub(crate) fn quiesced(&mut self, since: &mut u64, left: Duration) -> bool {
        let left_ns = left.as_nanos() as u64;
        self.nic.ops.quiesced.is_none_or(|quiesced| {
            // SAFETY: attached and locked.
            unsafe { quiesced(self.abi(), since, left_ns) != 0 }
        })
    }
}

impl Vi {
    pub(crate) fn state(&self) -> VIP_VI_STATE {
        match self.abi.state {
            CONNECTED => VIP_VI_STATE::VIP_STATE_CONNECTED,
            PENDING => VIP_VI_STATE::VIP_STATE_CONNECT_PENDING,
            ERROR => VIP_VI_STATE::VIP_STATE_ERROR,
            _ => VIP_VI_STATE::VIP_STATE_IDLE,
        }
    }

    /// What the partner learns of this VI.
    pub(crate) fn wire_attributes(&self) -> Attributes {
        Attributes {
            max_transfer_size: self.abi.max_transfer_size,
            qos: 0,
            reliability: self.abi.reliability,
            rdma_write: self.abi.rdma_write,
            rdma_read: self.abi.rdma_read,
            reserved: 0,
        }
    }

    fn take_attributes(&mut self, attributes: &VIP_VI_ATTRIBUTES, tag: u32) {
        self.attributes = *attributes;
        self.abi.max_transfer_size = attributes.MaxTransferSize as u64;
        self.abi.ptag = tag;
        self.abi.reliability = attributes.ReliabilityLevel;
        self.abi.rdma_write = u8::from(attributes.EnableRdmaWrite != 0);
        self.abi.rdma_read = u8::from(attributes.EnableRdmaRead != 0);
    }
}

/// The VI behind a handle, locked.
#[inline(always)]
pub(crate) fn lock(handle: VIP_VI_HANDLE) -> Result<Guard<Vi>, Error> {
    VIS.lock(handle).ok_or(Error::InvalidParameter)
}

/// Checks attributes in the order of VI-07 and gives the tag's number.
fn check(nic: &Nic, attributes: &VIP_VI_ATTRIBUTES) -> Result<u32, Error> {
    let level = attributes.ReliabilityLevel;
    if level.count_ones() != 1 || level & nic.info.reliability_support == 0 {
        return Err(Error::ReliabilityLevel);
    }
    let size = attributes.MaxTransferSize as u64;
    if size == 0 || size > nic.info.transfer_max {
        return Err(Error::Mtu);
    }
    if !attributes.QoS.is_null() {
        return Err(Error::Qos);
    }
    let tag = if attributes.Ptag.is_null() && nic.process.settings.null_ptag() {
        log_leniency!("a VI without a protection tag is used");
        VIPL_PTAG_ANY
    } else {
        nic.ptags.lock().number(attributes.Ptag)?
    };
    if attributes.EnableRdmaRead != 0 && level & nic.info.rdma_read_support == 0 {
        return Err(Error::RdmaRead);
    }
    Ok(tag)
}

/// VipCreateVi.
pub fn create(
    nic: VIP_NIC_HANDLE,
    attributes: &VIP_VI_ATTRIBUTES,
    send_cq: VIP_CQ_HANDLE,
    recv_cq: VIP_CQ_HANDLE,
) -> Result<VIP_VI_HANDLE, Error> {
    create_on(&nic::resolve(nic)?, attributes, send_cq, recv_cq)
}

/// The same, on a NIC that may have been closed since it was found.
pub(crate) fn create_on(
    nic: &Arc<Nic>,
    attributes: &VIP_VI_ATTRIBUTES,
    send_cq: VIP_CQ_HANDLE,
    recv_cq: VIP_CQ_HANDLE,
) -> Result<VIP_VI_HANDLE, Error> {
    let _inside = nic.enter()?;
    let send_cq = cq::attach(nic, send_cq)?;
    let recv_cq = cq::attach(nic, recv_cq).inspect_err(|_| cq::release(send_cq))?;
    take_and_insert(nic, attributes, send_cq, recv_cq).inspect_err(|_| {
        cq::release(send_cq);
        cq::release(recv_cq);
    })
}

/// Takes the tag and a number for the new VI, or gives both back.
fn take_and_insert(
    nic: &Arc<Nic>,
    attributes: &VIP_VI_ATTRIBUTES,
    send_cq: Option<&'static Slot<Cq>>,
    recv_cq: Option<&'static Slot<Cq>>,
) -> Result<VIP_VI_HANDLE, Error> {
    let tag = check(nic, attributes)?;
    nic.ptags.lock().hold(tag)?;
    let index = nic.vis.lock().take(nic.info.vis_max);
    let created = match index {
        Some(index) => insert(nic, index, attributes, tag, send_cq, recv_cq)
            .inspect_err(|_| nic.vis.lock().give(index)),
        None => {
            log::info!(target: "vi", "no more than {} VIs on one NIC handle", nic.info.vis_max);
            Err(Error::Resource)
        }
    };
    created.inspect_err(|_| nic.ptags.lock().release(tag))
}

fn insert(
    nic: &Arc<Nic>,
    index: u32,
    attributes: &VIP_VI_ATTRIBUTES,
    tag: u32,
    send_cq: Option<&'static Slot<Cq>>,
    recv_cq: Option<&'static Slot<Cq>>,
) -> Result<VIP_VI_HANDLE, Error> {
    let ops = &nic.ops;
    let (Some(post_send), Some(post_recv), Some(progress)) =
        (ops.post_send, ops.post_recv, ops.progress)
    else {
        return Err(Error::NotSupported);
    };
    let queue = |which: u32, cq: &Option<&'static Slot<Cq>>| vipl_queue {
        entries: std::ptr::null_mut(),
        mask: 0,
        posted: 0,
        completed: 0,
        taken: 0,
        signal: u32::from(cq.is_some()),
        which,
    };
    let handle = VIS
        .insert(&nic.process.vis, |handle| {
            let mut vi = Vi {
                abi: vipl_vi {
                    context: std::ptr::null_mut(),
                    nic: nic.abi(),
                    send: queue(0, &send_cq),
                    recv: queue(1, &recv_cq),
                    host: std::ptr::null_mut(),
                    max_transfer_size: 0,
                    index,
                    ptag: 0,
                    state: IDLE,
                    reliability: 0,
                    rdma_write: 0,
                    rdma_read: 0,
                },
                post_send,
                post_recv,
                progress,
                send: WorkQueue::new(send_cq),
                recv: WorkQueue::new(recv_cq),
                check_descriptor: nic.process.settings.check_descriptor_memory(),
                handle,
                nic: nic.clone(),
                attributes: *attributes,
                user_data: std::ptr::null_mut(),
                connection: None,
                remote: false,
                attempt: None,
                peer: None,
                epoch: 0,
            };
            vi.take_attributes(attributes, tag);
            vi
        })
        .ok_or(Error::Resource)?;
    let mut vi = lock(handle)?;
    vi.abi.host = vi.as_ptr().cast();
    if let Some(vi_create) = ops.vi_create {
        // SAFETY: the VI is new and locked.
        if unsafe { vi_create(vi.abi()) } != VIPL_OK {
            drop(VIS.remove(&nic.process.vis, vi, handle));
            return Err(Error::Resource);
        }
    }
    let slot = std::ptr::from_ref(vi.slot()).cast_mut();
    nic.vi_slots[index as usize].store(slot, Ordering::Release);
    log::debug!(
        target: "vi",
        "VI {handle:?} created on NIC {:?}: Idle, {}, MaxTransferSize {}, {}",
        nic.handle,
        levels(attributes.ReliabilityLevel),
        attributes.MaxTransferSize,
        memory::table::tag_name(tag)
    );
    Ok(handle)
}

/// VipDestroyVi.
pub fn destroy(handle: VIP_VI_HANDLE) -> Result<(), Error> {
    let vi = lock(handle)?;
    if vi.abi.state != IDLE {
        return Err(Error::State);
    }
    let (send, recv) = (&vi.abi.send, &vi.abi.recv);
    let left = send.posted.wrapping_sub(send.taken) + recv.posted.wrapping_sub(recv.taken);
    if left > 0 {
        if !vi.nic.process.settings.lenient_destroy() {
            log::info!(
                target: "vi",
                "VipDestroyVi refused: {left} descriptors are on the queues; collect them first (VIPL_LENIENT_DESTROY=1 drops them)"
            );
            return Err(Error::Resource);
        }
        log_leniency!("a VI with {left} descriptors on its queues was destroyed");
    }
    if let Some(vi_destroy) = vi.nic.ops.vi_destroy {
        // SAFETY: not attached, locked, and made by `vi_create`.
        unsafe { vi_destroy(vi.abi()) };
    }
    let index = vi.abi.index;
    vi.nic.vi_slots[index as usize].store(std::ptr::null_mut(), Ordering::Release);
    // Entries of this VI leave its CQs before the handle becomes invalid (spec §7.4).
    for cq in [vi.send.cq, vi.recv.cq].into_iter().flatten() {
        cq::detach(cq, handle);
    }
    let process = vi.nic.process;
    let mut vi = VIS.remove(&process.vis, vi, handle);
    free_ring(&mut vi.abi.send);
    free_ring(&mut vi.abi.recv);
    vi.nic.vis.lock().give(index);
    vi.nic.ptags.lock().release(vi.abi.ptag);
    let open = vi.send.notifications() + vi.recv.notifications();
    vi.nic.events.watch(-(open as i32), &vi.nic);
    // Threads that wait on it find the handle stale; a handler that runs for it is waited for.
    vi.nic.wake();
    vi.nic.events.forget_vi(handle);
    log::debug!(target: "vi", "VI {handle:?} destroyed");
    Ok(())
}

/// What VipQueryVi tells.
pub struct Query {
    /// State of the VI.
    pub state: VIP_VI_STATE,
    /// Its attributes, as they were asked for.
    pub attributes: VIP_VI_ATTRIBUTES,
    /// The send queue holds no descriptor, complete ones included.
    pub send_empty: bool,
    /// The same of the receive queue.
    pub recv_empty: bool,
}

/// VipQueryVi.
pub fn query(handle: VIP_VI_HANDLE) -> Result<Query, Error> {
    let vi = lock(handle)?;
    Ok(Query {
        state: vi.state(),
        attributes: vi.attributes,
        send_empty: vi.abi.send.posted == vi.abi.send.taken,
        recv_empty: vi.abi.recv.posted == vi.abi.recv.taken,
    })
}

/// VipSetViAttributes.
pub fn set_attributes(handle: VIP_VI_HANDLE, attributes: &VIP_VI_ATTRIBUTES) -> Result<(), Error> {
    let mut vi = lock(handle)?;
    let tag = check(&vi.nic, attributes)?;
    if vi.abi.state != IDLE {
        return Err(Error::State);
    }
    vi.nic.ptags.lock().hold(tag)?;
    let before = vi.abi.ptag;
    vi.take_attributes(attributes, tag);
    vi.nic.ptags.lock().release(before);
    Ok(())
}

/// VipSetUserData.
pub fn set_user_data(handle: VIP_VI_HANDLE, data: VIP_PVOID) -> Result<(), Error> {
    lock(handle)?.user_data = data;
    Ok(())
}

/// VipGetUserData.
pub fn user_data(handle: VIP_VI_HANDLE) -> Result<VIP_PVOID, Error> {
    Ok(lock(handle)?.user_data)
}

/// Whether the memory of a descriptor is registered for this VI, segments included.
pub(crate) fn descriptor_is_registered(vi: &Vi, descriptor: u64, memory: u32) -> bool {
    let control = memory::table::covers(vi.abi.nic, memory, descriptor, 32, vi.abi.ptag);
    // SAFETY: the control segment is registered; a fault is caught all the same.
    let image = control.then(|| unsafe { vipl_guard::load_descriptor(descriptor as *const u8) });
    image.and_then(Result::ok).is_some_and(|image| {
        let bytes = 32 + 16 * u64::from(image.seg_count);
        memory::table::covers(vi.abi.nic, memory, descriptor, bytes, vi.abi.ptag)
    })
}
