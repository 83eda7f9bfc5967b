//! Removing completed descriptors from a queue: VipSendDone, VipSendWait, VipSendNotify and those of receives
//! (spec §3.21, §3.23, §8).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use vipl_abi::*;
use vipl_sys::cancel;
use vipl_sys::clock::Instant;

use super::queue::{Dequeued, Which, set_waited_for, take, take_good};
use super::state::ERROR;
use super::{Vi, complete, diagnosis, sample};
use crate::error::Error;
use crate::handlers;
use crate::nic::events::NotifyHandler;
use crate::nic::{Nic, idle, wait as nic_wait};
use crate::object::table::{Guard, Name, Slot};
use crate::waiting::{Begun, Wait, is_over, slice_end};
use crate::{bug, clock};

/// Empty polls after which the samples of a VI are settled; they take some 50 µs.
const SETTLED_AFTER: u32 = 4096;

/// Removes the oldest descriptor, which is complete, for a caller.
#[inline(always)]
fn dequeue(vi: &mut Vi, which: Which) -> Dequeued {
    let counts = vi.counts;
    let entry = take(vi.queue(which).0, which, counts);
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

/// A VI that the calling thread owns, locked for the fast path of VipSendDone and VipRecvDone. Its methods
/// cannot panic, which saves registers.
pub struct Owned(Guard<Vi>);

/// Locks a VI if the calling thread owns it. `None`: use [`done`].
#[inline(always)]
pub fn own(handle: VIP_VI_HANDLE) -> Option<Owned> {
    super::VIS.lock_as_owner(handle).map(Owned)
}

impl Owned {
    /// Removes the oldest descriptor, if it is complete without an error.
    #[inline(always)]
    pub fn take(&mut self, which: Which) -> Option<*mut VIP_DESCRIPTOR> {
        let counts = self.0.counts;
        let (queue, _) = self.0.queue(which);
        (queue.completed != queue.taken).then(|| take_good(queue, which, counts))?
    }

    /// Removes the oldest descriptor, if it is complete or progress completes it. `None`: it has failed, and
    /// stays for [`done`].
    #[inline(always)]
    pub fn poll(mut self, which: Which) -> Option<Dequeued> {
        match look(&mut self.0, which) {
            Found::Complete => {
                let counts = self.0.counts;
                take_good(self.0.queue(which).0, which, counts).map(|descriptor| Dequeued {
                    result: VIP_RETURN::VIP_SUCCESS,
                    descriptor,
                })
            }
            Found::NothingPosted => Some(Dequeued::none(VIP_RETURN::VIP_DESCRIPTOR_ERROR)),
            Found::Nothing(row) => {
                if idle::is_due(row) {
                    yield_contained(self.0, which, row);
                }
                Some(Dequeued::none(VIP_RETURN::VIP_NOT_DONE))
            }
        }
    }

    /// The same; also takes a descriptor that has failed.
    pub fn poll_any(self, which: Which) -> Dequeued {
        poll(self.0, which)
    }
}

/// VipSendDone and VipRecvDone.
pub fn done(handle: VIP_VI_HANDLE, which: Which) -> Dequeued {
    match super::lock(handle) {
        Ok(vi) => poll(vi, which),
        Err(_) => Dequeued::none(VIP_RETURN::VIP_INVALID_PARAMETER),
    }
}

/// Removes the oldest descriptor, if it is complete or progress completes it.
fn poll(mut vi: Guard<Vi>, which: Which) -> Dequeued {
    match look(&mut vi, which) {
        Found::Complete => dequeue(&mut vi, which),
        Found::NothingPosted => Dequeued::none(VIP_RETURN::VIP_DESCRIPTOR_ERROR),
        Found::Nothing(row) => {
            if idle::is_due(row) {
                yield_processor(vi, which, row);
            }
            Dequeued::none(VIP_RETURN::VIP_NOT_DONE)
        }
    }
}

/// What a poll of a queue finds.
enum Found {
    /// The oldest descriptor is complete.
    Complete,
    /// There is no descriptor.
    NothingPosted,
    /// No descriptor is complete, for so many polls in a row.
    Nothing(u32),
}

/// Polls a queue; makes progress if nothing is complete.
#[inline(always)]
fn look(vi: &mut Guard<Vi>, which: Which) -> Found {
    let (queue, _) = vi.queue(which);
    if queue.completed == queue.taken {
        if queue.posted == queue.taken {
            return Found::NothingPosted;
        }
        vi.progress();
    }
    let (queue, own) = vi.queue(which);
    if queue.completed != queue.taken {
        Found::Complete
    } else if queue.posted == queue.taken {
        // A thread that waits was given the last one.
        Found::NothingPosted
    } else {
        Found::Nothing(own.count_empty_poll(queue.taken))
    }
}

/// [`yield_processor`], where a panic ends: its callers need no frame for one.
#[cold]
#[inline(never)]
#[expect(improper_ctypes_definitions, reason = "called from this file only")]
extern "C" fn yield_contained(vi: Guard<Vi>, which: Which, row: u32) {
    let yielding = AssertUnwindSafe(|| yield_processor(vi, which, row));
    if let Err(panic) = catch_unwind(yielding) {
        let _ = bug::caught(&*panic);
    }
}

/// Yields the processor after empty polls.
#[cold]
fn yield_processor(mut vi: Guard<Vi>, which: Which, row: u32) {
    if row.is_multiple_of(SETTLED_AFTER) {
        sample::settle(&mut vi);
    }
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
    sample::settle(&mut vi);
    let (queue, own) = vi.queue(which);
    own.signalled = queue.completed;
    set_waited_for(queue, true);
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
        set_waited_for(queue, own.cq.is_some() || !own.waiters.is_empty());
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
    set_waited_for(queue, true);
    vi.nic.count_requests(1);
    vi.set_watch();
    // An existing completion is delivered at once.
    complete::signal(&mut vi, which);
    vi.progress();
    Ok(())
}
