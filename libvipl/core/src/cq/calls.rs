//! The calls about completion queues (spec §3.24 to §3.29).
//!
//! A poll of a CQ checks the most recently active VIs, and asks the plug-in which others may have
//! completions, so that its cost does not grow with their number. The plug-in is asked when those VIs have
//! nothing; while no others are active, only periodically.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vipl_abi::*;
use vipl_pages::layout;
use vipl_sys::cancel;
use vipl_sys::clock::Instant;

use super::event::Event;
use super::hot::Hot;
use super::lent::Lender;
use super::queue::{Cq, Entry, Request};
use crate::clock;
use crate::error::Error;
use crate::handlers;
use crate::logger::log_failure;
use crate::nic::events::CqNotifyHandler;
use crate::nic::waiters::Waiters;
use crate::nic::{self, Nic, idle, wait as nic_wait};
use crate::object::handle::Kind;
use crate::object::table::{Guard, Name, Slot, Table};
use crate::vi::queue::CqSlot;
use crate::vi::{Vi, of_nic};
use crate::waiting::{Begun, Wait, is_over, slice_end};

static CQS: Table<Cq<Slot<Vi>>> = Table::new(Kind::Cq);

/// A locked CQ.
type Locked = Guard<Cq<Slot<Vi>>>;

/// Period in polls after which the plug-in is always asked: the recently active VIs may always have
/// completions, and others may become active.
const SCAN_PERIOD: u32 = 8;

fn lock(handle: VIP_CQ_HANDLE) -> Result<Locked, Error> {
    CQS.lock(handle).ok_or(Error::InvalidParameter)
}

/// The NIC handle of a live CQ.
pub(crate) fn owner(handle: VIP_CQ_HANDLE) -> Option<VIP_NIC_HANDLE> {
    Some(lock(handle).ok()?.nic.handle)
}

/// Attaches a queue of a new VI to a CQ of the same NIC handle, or to none.
pub(crate) fn attach(nic: &Arc<Nic>, handle: VIP_CQ_HANDLE) -> Result<Option<CqSlot>, Error> {
    if handle.is_null() {
        return Ok(None);
    }
    let mut cq = lock(handle)?;
    if !Arc::ptr_eq(nic, &cq.nic) {
        return Err(Error::InvalidParameter);
    }
    cq.attached += 1;
    cq.page.attached.set(cq.attached);
    Ok(Some(cq.slot()))
}

/// Undoes `attach`: the VI was not created.
pub(crate) fn release(cq: Option<CqSlot>) {
    if let Some(mut cq) = cq.and_then(Slot::lock_any) {
        cq.attached -= 1;
        cq.page.attached.set(cq.attached);
    }
}

/// Detaches a work queue; entries of its VI are removed.
pub(crate) fn detach(cq: CqSlot, vi: VIP_VI_HANDLE) {
    if let Some(mut cq) = cq.lock_any() {
        cq.attached -= 1;
        cq.page.attached.set(cq.attached);
        let before = cq.entries.len();
        cq.entries.retain(|entry| entry.vi != vi);
        cq.page.dropped.add((before - cq.entries.len()) as u64);
        cq.overflowed &= !cq.entries.is_empty();
        cq.hot.clear();
    }
}

/// VipCreateCQ.
pub fn create(nic: VIP_NIC_HANDLE, entries: VIP_ULONG) -> Result<VIP_CQ_HANDLE, Error> {
    create_on(&nic::resolve(nic)?, entries)
}

