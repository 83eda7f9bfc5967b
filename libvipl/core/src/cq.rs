//! Completion queues (spec §3.24 to §3.29, §7).
//!
//! An entry names a VI and one of its queues. Entries come from completions, under the lock of the VI;
//! the lock of the CQ is taken inside it. To poll, a CQ asks the VIs that were active last, and from time
//! to time the plug-in which others have something, so that the cost does not grow with their number.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vipl_abi::*;

use crate::clock;
use crate::error::Error;
use crate::nic::events::Job;
use crate::nic::idle;
use crate::nic::wait as sleeping;
use crate::nic::{self, Nic};
use crate::object::handle::Kind;
use crate::object::table::{Guard, Slot, Table};
use crate::vi::Vi;

static CQS: Table<Cq> = Table::new(Kind::Cq);

/// VIs that a poll asks directly.
const HOT: usize = 2;
/// Every so many polls the plug-in is asked which VIs have something.
const SCAN_PERIOD: u32 = 8;

/// Handler of VipCQNotify.
pub(crate) type CqNotifyHandler =
    unsafe extern "C" fn(VIP_PVOID, VIP_NIC_HANDLE, VIP_VI_HANDLE, VIP_BOOLEAN);

/// One entry.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Whose completion.
    pub vi: VIP_VI_HANDLE,
    /// Of its receive queue.
    pub recv: bool,
}

enum Waiter {
    Thread(u64),
    Notify {
        handler: CqNotifyHandler,
        context: usize,
    },
}

/// One completion queue.
pub(crate) struct Cq {
    entries: VecDeque<Entry>,
    hot: [Option<&'static Slot<Vi>>; HOT],
    polls: u32,
    /// Polls in vain since there was something.
    vain: u32,
    capacity: usize,
    overflowed: bool,
    attached: u32,
    waiters: VecDeque<Waiter>,
    given: Vec<(u64, Entry)>,
    last_ticket: u64,
    handle: VIP_CQ_HANDLE,
    pub(crate) nic: Arc<Nic>,
}

// SAFETY: handles are plain values.
unsafe impl Send for Cq {}

impl Cq {
    #[inline(always)]
    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.vain = 0;
        if self.entries.is_empty() {
            self.overflowed = false;
        }
        Some(entry)
    }

    fn claim(&mut self, ticket: u64) -> Option<Entry> {
        let place = self.given.iter().position(|(owner, _)| *owner == ticket)?;
        Some(self.given.swap_remove(place).1)
    }

    fn notifications(&self) -> usize {
        self.waiters
            .iter()
            .filter(|waiter| matches!(waiter, Waiter::Notify { .. }))
            .count()
    }

    /// Serves those who stand in line.
    fn serve_line(&mut self) {
        let mut woken = false;
        let mut notified = Vec::new();
        while !self.waiters.is_empty() {
            let Some(entry) = self.pop() else { break };
            match self.waiters.pop_front() {
                Some(Waiter::Thread(ticket)) => {
                    self.given.push((ticket, entry));
                    woken = true;
                }
                Some(Waiter::Notify { handler, context }) => notified.push(Job::Entry {
                    handler,
                    context,
                    cq: self.handle.addr(),
                    vi: entry.vi.addr(),
                    recv: entry.recv,
                }),
                None => {}
            }
        }
        if woken {
            self.nic.wake();
        }
        if !notified.is_empty() {
            self.nic.events.watch(-(notified.len() as i32), &self.nic);
            self.nic.events.push(notified, &self.nic);
        }
    }
}

fn lock(handle: VIP_CQ_HANDLE) -> Result<Guard<Cq>, Error> {
    CQS.lock(handle).ok_or(Error::InvalidParameter)
}

/// The NIC handle of a live CQ.
pub(crate) fn owner(handle: VIP_CQ_HANDLE) -> Option<VIP_NIC_HANDLE> {
    Some(lock(handle).ok()?.nic.handle)
}

/// A queue of a new VI begins to use a CQ of the same NIC handle, or none.
pub(crate) fn attach(
    nic: &Arc<Nic>,
    handle: VIP_CQ_HANDLE,
) -> Result<Option<&'static Slot<Cq>>, Error> {
    if handle.is_null() {
        return Ok(None);
    }
    let mut cq = lock(handle)?;
    if !nic::owns_cq(nic, &cq) {
        return Err(Error::InvalidParameter);
    }
    cq.attached += 1;
    Ok(Some(cq.slot()))
}

/// The VI did not come about.
pub(crate) fn release(cq: Option<&'static Slot<Cq>>) {
    if let Some(mut cq) = cq.and_then(Slot::lock_any) {
        cq.attached -= 1;
    }
}

