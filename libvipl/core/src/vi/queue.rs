//! Work queues: posting, taking, waiting, notification, flushing (spec §3.20 to §3.23, §4.4, §8).
//!
//! A queue is a ring of entries that the plug-in sees (`vipl_queue`): descriptors are `posted` here,
//! `completed` by the plug-in, and `taken` here. Who waits for a completion stands in line in the order
//! of arrival, threads and notify requests alike, and is served at the moment of the completion.
//!
//! ```text
//!     taken          completed             posted
//!       ▼                ▼                    ▼
//!   ────┬────────────────┬────────────────────┬────
//!       │ complete       │ the plug-in's      │ free
//! ```

use std::alloc::Layout;
use std::collections::VecDeque;

use vipl_abi::*;
use vipl_plugin_abi::*;

use crate::clock;
use crate::cq::{self, Cq};
use crate::error::Error;
use crate::memory;
use crate::nic::events::Job;
use crate::nic::idle;
use crate::nic::wait as sleeping;
use crate::object::table::{Guard, Slot};
use crate::vi::state::{CONNECTED, ERROR, IDLE, PENDING};
use crate::vi::{self, Vi, diagnosis};

#[cfg(test)]
pub(crate) mod tests;

/// Entries of a ring when it is first used.
const RING_FIRST: u32 = 16;

/// Which of a VI's two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

/// What Done and Wait return.
pub struct Taken {
    /// The return code.
    pub result: VIP_RETURN,
    /// The descriptor that was taken off, or NULL.
    pub descriptor: *mut VIP_DESCRIPTOR,
}

impl Taken {
    #[inline(always)]
    fn nothing(result: VIP_RETURN) -> Taken {
        Taken {
            result,
            descriptor: std::ptr::null_mut(),
        }
    }

    #[inline(always)]
    fn entry(entry: &vipl_entry) -> Taken {
        let failed = entry.status & VIP_STATUS_ERROR_MASK != 0;
        let result = if failed {
            VIP_RETURN::VIP_DESCRIPTOR_ERROR
        } else {
            VIP_RETURN::VIP_SUCCESS
        };
        Taken {
            result,
            descriptor: entry.descriptor,
        }
    }
}

/// One who waits for a completion.
enum Waiter {
    Thread(u64),
    Notify {
        handler: NotifyHandler,
        context: usize,
    },
}

/// Handler of VipSendNotify and VipRecvNotify.
pub(crate) type NotifyHandler =
    unsafe extern "C" fn(VIP_PVOID, VIP_NIC_HANDLE, VIP_VI_HANDLE, *mut VIP_DESCRIPTOR);

/// The host's part of a work queue.
pub(crate) struct WorkQueue {
    /// Entries the ring has room for; 0 before the first post.
    room: u32,
    /// Completions that the CQ has been told of.
    signalled: u32,
    pub(crate) cq: Option<&'static Slot<Cq>>,
    waiters: VecDeque<Waiter>,
    /// Completions that belong to threads of the line.
    given: Vec<(u64, vipl_entry)>,
    last_ticket: u64,
    /// Polls in vain since the queue had taken this many.
    vain: u32,
    vain_at: u32,
}

impl WorkQueue {
    pub(crate) fn new(cq: Option<&'static Slot<Cq>>) -> Self {
        WorkQueue {
            room: 0,
            signalled: 0,
            cq,
            waiters: VecDeque::new(),
            given: Vec::new(),
            last_ticket: 0,
            vain: 0,
            vain_at: 0,
        }
    }

    /// Counts a poll that found nothing, when the queue had taken this many; gives how many in a row.
    #[inline(always)]
    fn count_vain(&mut self, taken: u32) -> u32 {
        if self.vain_at != taken {
            (self.vain, self.vain_at) = (0, taken);
        }
        self.vain = self.vain.wrapping_add(1);
        self.vain
    }

    /// Open notify requests.
    pub(crate) fn notifications(&self) -> usize {
        self.waiters
            .iter()
            .filter(|waiter| matches!(waiter, Waiter::Notify { .. }))
            .count()
    }
}

/// What a caller gets of a descriptor that was taken off. At level `debug` a failed one is explained, unless it
/// was only flushed: that is no fault of its own.
#[inline(always)]
fn taken(vi: &Vi, which: Which, entry: &vipl_entry) -> Taken {
    if entry.status & (VIP_STATUS_ERROR_MASK & !VIP_STATUS_DESC_FLUSHED_ERROR) != 0 {
        diagnosis::failed(vi, which, entry.descriptor, entry.status);
    }
    Taken::entry(entry)
}

