//! VipPostSend and VipPostRecv (spec §3.20, §3.22, §4.4).

use vipl_abi::*;
use vipl_plugin_abi::*;

use super::queue::{self, Full, Which, entry};
use super::state::{self, CONNECTED, IDLE, PENDING};
use super::{Vi, complete, sample};
use crate::error::Error;
use crate::logger::log_failure;
use crate::memory::table::{covers, objection};
use crate::object::table::Guard;

/// Fast path of VipPostSend and VipPostRecv, if the calling thread owns the lock of a connected VI and there is
/// no error. False: use [`post`]. Nothing that it calls can panic, which saves registers.
#[inline(always)]
pub fn post_fast(
    handle: VIP_VI_HANDLE,
    which: Which,
    descriptor: *mut VIP_DESCRIPTOR,
    memory: VIP_MEM_HANDLE,
) -> bool {
    let Some(mut vi) = super::VIS.lock_as_owner(handle) else {
        return false;
    };
    let usual = descriptor.addr().is_multiple_of(VIP_DESCRIPTOR_ALIGNMENT)
        && has_plain_room(&mut vi, which)
        && vi.abi.state == CONNECTED
        && !descriptor.is_null()
        && add(&mut vi, which, descriptor, memory);
    if usual {
        ring_doorbell(&vi, which);
    }
    usual
}

/// VipPostSend and VipPostRecv.
pub fn post(
    handle: VIP_VI_HANDLE,
    which: Which,
    descriptor: *mut VIP_DESCRIPTOR,
    memory: VIP_MEM_HANDLE,
) -> Result<(), Error> {
    let mut vi = super::lock(handle)?;
    check_descriptor(&mut vi, which, descriptor, memory)?;
    let (queue, _) = vi.queue(which);
    if in_use(queue) == queue::room(queue) {
        grow(&mut vi, which, descriptor)?;
    }
    let (queue, own) = vi.queue(which);
    let may_be_fast = own.may_be_fast(queue);
    if !add(&mut vi, which, descriptor, memory) {
        return Err(bad_descriptor(&mut vi, which, descriptor, memory));
    }
    if !may_be_fast {
        sample::posted(&mut vi, which);
    }
    if vi.abi.state == CONNECTED {
        ring_doorbell(&vi, which);
    } else {
        post_unconnected(&mut vi, which);
    }
    Ok(())
}

/// Number of entries in use.
#[inline(always)]
fn in_use(queue: &vipl_queue) -> u32 {
    queue.posted.wrapping_sub(queue.taken)
}

/// Whether the ring has room for another descriptor, whose memory need not be checked, and which is not sampled.
#[inline(always)]
fn has_plain_room(vi: &mut Vi, which: Which) -> bool {
    let (queue, own) = vi.queue(which);
    in_use(queue) <= queue.mask && own.may_be_fast(queue)
}

/// Adds a descriptor to the ring. False: its memory is not accessible.
#[inline(always)]
fn add(vi: &mut Vi, which: Which, descriptor: *mut VIP_DESCRIPTOR, memory: VIP_MEM_HANDLE) -> bool {
    // SAFETY: an application's descriptor; a fault is caught.
    if unsafe { vipl_guard::store_status(descriptor.cast(), 0) }.is_err() {
        return false;
    }
    let (queue, _) = vi.queue(which);
    debug_assert!(!queue.entries.is_null());
    // SAFETY: there is room for it.
    unsafe {
        entry(queue, queue.posted).write(vipl_entry {
            descriptor,
            memory,
            status: 0,
        })
    };
    queue.posted = queue.posted.wrapping_add(1);
    let posted = queue.posted;
    vi.counts.posted(which.number(), posted);
    true
}

/// Notifies the plug-in of a descriptor that has been added.
#[inline(always)]
fn ring_doorbell(vi: &Guard<Vi>, which: Which) {
    let doorbell = match which {
        Which::Send => vi.post_send,
        Which::Recv => vi.post_recv,
    };
    // SAFETY: attached and locked.
    unsafe { doorbell(vi.abi()) };
}

/// On a VI that is not connected, receives are kept and everything else is flushed (spec §4.3).
#[cold]
fn post_unconnected(vi: &mut Vi, which: Which) {
    let early = matches!(vi.abi.state, IDLE | PENDING);
    if early && which == Which::Recv {
        return;
    }
    if early && !vi.early_logged {
        vi.early_logged = true;
        let name = state::name(vi.abi.state);
        log_failure!(
            "desc",
            vi.handle.addr(),
            "a send was posted on VI {:?}, which is {name}: it is flushed at once; connect the VI first",
            vi.handle
        );
    }
    complete::flush(vi, which);
}