/// A work queue uses the CQ no more; entries of its VI go.
pub(crate) fn detach(cq: &'static Slot<Cq>, vi: VIP_VI_HANDLE) {
    if let Some(mut cq) = cq.lock_any() {
        cq.attached -= 1;
        cq.entries.retain(|entry| entry.vi != vi);
        cq.overflowed &= !cq.entries.is_empty();
        cq.hot = [None; HOT];
    }
}

/// Records completions. The VI is locked.
pub(crate) fn push(
    cq: &'static Slot<Cq>,
    slot: Option<&'static Slot<Vi>>,
    vi: VIP_VI_HANDLE,
    recv: bool,
    count: u32,
) {
    let Some(mut cq) = cq.lock_any() else { return };
    for _ in 0..count {
        cq.entries.push_back(Entry { vi, recv });
    }
    if recv {
        remember(&mut cq, slot);
    }
    if !cq.waiters.is_empty() {
        cq.serve_line();
    }
    if cq.entries.len() > cq.capacity && !cq.overflowed {
        overflow(&mut cq);
    }
}

/// Puts a VI in front of those that are asked directly.
#[inline(always)]
fn remember(cq: &mut Cq, slot: Option<&'static Slot<Vi>>) {
    let same = matches!((cq.hot[0], slot), (Some(hot), Some(new)) if std::ptr::eq(hot, new));
    if !same {
        cq.hot.rotate_right(1);
        cq.hot[0] = slot;
    }
}

/// Spec §7.3: nothing is lost, but the program is told once.
#[cold]
fn overflow(cq: &mut Cq) {
    cq.overflowed = true;
    let error = VIP_ERROR_DESCRIPTOR {
        NicHandle: cq.nic.handle,
        ViHandle: std::ptr::null_mut(),
        CQHandle: cq.handle,
        DescriptorPtr: std::ptr::null_mut(),
        OpCode: 0,
        ResourceCode: VIP_RESOURCE_CODE::VIP_RESOURCE_CQ,
        ErrorCode: VIP_ERROR_CODE::VIP_ERROR_VI_OVERRUN,
    };
    cq.nic.events.raise(error, &cq.nic);
}

/// VipCreateCQ.
pub fn create(nic: VIP_NIC_HANDLE, entries: VIP_ULONG) -> Result<VIP_CQ_HANDLE, Error> {
    create_on(&nic::resolve(nic)?, entries)
}

/// The same, on a NIC that may have been closed since it was found.
pub(crate) fn create_on(nic: &Arc<Nic>, entries: VIP_ULONG) -> Result<VIP_CQ_HANDLE, Error> {
    let _inside = nic.enter()?;
    let capacity = check_size(nic, entries)?;
    let before = nic.cq_count.fetch_add(1, Ordering::AcqRel);
    if before >= nic.info.cqs_max {
        nic.cq_count.fetch_sub(1, Ordering::AcqRel);
        log::info!(target: "cq", "no more than {} CQs on one NIC handle", nic.info.cqs_max);
        return Err(Error::Resource);
    }
    let inserted = CQS.insert(&nic.process.cqs, |handle| Cq {
        entries: VecDeque::with_capacity(capacity.min(64)),
        hot: [None; HOT],
        polls: 0,
        vain: 0,
        capacity,
        overflowed: false,
        attached: 0,
        waiters: VecDeque::new(),
        given: Vec::new(),
        last_ticket: 0,
        handle,
        nic: nic.clone(),
    });
    let handle = inserted.ok_or_else(|| {
        nic.cq_count.fetch_sub(1, Ordering::AcqRel);
        Error::Resource
    })?;
    log::debug!(target: "cq", "CQ {handle:?} created with room for {capacity} entries");
    Ok(handle)
}

