//! Removing completed descriptors from a queue: VipSendDone, VipSendWait, VipSendNotify and those of receives
//! (spec §3.21, §3.23, §8).

use std::sync::Arc;

use vipl_abi::*;
use vipl_sys::cancel;
use vipl_sys::clock::Instant;

use super::queue::{Dequeued, Which, take};
use super::state::ERROR;
use super::{Vi, complete, diagnosis};
use crate::clock;
use crate::error::Error;
use crate::handlers;
use crate::nic::events::NotifyHandler;
use crate::nic::{Nic, idle, wait as nic_wait};
use crate::object::table::{Guard, Name, Slot};
use crate::waiting::{Begun, Wait, is_over, slice_end};

/// Removes the oldest descriptor, which is complete, for a caller.
#[inline(always)]
fn dequeue(vi: &mut Vi, which: Which) -> Dequeued {
    let entry = take(vi.queue(which).0);
    if entry.status & VIP_STATUS_ERROR_MASK != 0 {
        return failed(vi, which, entry.descriptor, entry.status);
    }
    Dequeued::of(&entry)
}

/// The same for a failed one, whose error is logged unless it was only flushed.
#[cold]
fn failed(vi: &Vi, which: Which, descriptor: *mut VIP_DESCRIPTOR, status: u32) -> Dequeued {
    if status & (VIP_STATUS_ERROR_MASK & !VIP_STATUS_DESC_FLUSHED_ERROR) != 0 {
        diagnosis::failed(vi, which, descriptor, status);
    }
    if vi.abi.state == ERROR {
        vi.nic.events.saw_failure(vi.handle);
    }
    Dequeued {
        result: VIP_RETURN::VIP_DESCRIPTOR_ERROR,
        descriptor,
    }
}

/// Fast path of VipSendDone and VipRecvDone, if the calling thread owns the VI's lock. `None`: use [`done`].
#[inline(always)]
pub fn done_fast(handle: VIP_VI_HANDLE, which: Which) -> Option<Dequeued> {
    Some(poll(super::VIS.lock_as_owner(handle)?, which))
}

/// VipSendDone and VipRecvDone.
pub fn done(handle: VIP_VI_HANDLE, which: Which) -> Dequeued {
    match super::lock(handle) {
        Ok(vi) => poll(vi, which),
        Err(_) => Dequeued::none(VIP_RETURN::VIP_INVALID_PARAMETER),
    }
}

/// Removes the oldest descriptor, if it is complete or progress completes it.
#[inline(always)]
fn poll(mut vi: Guard<Vi>, which: Which) -> Dequeued {
    let (queue, _) = vi.queue(which);
    if queue.completed == queue.taken {
        if queue.posted == queue.taken {
            return Dequeued::none(VIP_RETURN::VIP_DESCRIPTOR_ERROR);
        }
        vi.progress();
    }
    let (queue, own) = vi.queue(which);
    if queue.completed == queue.taken {
        if queue.posted == queue.taken {
            return Dequeued::none(VIP_RETURN::VIP_DESCRIPTOR_ERROR);
        }
        let row = own.count_empty_poll(queue.taken);
        if idle::is_due(row) {
            yield_processor(vi, which, row);
        }
        return Dequeued::none(VIP_RETURN::VIP_NOT_DONE);
    }
    dequeue(&mut vi, which)
}

/// Yields the processor after empty polls.
#[cold]
#[inline(never)]
fn yield_processor(vi: Guard<Vi>, which: Which, row: u32) {
    let (slot, name, process) = (vi.slot(), vi.name(), vi.nic.process);
    drop(vi);
    if idle::yield_processor(&process.settings, idle::begins(row)) != idle::Yielded::Sleep {
        return;
    }
    let Some(nic) = slot.lock(name).map(|vi| vi.nic.clone()) else {
        return;
    };
    let _off = cancel::Off::new();
    nic_wait::short_sleep(&nic, || {
        slot.lock(name).is_none_or(|mut vi| {
            vi.progress();
            let (queue, _) = vi.queue(which);
            queue.completed != queue.taken
        })
    });
}

/// A thread that waits on a queue.
pub struct Waiting {
    slot: &'static Slot<Vi>,
    name: Name,
    which: Which,
    nic: Arc<Nic>,
    ticket: u64,
    deadline: Option<Instant>,
    /// Whether it has not polled yet.
    begins: bool,
    /// Whether it is queued as a waiter.
    in_line: bool,
}

