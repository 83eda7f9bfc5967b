//! VipCreateVi, VipDestroyVi and the calls about attributes (spec §3.4 to §3.7).

use std::sync::Arc;

use vipl_abi::*;
use vipl_plugin_abi::*;
use vipl_sys::wrap;

use super::queue::{CqSlot, Which, WorkQueue, free_ring};
use super::state::IDLE;
use super::{VIS, Vi, lock};
use crate::cq;
use crate::error::Error;
use crate::logger::log_failure;
use crate::logger::log_leniency;
use crate::memory::table::tag_name;
use crate::nic::{self, Nic};
use crate::text::levels;

/// Checks attributes in the order of VI-07 and returns the tag's number.
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
        nic.memory.lock().ptags.number(attributes.Ptag)?
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

/// The same, on a NIC that may have been closed since the lookup.
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

/// Takes the tag and a number for the new VI; releases both on failure.
fn take_and_insert(
    nic: &Arc<Nic>,
    attributes: &VIP_VI_ATTRIBUTES,
    send_cq: Option<CqSlot>,
    recv_cq: Option<CqSlot>,
) -> Result<VIP_VI_HANDLE, Error> {
    let tag = check(nic, attributes)?;
    nic.memory.lock().ptags.hold(tag)?;
    let index = nic.take_vi_number();
    let created = match index {
        Some(index) => insert(nic, index, attributes, tag, send_cq, recv_cq)
            .inspect_err(|_| nic.release_vi_number(index)),
        None => {
            log_failure!(
                "vi",
                nic.handle.addr(),
                "no more than {} VIs on one NIC handle",
                nic.info.vis_max
            );
            Err(Error::Resource)
        }
    };
    created.inspect_err(|_| nic.memory.lock().ptags.release(tag))
}

/// The receive doorbell for plug-ins without one.
unsafe extern "C" fn no_doorbell(_vi: *mut vipl_vi) {}

fn insert(
    nic: &Arc<Nic>,
    index: u32,
    attributes: &VIP_VI_ATTRIBUTES,
    tag: u32,
    send_cq: Option<CqSlot>,
    recv_cq: Option<CqSlot>,
) -> Result<VIP_VI_HANDLE, Error> {
    let ops = &nic.ops;
    let (Some(post_send), Some(progress)) = (ops.post_send, ops.progress) else {
        return Err(Error::NotSupported);
    };
    let post_recv = ops.post_recv.unwrap_or(no_doorbell);
    let queue = |which: u32, cq: &Option<CqSlot>| vipl_queue {
        entries: std::ptr::null_mut(),
        mask: 0,
        posted: wrap::start(0),
        completed: wrap::start(0),
        taken: wrap::start(0),
        signal: u32::from(cq.is_some()),
        which,
    };
    let handle = VIS
        .insert(&nic.process.vis, |handle| {
            let (counts, page) = nic.process.pages().vi(handle.addr());
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
                counts,
                page,
                sampler: None,
                slot: None,
                nic: nic.clone(),
                attributes: *attributes,
                user_data: std::ptr::null_mut(),
                early_logged: false,
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
    vi.slot = Some(vi.slot());
    if let Some(vi_create) = ops.vi_create {
        // SAFETY: the VI is new and locked.
        if unsafe { vi_create(vi.abi()) } != VIPL_OK {
            nic.process.pages().vi_destroyed(vi.page);
            drop(VIS.remove(&nic.process.vis, vi, handle));
            return Err(Error::Resource);
        }
    }
    vi.publish();
    nic.set_vi_handle(index, handle);
    log::debug!(
        target: "vi",
        "VI {handle:?} created on NIC {:?}: Idle, {}, MaxTransferSize {}, {}",
        nic.handle,
        levels(attributes.ReliabilityLevel),
        attributes.MaxTransferSize,
        tag_name(tag)
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
            log_failure!(
                "vi",
                handle.addr(),
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
    vi.nic.set_vi_handle(index, std::ptr::null_mut());
    // Entries of this VI leave its CQs before the handle becomes invalid (spec §7.4).
    for cq in [vi.send.cq, vi.recv.cq].into_iter().flatten() {
        cq::detach(cq, handle);
    }
    let process = vi.nic.process;
    let [sends, receives] = [Which::Send, Which::Recv].map(|which| vi.recorder(which));
    process.pages().vi_destroyed(vi.page);
    let mut vi = VIS.remove(&process.vis, vi, handle);
    free_ring(&mut vi.abi.send, sends);
    free_ring(&mut vi.abi.recv, receives);
    vi.nic.release_vi_number(index);
    vi.nic.memory.lock().ptags.release(vi.abi.ptag);
    let open = vi.send.waiters.requests() + vi.recv.waiters.requests();
    vi.nic.count_requests(-(open as i32));
    // Threads that wait on it find the handle stale; waits for a handler that runs for it.
    vi.nic.wake();
    vi.nic.events.forget_vi(handle);
    log::debug!(target: "vi", "VI {handle:?} destroyed");
    Ok(())
}

/// The result of VipQueryVi.
pub struct Query {
    /// State of the VI.
    pub state: VIP_VI_STATE,
    /// Its attributes, as requested.
    pub attributes: VIP_VI_ATTRIBUTES,
    /// Whether the send queue holds no descriptor, not even a complete one.
    pub send_empty: bool,
    /// The same for the receive queue.
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
    vi.nic.memory.lock().ptags.hold(tag)?;
    let before = vi.abi.ptag;
    vi.take_attributes(attributes, tag);
    vi.page.sequence.change(|| vi.publish_attributes());
    vi.nic.memory.lock().ptags.release(before);
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