/// The same, on a NIC that may have been closed since the lookup.
pub(crate) fn create_on(nic: &Arc<Nic>, entries: VIP_ULONG) -> Result<VIP_CQ_HANDLE, Error> {
    let _inside = nic.enter()?;
    let capacity = check_size(nic, entries)?;
    let before = nic.cq_count.fetch_add(1, Ordering::AcqRel);
    if before >= nic.info.cqs_max {
        nic.cq_count.fetch_sub(1, Ordering::AcqRel);
        log_failure!(
            "cq",
            nic.handle.addr(),
            "no more than {} CQs on one NIC handle",
            nic.info.cqs_max
        );
        return Err(Error::Resource);
    }
    let inserted = CQS.insert(&nic.process.cqs, |handle| Cq {
        entries: VecDeque::with_capacity(capacity.min(64)),
        hot: Hot::new(),
        polls: 0,
        empty_polls: 0,
        capacity,
        overflowed: false,
        attached: 0,
        waiters: Waiters::new(),
        handle,
        page: publish(nic, handle, capacity),
        nic: Lender::new(nic.clone()),
        event: None,
    });
    let handle = inserted.ok_or_else(|| {
        nic.cq_count.fetch_sub(1, Ordering::AcqRel);
        Error::Resource
    })?;
    log::debug!(target: "cq", "CQ {handle:?} created with room for {capacity} entries");
    Ok(handle)
}

/// The record of a new CQ.
fn publish(nic: &Nic, handle: VIP_CQ_HANDLE, capacity: usize) -> &'static layout::Cq {
    let page = nic.process.pages().cq(handle.addr());
    page.nic.set(nic.handle.addr() as u64);
    page.capacity.set(capacity as u64);
    let counts = [&page.added, &page.taken];
    counts.into_iter().for_each(|count| count.set(0));
    let words = [&page.dropped, &page.overflows, &page.attached];
    words.into_iter().for_each(|word| word.set(0_u64));
    page.handle.publish(handle.addr() as u64);
    page
}

fn check_size(nic: &Nic, entries: VIP_ULONG) -> Result<usize, Error> {
    match entries as u64 {
        count if (1..=u64::from(nic.info.cq_entries_max)).contains(&count) => Ok(count as usize),
        count => {
            log_failure!(
                "cq",
                nic.handle.addr(),
                "a CQ has 1 to {} entries, not {count}",
                nic.info.cq_entries_max
            );
            Err(if count == 0 {
                Error::InvalidParameter
            } else {
                Error::Resource
            })
        }
    }
}

/// VipDestroyCQ. Threads that wait on it return VIP_INVALID_PARAMETER (COMPAT-09).
pub fn destroy(handle: VIP_CQ_HANDLE) -> Result<(), Error> {
    let mut guard = lock(handle)?;
    if guard.attached > 0 {
        log_failure!(
            "cq",
            handle.addr(),
            "VipDestroyCQ refused: {} queues of VIs use the CQ; call VipDestroyVi first",
            guard.attached
        );
        return Err(Error::Resource);
    }
    let process = guard.nic.process;
    guard.nic.leave_to_borrowers();
    guard.page.handle.set(0_u64);
    let cq = CQS.remove(&process.cqs, guard, handle);
    cq.nic.cq_count.fetch_sub(1, Ordering::AcqRel);
    cq.nic.count_requests(-(cq.waiters.requests() as i32));
    cq.nic.wake();
    cq.nic.events.forget_cq(handle);
    log::debug!(target: "cq", "CQ {handle:?} destroyed");
    Ok(())
}

/// VipResizeCQ.
pub fn resize(handle: VIP_CQ_HANDLE, entries: VIP_ULONG) -> Result<(), Error> {
    let mut cq = lock(handle)?;
    let capacity = check_size(&cq.nic, entries)?;
    if capacity < cq.entries.len() {
        log_failure!(
            "cq",
            handle.addr(),
            "VipResizeCQ refused: {} entries are waiting in the CQ, more than {capacity}",
            cq.entries.len()
        );
        return Err(Error::Resource);
    }
    cq.capacity = capacity;
    cq.page.capacity.set(capacity as u64);
    Ok(())
}

/// Fast path of VipCQDone, if the calling thread owns the CQ's lock. `None`: use [`done`].
#[inline(always)]
pub fn done_fast(handle: VIP_CQ_HANDLE) -> Option<Result<Entry, Error>> {
    Some(take(CQS.lock_as_owner(handle)?))
}

/// VipCQDone.
pub fn done(handle: VIP_CQ_HANDLE) -> Result<Entry, Error> {
    take(lock(handle)?)
}