fn check_size(nic: &Nic, entries: VIP_ULONG) -> Result<usize, Error> {
    match entries as u64 {
        count if (1..=u64::from(nic.info.cq_entries_max)).contains(&count) => Ok(count as usize),
        count => {
            log::info!(
                target: "cq",
                "a CQ has 1 to {} entries, not {count}", nic.info.cq_entries_max
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
    let guard = lock(handle)?;
    if guard.attached > 0 {
        log::info!(
            target: "cq",
            "VipDestroyCQ refused: {} queues of VIs use the CQ; call VipDestroyVi first", guard.attached
        );
        return Err(Error::Resource);
    }
    let process = guard.nic.process;
    let cq = CQS.remove(&process.cqs, guard, handle);
    cq.nic.cq_count.fetch_sub(1, Ordering::AcqRel);
    cq.nic.events.watch(-(cq.notifications() as i32), &cq.nic);
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
        log::info!(
            target: "cq",
            "VipResizeCQ refused: {} entries are waiting in the CQ, more than {capacity}", cq.entries.len()
        );
        return Err(Error::Resource);
    }
    cq.capacity = capacity;
    Ok(())
}

/// VipCQDone.
#[inline(always)]
pub fn done(handle: VIP_CQ_HANDLE) -> Result<Entry, Error> {
    let mut cq = lock(handle)?;
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

/// The end of a poll that found nothing.
#[inline(always)]
fn leave_empty(mut cq: Guard<Cq>) {
    cq.vain = cq.vain.wrapping_add(1);
    if idle::is_due(cq.vain) {
        give_way(cq);
    }
}

/// Lets other threads have the processor after polls in vain.
#[cold]
#[inline(never)]
fn give_way(cq: Guard<Cq>) {
    let (slot, generation, vain) = (cq.slot(), cq.generation(), cq.vain);
    let process = cq.nic.process;
    drop(cq);
    if !idle::give_way(&process.settings, vain) {
        return;
    }
    let Some(nic) = slot.lock(generation).map(|cq| cq.nic.clone()) else {
        return;
    };
    idle::nap(&nic, || {
        nic.progress();
        slot.lock(generation)
            .is_none_or(|cq| !cq.entries.is_empty())
    });
}

/// Lets VIs that may have something take it; the CQ is unlocked meanwhile.
#[inline(always)]
fn poll(mut cq: Guard<Cq>) -> Option<Guard<Cq>> {
    let (slot, generation, hot) = (cq.slot(), cq.generation(), cq.hot);
    cq.polls = cq.polls.wrapping_add(1);
    let scan = hot[0].is_none() || cq.polls.is_multiple_of(SCAN_PERIOD);
    let nic = scan.then(|| cq.nic.clone());
    drop(cq);
    for vi in hot.into_iter().flatten() {
        if let Some(mut vi) = vi.lock_any() {
            vi.progress();
        }
    }
    if let Some(nic) = nic {
        nic.progress();
    }
    slot.lock(generation)
}

/// VipCQWait.
pub fn wait(handle: VIP_CQ_HANDLE, timeout: VIP_ULONG) -> Result<Entry, Error> {
    let deadline = clock::deadline(timeout);
    let mut cq = lock(handle)?;
    if cq.waiters.is_empty()
        && let Some(entry) = cq.pop()
    {
        return Ok(entry);
    }
    cq.polls = SCAN_PERIOD - 1;
    let mut cq = poll(cq).ok_or(Error::InvalidParameter)?;
    if cq.waiters.is_empty()
        && let Some(entry) = cq.pop()
    {
        return Ok(entry);
    }
    if timeout == 0 {
        leave_empty(cq);
        return Err(Error::Timeout);
    }
    cq.last_ticket += 1;
    let ticket = cq.last_ticket;
    cq.waiters.push_back(Waiter::Thread(ticket));
    let (slot, generation, nic) = (cq.slot(), cq.generation(), cq.nic.clone());
    drop(cq);
    let outcome = sleeping::until(&nic, deadline, || {
        nic.progress();
        match slot.lock(generation) {
            Some(mut cq) => cq.claim(ticket).map(Ok),
            None => Some(Err(Error::InvalidParameter)),
        }
    });
    outcome.unwrap_or_else(|| {
        let mut cq = slot.lock(generation).ok_or(Error::InvalidParameter)?;
        if let Some(entry) = cq.claim(ticket) {
            return Ok(entry);
        }
        cq.waiters
            .retain(|waiter| !matches!(waiter, Waiter::Thread(owner) if *owner == ticket));
        Err(Error::Timeout)
    })
}

/// VipCQNotify.
pub fn notify(
    handle: VIP_CQ_HANDLE,
    context: VIP_PVOID,
    handler: Option<CqNotifyHandler>,
) -> Result<(), Error> {
    let mut cq = lock(handle)?;
    let handler = handler.ok_or(Error::InvalidParameter)?;
    cq.nic.events.start(&cq.nic)?;
    cq.waiters.push_back(Waiter::Notify {
        handler,
        context: context.addr(),
    });
    cq.nic.events.watch(1, &cq.nic);
    cq.serve_line();
    Ok(())
}

/// How many stand in line.
#[cfg(test)]
pub(crate) fn waiting(handle: VIP_CQ_HANDLE) -> Result<usize, Error> {
    Ok(lock(handle)?.waiters.len())
}