fn check_descriptor(
    vi: &mut Vi,
    which: Which,
    descriptor: *mut VIP_DESCRIPTOR,
    memory: u32,
) -> Result<(), Error> {
    if descriptor.is_null() {
        return Err(Error::InvalidParameter);
    }
    let aligned = descriptor.addr().is_multiple_of(VIP_DESCRIPTOR_ALIGNMENT);
    let registered = !vi.check_descriptor
        || (aligned && descriptor_is_registered(vi, descriptor.addr() as u64, memory));
    if aligned && registered {
        return Ok(());
    }
    Err(bad_descriptor(vi, which, descriptor, memory))
}

/// POST-02, POST-03: the error is reported in both ways that applications check.
#[cold]
fn bad_descriptor(
    vi: &mut Vi,
    which: Which,
    descriptor: *mut VIP_DESCRIPTOR,
    memory: VIP_MEM_HANDLE,
) -> Error {
    let refused = || {
        objection(
            vi.abi.nic,
            memory,
            descriptor.addr() as u64,
            32,
            vi.abi.ptag,
        )
    };
    let why = if !descriptor.addr().is_multiple_of(VIP_DESCRIPTOR_ALIGNMENT) {
        format!("it is not aligned to {VIP_DESCRIPTOR_ALIGNMENT} bytes")
    } else if let Some(objection) = refused().filter(|_| vi.check_descriptor) {
        format!("its memory is {objection}")
    } else {
        "its memory cannot be written, or its segments are outside of the region".to_owned()
    };
    log_failure!(
        "desc",
        (
            vi.handle.addr(),
            which == Which::Send,
            descriptor.addr().is_multiple_of(VIP_DESCRIPTOR_ALIGNMENT)
        ),
        "cannot post the descriptor {descriptor:?} with MemoryHandle {memory:#x} on VI {:?}: {why}",
        vi.handle
    );
    let opcode = asked_for(which, descriptor);
    vi.raise(VIP_ERROR_CODE::VIP_ERROR_POST_DESC, opcode, descriptor);
    Error::InvalidParameter
}

/// The `VIP_STATUS_OP_*` of a descriptor on this queue; that of a send, 0, if it cannot be read or is
/// invalid.
#[cold]
fn asked_for(which: Which, descriptor: *const VIP_DESCRIPTOR) -> u32 {
    if which == Which::Recv {
        return VIP_STATUS_OP_RECEIVE;
    }
    let mut control = [0; 2];
    // SAFETY: an application's address; a fault is caught. Control is at offset 14 (spec §2.4).
    let read = unsafe {
        vipl_guard::copy(
            control.as_mut_ptr(),
            descriptor.cast::<u8>().wrapping_add(14),
            2,
        )
    };
    match u16::from_ne_bytes(control) & VIP_CONTROL_OP_MASK {
        VIP_CONTROL_OP_RDMAWRITE if read.is_ok() => VIP_STATUS_OP_RDMA_WRITE,
        VIP_CONTROL_OP_RDMAREAD if read.is_ok() => VIP_STATUS_OP_RDMA_READ,
        _ => VIP_STATUS_OP_SEND,
    }
}

/// Grows the ring, up to MaxDescriptorsPerQueue.
#[cold]
fn grow(vi: &mut Vi, which: Which, descriptor: *mut VIP_DESCRIPTOR) -> Result<(), Error> {
    let max = vi.nic.info.descriptors_max;
    let recorder = vi.recorder(which);
    let (queue, _) = vi.queue(which);
    let grown = queue::grow(queue, max, recorder);
    if let Err(full) = grown {
        if let Full::Limit = full {
            let opcode = asked_for(which, descriptor);
            vi.raise(VIP_ERROR_CODE::VIP_ERROR_VI_OVERRUN, opcode, descriptor);
        }
        return Err(Error::Resource);
    }
    let room = (queue.entries == recorder).then(|| queue::room(queue));
    vi.publish_ring(which, room);
    Ok(())
}

/// Whether the memory of a descriptor is registered for this VI, segments included.
fn descriptor_is_registered(vi: &Vi, descriptor: u64, memory: u32) -> bool {
    let control = covers(vi.abi.nic, memory, descriptor, 32, vi.abi.ptag);
    // SAFETY: the control segment is registered; a fault is caught nevertheless.
    let image = control.then(|| unsafe { vipl_guard::load_descriptor(descriptor as *const u8) });
    image.and_then(Result::ok).is_some_and(|image| {
        let bytes = 32 + 16 * u64::from(image.seg_count);
        covers(vi.abi.nic, memory, descriptor, bytes, vi.abi.ptag)
    })
}