/// The oldest entry, if any, after a poll.
#[inline(always)]
fn take(mut cq: Locked) -> Result<Entry, Error> {
    if let Some(entry) = cq.pop() {
        return Ok(entry);
    }
    let mut cq = poll(cq).ok_or(Error::InvalidParameter)?;
    if let Some(entry) = cq.pop() {
        return Ok(entry);
    }
    leave_empty(cq);
    Err(Error::NotDone)
}

/// Ends a poll that found nothing.
#[inline(always)]
fn leave_empty(mut cq: Locked) {
    cq.empty_polls = cq.empty_polls.wrapping_add(1);
    if idle::is_due(cq.empty_polls) {
        yield_processor(cq);
    }
}

/// Yields the processor after empty polls.
#[cold]
#[inline(never)]
fn yield_processor(cq: Locked) {
    let (slot, name, row) = (cq.slot(), cq.name(), cq.empty_polls);
    let process = cq.nic.process;
    drop(cq);
    if idle::yield_processor(&process.settings, idle::begins(row)) != idle::Yielded::Sleep {
        return;
    }
    let Some(nic) = slot.lock(name).map(|cq| Arc::clone(&cq.nic)) else {
        return;
    };
    let _off = cancel::Off::new();
    nic_wait::short_sleep(&nic, || {
        of_nic::progress(&nic);
        slot.lock(name).is_none_or(|cq| !cq.entries.is_empty())
    });
}

/// Makes progress on VIs that may have completions; the CQ is unlocked meanwhile.
#[inline(always)]
fn poll(mut cq: Locked) -> Option<Locked> {
    let (slot, name, hot) = (cq.slot(), cq.name(), cq.hot);
    cq.polls = cq.polls.wrapping_add(1);
    let all = hot.is_empty() || cq.polls.is_multiple_of(SCAN_PERIOD);
    let nic = cq.nic.lend();
    drop(cq);
    let mut found = false;
    for vi in hot.vis() {
        if let Some(mut vi) = vi.lock_any() {
            found |= of_nic::progress_one(&mut vi);
        }
    }
    if all || (hot.others_are_active() && !found) {
        of_nic::progress(&nic);
    }
    let Some(mut cq) = slot.lock(name) else {
        drop(nic.keep());
        return None;
    };
    cq.nic.take_back(nic);
    Some(cq)
}

/// A thread that waits on a CQ.
pub struct Waiting {
    slot: &'static Slot<Cq<Slot<Vi>>>,
    name: Name,
    nic: Arc<Nic>,
    ticket: u64,
    deadline: Option<Instant>,
    /// Whether it has not polled yet.
    begins: bool,
    /// Whether it is queued as a waiter.
    in_line: bool,
}

/// VipCQWait.
pub fn wait(handle: VIP_CQ_HANDLE, timeout: VIP_ULONG) -> Begun<Waiting> {
    begin_wait(handle, timeout).unwrap_or_else(|error| Begun::Over(Err(error)))
}

fn begin_wait(handle: VIP_CQ_HANDLE, timeout: VIP_ULONG) -> Result<Begun<Waiting>, Error> {
    let deadline = clock::deadline(timeout);
    let mut cq = lock(handle)?;
    if cq.waiters.is_empty()
        && let Some(entry) = cq.pop()
    {
        return Ok(Begun::Over(Ok(entry)));
    }
    cq.polls = SCAN_PERIOD - 1;
    let mut cq = poll(cq).ok_or(Error::InvalidParameter)?;
    if cq.waiters.is_empty()
        && let Some(entry) = cq.pop()
    {
        return Ok(Begun::Over(Ok(entry)));
    }
    if timeout == 0 {
        leave_empty(cq);
        return Err(Error::Timeout);
    }
    let ticket = cq.waiters.join();
    Ok(Begun::Waits(Waiting {
        slot: cq.slot(),
        name: cq.name(),
        nic: Arc::clone(&cq.nic),
        ticket,
        deadline,
        begins: true,
        in_line: true,
    }))
}

impl Wait for Waiting {
    type Found = Result<Entry, Error>;