impl Vi {
    #[inline(always)]
    pub(crate) fn queue(&mut self, which: Which) -> (&mut vipl_queue, &mut WorkQueue) {
        match which {
            Which::Send => (&mut self.abi.send, &mut self.send),
            Which::Recv => (&mut self.abi.recv, &mut self.recv),
        }
    }
}

/// The entry with this number.
#[inline(always)]
fn entry(queue: &vipl_queue, number: u32) -> *mut vipl_entry {
    // SAFETY: masked, so inside the ring.
    unsafe { queue.entries.add((number & queue.mask) as usize) }
}

/// Takes the oldest entry off; the caller has seen that it is complete.
#[inline(always)]
fn take(queue: &mut vipl_queue) -> vipl_entry {
    let place = entry(queue, queue.taken);
    // SAFETY: `taken` is below `completed`. Each field is loaded by itself, as it was stored: one wide
    // load right after narrow stores would have to wait for them.
    let entry = unsafe {
        vipl_entry {
            descriptor: (&raw const (*place).descriptor).read_volatile(),
            memory: 0,
            status: (&raw const (*place).status).read_volatile(),
        }
    };
    queue.taken = queue.taken.wrapping_add(1);
    entry
}

/// VipPostSend and VipPostRecv.
#[inline(always)]
pub fn post(
    handle: VIP_VI_HANDLE,
    which: Which,
    descriptor: *mut VIP_DESCRIPTOR,
    memory: VIP_MEM_HANDLE,
) -> Result<(), Error> {
    let mut vi = vi::lock(handle)?;
    if !descriptor.addr().is_multiple_of(VIP_DESCRIPTOR_ALIGNMENT)
        || descriptor.is_null()
        || vi.check_descriptor
    {
        check_descriptor(&mut vi, which, descriptor, memory)?;
    }
    let (queue, own) = vi.queue(which);
    if queue.posted.wrapping_sub(queue.taken) >= own.room {
        grow(&mut vi, which, descriptor)?;
    }
    // SAFETY: a program's descriptor; a fault is caught. Status is at offset 28 (spec §2.4).
    if unsafe { vipl_guard::store32(descriptor.cast::<u8>().wrapping_add(28), 0) }.is_err() {
        return Err(bad_descriptor(&mut vi, which, descriptor));
    }
    let (queue, _) = vi.queue(which);
    // SAFETY: there is room for it.
    unsafe {
        entry(queue, queue.posted).write(vipl_entry {
            descriptor,
            memory,
            status: 0,
        })
    };
    queue.posted = queue.posted.wrapping_add(1);
    if vi.abi.state == CONNECTED {
        let doorbell = if which == Which::Send {
            vi.post_send
        } else {
            vi.post_recv
        };
        // SAFETY: attached and locked.
        unsafe { doorbell(vi.abi()) };
    } else {
        post_unconnected(&mut vi, which);
    }
    Ok(())
}

/// A VI that is not connected keeps receives for later and flushes everything else (spec §4.3).
#[cold]
fn post_unconnected(vi: &mut Vi, which: Which) {
    let kept = which == Which::Recv && matches!(vi.abi.state, IDLE | PENDING);
    if !kept {
        flush_queue(vi, which);
    }
}

#[cold]
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
        || (aligned && vi::descriptor_is_registered(vi, descriptor.addr() as u64, memory));
    if aligned && registered {
        return Ok(());
    }
    Err(bad_descriptor(vi, which, descriptor))
}

/// POST-02, POST-03: the caller is told twice, so that both kinds of program learn of it.
#[cold]
fn bad_descriptor(vi: &mut Vi, which: Which, descriptor: *mut VIP_DESCRIPTOR) -> Error {
    let opcode = asked_for(which, descriptor);
    vi.raise(VIP_ERROR_CODE::VIP_ERROR_POST_DESC, opcode, descriptor);
    Error::InvalidParameter
}