/// VipSendWait and VipRecvWait.
pub fn wait(handle: VIP_VI_HANDLE, which: Which, timeout: VIP_ULONG) -> Begun<Waiting> {
    let deadline = clock::deadline(timeout);
    let over = |result| Begun::Over(Dequeued::none(result));
    let Ok(mut vi) = super::lock(handle) else {
        return over(VIP_RETURN::VIP_INVALID_PARAMETER);
    };
    if vi.queue(which).1.cq.is_some() {
        return over(VIP_RETURN::VIP_INVALID_PARAMETER);
    }
    for progressed in [false, true] {
        if progressed {
            vi.progress();
        }
        let (queue, own) = vi.queue(which);
        if queue.posted == queue.taken {
            return over(VIP_RETURN::VIP_DESCRIPTOR_ERROR);
        }
        if queue.completed != queue.taken && own.waiters.is_empty() {
            return Begun::Over(dequeue(&mut vi, which));
        }
    }
    if timeout == 0 {
        let (queue, own) = vi.queue(which);
        let row = own.count_empty_poll(queue.taken);
        if idle::is_due(row) {
            yield_processor(vi, which, row);
        }
        return over(VIP_RETURN::VIP_TIMEOUT);
    }
    let (queue, own) = vi.queue(which);
    own.signalled = queue.completed;
    queue.signal = 1;
    let ticket = own.waiters.join();
    Begun::Waits(Waiting {
        slot: vi.slot(),
        name: vi.name(),
        which,
        nic: vi.nic.clone(),
        ticket,
        deadline,
        begins: true,
        in_line: true,
    })
}

impl Wait for Waiting {
    type Found = Dequeued;

    fn slice(&mut self) -> Option<Dequeued> {
        let begins = std::mem::replace(&mut self.begins, false);
        if !begins {
            self.resume();
        }
        let (slot, name, which, ticket) = (self.slot, self.name, self.which, self.ticket);
        let found = nic_wait::until(&self.nic, slice_end(self.deadline), begins, || {
            let Some(mut vi) = slot.lock(name) else {
                return Some(Dequeued::none(VIP_RETURN::VIP_INVALID_PARAMETER));
            };
            vi.progress();
            let given = vi.queue(which).1.waiters.claim(ticket);
            given.map(|entry| Dequeued::of(&entry))
        });
        let found = found.or_else(|| self.pause());
        self.in_line = found.is_none();
        found
    }
}

impl Waiting {
    /// Ends a slice. A completion delivered at the last moment is returned.
    fn pause(&self) -> Option<Dequeued> {
        let Some(mut vi) = self.slot.lock(self.name) else {
            return Some(Dequeued::none(VIP_RETURN::VIP_INVALID_PARAMETER));
        };
        let (queue, own) = vi.queue(self.which);
        if let Some(entry) = own.waiters.claim(self.ticket) {
            return Some(Dequeued::of(&entry));
        }
        if !is_over(self.deadline) {
            own.waiters.pause(self.ticket, true);
            return None;
        }
        own.waiters.leave(self.ticket);
        queue.signal = u32::from(own.cq.is_some() || !own.waiters.is_empty());
        Some(Dequeued::none(VIP_RETURN::VIP_TIMEOUT))
    }

    /// Begins the next slice: delivers completions since the last one.
    fn resume(&self) {
        if let Some(mut vi) = self.slot.lock(self.name) {
            vi.queue(self.which).1.waiters.pause(self.ticket, false);
            complete::signal(&mut vi, self.which);
        }
    }
}

impl Drop for Waiting {
    /// A thread that ends while paused leaves completions to the waiters behind it.
    fn drop(&mut self) {
        if !self.in_line {
            return;
        }
        if let Some(mut vi) = self.slot.lock(self.name) {
            vi.queue(self.which).1.waiters.leave(self.ticket);
            complete::signal(&mut vi, self.which);
        }
    }
}

/// VipSendNotify and VipRecvNotify.
pub fn notify(
    handle: VIP_VI_HANDLE,
    which: Which,
    context: VIP_PVOID,
    handler: Option<NotifyHandler>,
) -> Result<(), Error> {
    let mut vi = super::lock(handle)?;
    let handler = handler.ok_or(Error::InvalidParameter)?;
    if vi.queue(which).1.cq.is_some() {
        return Err(Error::InvalidParameter);
    }
    handlers::start(&vi.nic)?;
    let (queue, own) = vi.queue(which);
    own.signalled = queue.completed;
    own.waiters.request(handler, context.addr());
    queue.signal = 1;
    vi.nic.count_requests(1);
    vi.set_watch();
    // An existing completion is delivered at once.
    complete::signal(&mut vi, which);
    vi.progress();
    Ok(())
}
