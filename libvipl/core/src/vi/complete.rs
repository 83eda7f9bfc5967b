//! Delivery of completions to the application: to a CQ, a waiting thread or a notify request; and flushing
//! (spec §4.4, §8). The plug-in calls this within an operation, so the VI is locked.

use vipl_abi::*;

use super::queue::{SAMPLED, Which, entry, set_waited_for, take};
use super::state::ERROR;
use super::{Vi, diagnosis, sample};
use crate::cq;
use crate::memory::table::covers;
use crate::nic::events::Job;
use crate::nic::waiters::Waiter;

/// Delivers new completions to CQ and waiters. The VI is locked.
#[inline]
pub(crate) fn signal(vi: &mut Vi, which: Which) {
    let handle = vi.handle;
    if vi.queue(which).0.signal & SAMPLED != 0 {
        sample::completed(vi, which);
    }
    if let Some(cq) = vi.queue(which).1.cq {
        let (queue, own) = vi.queue(which);
        let count = queue.completed.wrapping_sub(own.signalled);
        own.signalled = queue.completed;
        cq::queue::push(cq, vi.slot, handle, which == Which::Recv, count);
        return;
    }
    serve_waiters(vi, which);
}

/// Delivers completions to the waiters, in order of arrival.
#[cold]
fn serve_waiters(vi: &mut Vi, which: Which) {
    let handle = vi.handle;
    let mut woken = false;
    let mut notified = Vec::new();
    let mut failed = Vec::new();
    let counts = vi.counts;
    let (queue, own) = vi.queue(which);
    while queue.completed != queue.taken {
        let Some(waiter) = own.waiters.next() else {
            break;
        };
        let entry = take(queue, which, counts);
        if entry.status & VIP_STATUS_ERROR_MASK != 0 {
            failed.push(entry);
        }
        match waiter {
            Waiter::Thread { ticket, .. } => {
                own.waiters.deliver(ticket, entry);
                woken = true;
            }
            Waiter::Notify { handler, context } => notified.push(Job::Descriptor {
                handler,
                context,
                vi: handle.addr(),
                descriptor: entry.descriptor.addr(),
            }),
        }
    }
    own.signalled = queue.completed;
    set_waited_for(queue, !own.waiters.is_empty());
    if !failed.is_empty() && vi.abi.state == ERROR {
        vi.nic.events.saw_failure(handle);
    }
    for entry in failed {
        diagnosis::failed(vi, which, entry.descriptor, entry.status);
    }
    if woken {
        vi.nic.wake();
    }
    if !notified.is_empty() {
        vi.nic.count_requests(-(notified.len() as i32));
        vi.nic.push(notified);
    }
}

/// Completes all incomplete descriptors of a queue as flushed (spec §4.4).
pub(crate) fn flush(vi: &mut Vi, which: Which) {
    let check = vi.check_descriptor;
    let (nic, tag) = (vi.abi.nic, vi.abi.ptag);
    if vi.queue(which).0.completed == vi.queue(which).0.posted {
        return;
    }
    sample::flushed(vi, which);
    let (queue, _) = vi.queue(which);
    while queue.completed != queue.posted {
        let place = entry(queue, queue.completed);
        // SAFETY: inside the ring, and posted.
        let posted = unsafe { *place };
        let status =
            VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR | opcode(which, posted.descriptor);
        // A descriptor whose memory is no longer registered is not written (spec §10.5).
        if !check || covers(nic, posted.memory, posted.descriptor.addr() as u64, 32, tag) {
            write_flushed(posted.descriptor, which, status);
        }
        // SAFETY: as above.
        unsafe { (*place).status = status };
        queue.completed = queue.completed.wrapping_add(1);
    }
    if queue.signal != 0 {
        signal(vi, which);
    }
    vi.publish_completed();
}

/// The operation bits of a descriptor that is not processed.
fn opcode(which: Which, descriptor: *mut VIP_DESCRIPTOR) -> u32 {
    if which == Which::Recv {
        return VIP_STATUS_OP_RECEIVE;
    }
    // SAFETY: an application's descriptor; a fault is caught.
    let control =
        unsafe { vipl_guard::load_descriptor(descriptor.cast()) }.map_or(0, |i| i.control);
    match control & VIP_CONTROL_OP_MASK {
        VIP_CONTROL_OP_RDMAWRITE => VIP_STATUS_OP_RDMA_WRITE,
        VIP_CONTROL_OP_RDMAREAD => VIP_STATUS_OP_RDMA_READ,
        _ => VIP_STATUS_OP_SEND,
    }
}

/// Writes Status; for receives Length becomes 0. A fault means that the application has unmapped the
/// descriptor.
fn write_flushed(descriptor: *mut VIP_DESCRIPTOR, which: Which, status: u32) {
    let at = descriptor.cast::<u8>();
    // SAFETY: an application's descriptor, owned by the provider until now; faults are caught.
    let _ = unsafe {
        match which {
            Which::Recv => vipl_guard::complete(at, 0, 0, status),
            Which::Send => vipl_guard::store_status(at, status),
        }
    };
}