/// The `VIP_STATUS_OP_*` that a descriptor asks for on this queue; that of a send, which is 0, where it cannot
/// be read or asks for none.
#[cold]
fn asked_for(which: Which, descriptor: *const VIP_DESCRIPTOR) -> u32 {
    if which == Which::Recv {
        return VIP_STATUS_OP_RECEIVE;
    }
    let mut control = [0; 2];
    // SAFETY: a program's address; a fault is caught. Control is at offset 14 (spec §2.4).
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

/// Makes the ring larger, up to MaxDescriptorsPerQueue.
#[cold]
fn grow(vi: &mut Vi, which: Which, descriptor: *mut VIP_DESCRIPTOR) -> Result<(), Error> {
    let max = vi.nic.info.descriptors_max;
    let (queue, own) = vi.queue(which);
    let room = if own.room == 0 {
        RING_FIRST.min(max)
    } else {
        own.room * 2
    };
    if room > max {
        let opcode = asked_for(which, descriptor);
        vi.raise(VIP_ERROR_CODE::VIP_ERROR_VI_OVERRUN, opcode, descriptor);
        return Err(Error::Resource);
    }
    let layout = Layout::array::<vipl_entry>(room as usize).map_err(|_| Error::Resource)?;
    // SAFETY: the layout is not empty.
    let entries = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<vipl_entry>();
    if entries.is_null() {
        return Err(Error::Resource);
    }
    let mut number = queue.taken;
    while number != queue.posted {
        // SAFETY: both rings have room for every entry in use.
        unsafe {
            entries
                .add((number & (room - 1)) as usize)
                .write(*entry(queue, number))
        };
        number = number.wrapping_add(1);
    }
    free_ring(queue);
    queue.entries = entries;
    queue.mask = room - 1;
    own.room = room;
    Ok(())
}

/// Frees the ring of a queue.
pub(crate) fn free_ring(queue: &mut vipl_queue) {
    if queue.entries.is_null() {
        return;
    }
    if let Ok(layout) = Layout::array::<vipl_entry>(queue.mask as usize + 1) {
        // SAFETY: allocated by `grow` with this layout.
        unsafe { std::alloc::dealloc(queue.entries.cast(), layout) };
    }
    queue.entries = std::ptr::null_mut();
}

/// VipSendDone and VipRecvDone.
#[inline(always)]
pub fn done(handle: VIP_VI_HANDLE, which: Which) -> Taken {
    let Ok(mut vi) = vi::lock(handle) else {
        return Taken::nothing(VIP_RETURN::VIP_INVALID_PARAMETER);
    };
    let (queue, _) = vi.queue(which);
    if queue.completed == queue.taken {
        if queue.posted == queue.taken {
            return Taken::nothing(VIP_RETURN::VIP_DESCRIPTOR_ERROR);
        }
        vi.progress();
    }
    let (queue, own) = vi.queue(which);
    if queue.completed == queue.taken {
        if queue.posted == queue.taken {
            return Taken::nothing(VIP_RETURN::VIP_DESCRIPTOR_ERROR);
        }
        let vain = own.count_vain(queue.taken);
        if idle::is_due(vain) {
            give_way(vi, which, vain);
        }
        return Taken::nothing(VIP_RETURN::VIP_NOT_DONE);
    }
    let entry = take(queue);
    taken(&vi, which, &entry)
}

/// Lets other threads have the processor after polls in vain.
#[cold]
#[inline(never)]
fn give_way(vi: Guard<Vi>, which: Which, vain: u32) {
    let (slot, generation, process) = (vi.slot(), vi.generation(), vi.nic.process);
    drop(vi);
    if !idle::give_way(&process.settings, vain) {
        return;
    }
    let Some(nic) = slot.lock(generation).map(|vi| vi.nic.clone()) else {
        return;
    };
    idle::nap(&nic, || {
        slot.lock(generation).is_none_or(|mut vi| {
            vi.progress();
            let (queue, _) = vi.queue(which);
            queue.completed != queue.taken
        })
    });
}

/// VipSendWait and VipRecvWait.
pub fn wait(handle: VIP_VI_HANDLE, which: Which, timeout: VIP_ULONG) -> Taken {
    let deadline = clock::deadline(timeout);
    let invalid = Taken::nothing(VIP_RETURN::VIP_INVALID_PARAMETER);
    let Ok(mut vi) = vi::lock(handle) else {
        return invalid;
    };
    if vi.queue(which).1.cq.is_some() {
        return invalid;
    }
    for progressed in [false, true] {
        if progressed {
            vi.progress();
        }
        let (queue, own) = vi.queue(which);
        if queue.posted == queue.taken {
            return Taken::nothing(VIP_RETURN::VIP_DESCRIPTOR_ERROR);
        }
        if queue.completed != queue.taken && own.waiters.is_empty() {
            let entry = take(queue);
            return taken(&vi, which, &entry);
        }
    }
    if timeout == 0 {
        let (queue, own) = vi.queue(which);
        let vain = own.count_vain(queue.taken);
        if idle::is_due(vain) {
            give_way(vi, which, vain);
        }
        return Taken::nothing(VIP_RETURN::VIP_TIMEOUT);
    }
    let ticket = stand_in_line(&mut vi, which);
    let (slot, generation, nic) = (vi.slot(), vi.generation(), vi.nic.clone());
    drop(vi);
    let outcome = sleeping::until(&nic, deadline, || {
        let Some(mut vi) = slot.lock(generation) else {
            return Some(Taken::nothing(VIP_RETURN::VIP_INVALID_PARAMETER));
        };
        vi.progress();
        claim(vi.queue(which).1, ticket)
    });
    outcome.unwrap_or_else(|| leave_line(slot, generation, which, ticket))
}

fn stand_in_line(vi: &mut Vi, which: Which) -> u64 {
    let (queue, own) = vi.queue(which);
    own.last_ticket += 1;
    own.waiters.push_back(Waiter::Thread(own.last_ticket));
    own.signalled = queue.completed;
    queue.signal = 1;
    own.last_ticket
}

/// What the line has given to this thread.
fn claim(own: &mut WorkQueue, ticket: u64) -> Option<Taken> {
    let place = own.given.iter().position(|(owner, _)| *owner == ticket)?;
    Some(Taken::entry(&own.given.swap_remove(place).1))
}

/// The time is up; a completion that came at the last moment still counts.
fn leave_line(slot: &'static Slot<Vi>, generation: u32, which: Which, ticket: u64) -> Taken {
    let Some(mut vi) = slot.lock(generation) else {
        return Taken::nothing(VIP_RETURN::VIP_INVALID_PARAMETER);
    };
    let (queue, own) = vi.queue(which);
    if let Some(taken) = claim(own, ticket) {
        return taken;
    }
    own.waiters
        .retain(|waiter| !matches!(waiter, Waiter::Thread(owner) if *owner == ticket));
    queue.signal = u32::from(own.cq.is_some() || !own.waiters.is_empty());
    Taken::nothing(VIP_RETURN::VIP_TIMEOUT)
}

/// VipSendNotify and VipRecvNotify.
pub fn notify(
    handle: VIP_VI_HANDLE,
    which: Which,
    context: VIP_PVOID,
    handler: Option<NotifyHandler>,
) -> Result<(), Error> {
    let mut vi = vi::lock(handle)?;
    let handler = handler.ok_or(Error::InvalidParameter)?;
    if vi.queue(which).1.cq.is_some() {
        return Err(Error::InvalidParameter);
    }
    vi.nic.clone().events.start(&vi.nic)?;
    let (queue, own) = vi.queue(which);
    own.signalled = queue.completed;
    own.waiters.push_back(Waiter::Notify {
        handler,
        context: context.addr(),
    });
    queue.signal = 1;
    vi.nic.events.watch(1, &vi.nic);
    vi.set_watch();
    // A completion that is already there is served at once.
    signal(&mut vi, which);
    vi.progress();
    Ok(())
}

/// Tells CQ and waiters of new completions. The VI is locked.
#[inline]
pub(crate) fn signal(vi: &mut Vi, which: Which) {
    let handle = vi.handle;
    if let Some(cq) = vi.queue(which).1.cq {
        let (queue, own) = vi.queue(which);
        let count = queue.completed.wrapping_sub(own.signalled);
        own.signalled = queue.completed;
        let slot = vi.nic.vi_slot(vi.abi.index);
        cq::push(cq, slot, handle, which == Which::Recv, count);
        return;
    }
    serve_line(vi, which);
}

/// Gives completions to those who stand in line.
#[cold]
fn serve_line(vi: &mut Vi, which: Which) {
    let handle = vi.handle;
    let mut woken = false;
    let mut notified = Vec::new();
    let mut failed = Vec::new();
    let (queue, own) = vi.queue(which);
    while queue.completed != queue.taken {
        let Some(waiter) = own.waiters.pop_front() else {
            break;
        };
        let entry = take(queue);
        if entry.status & VIP_STATUS_ERROR_MASK != 0 {
            failed.push(entry);
        }
        match waiter {
            Waiter::Thread(ticket) => {
                own.given.push((ticket, entry));
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
    queue.signal = u32::from(!own.waiters.is_empty());
    for entry in failed {
        diagnosis::failed(vi, which, entry.descriptor, entry.status);
    }
    if woken {
        vi.nic.wake();
    }
    if !notified.is_empty() {
        vi.nic.events.watch(-(notified.len() as i32), &vi.nic);
        vi.nic.events.push(notified, &vi.nic);
    }
}

/// Completes everything on both queues that is not complete yet (spec §4.4).
pub(crate) fn flush(vi: &mut Vi) {
    flush_queue(vi, Which::Send);
    flush_queue(vi, Which::Recv);
}

/// The same of the send queue alone: receives stay for the next connection.
pub(crate) fn flush_sends(vi: &mut Vi) {
    flush_queue(vi, Which::Send);
}

fn flush_queue(vi: &mut Vi, which: Which) {
    let check = vi.check_descriptor;
    let (nic, tag) = (vi.abi.nic, vi.abi.ptag);
    let (queue, _) = vi.queue(which);
    if queue.completed == queue.posted {
        return;
    }
    while queue.completed != queue.posted {
        let place = entry(queue, queue.completed);
        // SAFETY: inside the ring, and posted.
        let posted = unsafe { *place };
        let status =
            VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR | opcode(which, posted.descriptor);
        // A descriptor whose memory is registered no more is not written (spec §10.5).
        if !check
            || memory::table::covers(nic, posted.memory, posted.descriptor.addr() as u64, 32, tag)
        {
            write_flushed(posted.descriptor, which, status);
        }
        // SAFETY: as above.
        unsafe { (*place).status = status };
        queue.completed = queue.completed.wrapping_add(1);
    }
    if queue.signal != 0 {
        signal(vi, which);
    }
}

/// The operation bits of a descriptor that is not processed any more.
fn opcode(which: Which, descriptor: *mut VIP_DESCRIPTOR) -> u32 {
    if which == Which::Recv {
        return VIP_STATUS_OP_RECEIVE;
    }
    // SAFETY: a program's descriptor; a fault is caught.
    let control =
        unsafe { vipl_guard::load_descriptor(descriptor.cast()) }.map_or(0, |i| i.control);
    match control & VIP_CONTROL_OP_MASK {
        VIP_CONTROL_OP_RDMAWRITE => VIP_STATUS_OP_RDMA_WRITE,
        VIP_CONTROL_OP_RDMAREAD => VIP_STATUS_OP_RDMA_READ,
        _ => VIP_STATUS_OP_SEND,
    }
}

/// Writes Status; for receives Length becomes 0. A fault means that the program has unmapped it.
fn write_flushed(descriptor: *mut VIP_DESCRIPTOR, which: Which, status: u32) {
    let at = descriptor.cast::<u8>();
    // SAFETY: a program's descriptor, owned by the provider until now; faults are caught.
    let _ = unsafe {
        match which {
            Which::Recv => vipl_guard::complete(at, 0, 0, status),
            Which::Send => vipl_guard::store32(at.wrapping_add(28), status),
        }
    };
}

/// Why a connection broke, in words.
fn cause_name(cause: i32) -> String {
    match cause {
        VIPL_CAUSE_TOLD => "the status of a descriptor tells why".to_owned(),
        VIPL_CAUSE_DISCONNECTED => "the partner disconnected".to_owned(),
        code => crate::nic::events::error_code(code)
            .map_or_else(|| format!("cause {code}"), |code| format!("{code:?}")),
    }
}

impl Vi {
    /// Breaks the connection: Error, flush, and what the program is told.
    pub(crate) fn fail(&mut self, cause: i32, opcode: u32, descriptor: *mut VIP_DESCRIPTOR) {
        if self.abi.state != CONNECTED {
            return;
        }
        self.abi.state = ERROR;
        log::debug!(target: "vi", "VI {:?}: Connected -> Error ({})", self.handle, cause_name(cause));
        flush(self);
        self.report_break(cause, opcode, descriptor);
    }
}