    fn slice(&mut self) -> Option<Self::Found> {
        let begins = std::mem::replace(&mut self.begins, false);
        if !begins && let Some(mut cq) = self.slot.lock(self.name) {
            cq.waiters.pause(self.ticket, false);
            cq.serve_waiters();
        }
        let (slot, name, nic, ticket) = (self.slot, self.name, &self.nic, self.ticket);
        let found = nic_wait::until(nic, slice_end(self.deadline), begins, || {
            of_nic::progress(nic);
            match slot.lock(name) {
                Some(mut cq) => cq.waiters.claim(ticket).map(Ok),
                None => Some(Err(Error::InvalidParameter)),
            }
        });
        let found = found.or_else(|| self.pause());
        self.in_line = found.is_none();
        found
    }
}

impl Waiting {
    /// Ends a slice. An entry delivered at the last moment is returned.
    fn pause(&self) -> Option<Result<Entry, Error>> {
        let Some(mut cq) = self.slot.lock(self.name) else {
            return Some(Err(Error::InvalidParameter));
        };
        if let Some(entry) = cq.waiters.claim(self.ticket) {
            return Some(Ok(entry));
        }
        if !is_over(self.deadline) {
            cq.waiters.pause(self.ticket, true);
            return None;
        }
        cq.waiters.leave(self.ticket);
        Some(Err(Error::Timeout))
    }
}

impl Drop for Waiting {
    /// A thread that ends while paused leaves the entries to the waiters behind it.
    fn drop(&mut self) {
        if self.in_line
            && let Some(mut cq) = self.slot.lock(self.name)
        {
            cq.waiters.leave(self.ticket);
            cq.serve_waiters();
        }
    }
}

/// VipCQNotify.
pub fn notify(
    handle: VIP_CQ_HANDLE,
    context: VIP_PVOID,
    handler: Option<CqNotifyHandler>,
) -> Result<(), Error> {
    let mut cq = lock(handle)?;
    let handler = handler.ok_or(Error::InvalidParameter)?;
    handlers::start(&cq.nic)?;
    cq.waiters
        .request(Request::Handler(handler), context.addr());
    cq.nic.count_requests(1);
    cq.serve_waiters();
    Ok(())
}

/// vipl_cq_fd.
pub fn fd(handle: VIP_CQ_HANDLE) -> Result<RawFd, Error> {
    let mut cq = lock(handle)?;
    if let Some(event) = &cq.event {
        return Ok(event.number());
    }
    // It makes progress on the NIC while the CQ is armed.
    handlers::start(&cq.nic)?;
    let event = Event::new().map_err(|error| {
        log_failure!(
            "cq",
            handle.addr(),
            "no descriptor for the events of a CQ: {error}"
        );
        Error::Resource
    })?;
    Ok(cq.event.insert(event).number())
}

/// vipl_cq_arm. The order of the steps loses nothing: what completes before the event is cleared is found by the poll, and what
/// completes after the poll finds the event in the line.
pub fn arm(handle: VIP_CQ_HANDLE) -> Result<(), Error> {
    let mut cq = lock(handle)?;
    let Some(event) = &mut cq.event else {
        log_failure!(
            "cq",
            handle.addr(),
            "vipl_cq_arm refused: the CQ has no descriptor; call vipl_cq_fd first"
        );
        return Err(Error::InvalidParameter);
    };
    event.clear().map_err(|error| {
        log_failure!("cq", handle.addr(), "vipl_cq_arm refused: {error}");
        Error::Resource
    })?;
    cq.polls = SCAN_PERIOD - 1;
    let mut cq = poll(cq).ok_or(Error::InvalidParameter)?;
    let unserved = !cq.entries.is_empty() && cq.waiters.is_empty();
    match &mut cq.event {
        // In the line already, perhaps by another thread.
        Some(event) if event.armed => return Ok(()),
        // Under load: the handler thread sleeps on.
        Some(event) if unserved => {
            event.raise();
            return Ok(());
        }
        Some(event) => event.armed = true,
        None => return Err(Error::InvalidParameter),
    }
    cq.waiters.request(Request::Event, 0);
    cq.nic.count_requests(1);
    cq.serve_waiters();
    Ok(())
}

/// Number of waiters.
#[cfg(test)]
pub(crate) fn waiting(handle: VIP_CQ_HANDLE) -> Result<usize, Error> {
    Ok(lock(handle)?.waiters.count())
}
