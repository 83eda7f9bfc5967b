//! A completion queue: entries and waiters (spec §7).
//!
//! An entry identifies a VI and one of its queues. Entries are pushed by completions, under the lock of the
//! VI; the lock of the CQ is nested inside it.

use std::collections::VecDeque;

use vipl_abi::*;
use vipl_pages::layout;

use super::event::Event;
use super::hot::Hot;
use super::lent::Lender;
use crate::nic::events::{CqNotifyHandler, Job};
use crate::nic::waiters::{Waiter, Waiters};
use crate::object::table::Slot;

/// One entry.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The VI.
    pub vi: VIP_VI_HANDLE,
    /// Whether it is a completion of the receive queue.
    pub recv: bool,
}

/// What a waiter that is no thread gets.
#[derive(Clone, Copy)]
pub(super) enum Request {
    /// A call with the oldest entry, which is removed.
    Handler(CqNotifyHandler),
    /// The event that there is an entry, which stays.
    Event,
}

/// One completion queue. `V` identifies a VI.
pub(crate) struct Cq<V: 'static> {
    pub(super) entries: VecDeque<Entry>,
    pub(super) hot: Hot<V>,
    pub(super) polls: u32,
    /// Consecutive empty polls.
    pub(super) empty_polls: u32,
    pub(super) capacity: usize,
    pub(super) overflowed: bool,
    pub(super) attached: u32,
    pub(super) waiters: Waiters<Request, Entry>,
    pub(super) handle: VIP_CQ_HANDLE,
    /// What `vipstat` sees of it.
    pub(super) page: &'static layout::Cq,
    pub(crate) nic: Lender,
    /// For event loops; most queues have none.
    pub(super) event: Option<Event>,
}

// SAFETY: handles are plain values.
unsafe impl<V: Sync> Send for Cq<V> {}

impl<V> Cq<V> {
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.page.taken.add(1);
        self.empty_polls = 0;
        if self.entries.is_empty() {
            self.overflowed = false;
        }
        Some(entry)
    }

    /// Delivers entries to the waiters, in order of arrival.
    pub(super) fn serve_waiters(&mut self) {
        let mut woken = false;
        let mut served = 0;
        let mut notified = Vec::new();
        while !self.entries.is_empty() {
            let Some(waiter) = self.waiters.next() else {
                break;
            };
            match waiter {
                Waiter::Thread { ticket, .. } => {
                    let Some(entry) = self.pop() else { break };
                    self.waiters.deliver(ticket, entry);
                    woken = true;
                }
                Waiter::Notify { handler, context } => {
                    served += 1;
                    match handler {
                        Request::Event => self.raise_event(),
                        Request::Handler(handler) => {
                            let Some(entry) = self.pop() else { break };
                            notified.push(Job::Entry {
                                handler,
                                context,
                                cq: self.handle.addr(),
                                vi: entry.vi.addr(),
                                recv: entry.recv,
                            });
                        }
                    }
                }
            }
        }
        if woken {
            self.nic.wake();
        }
        if served > 0 {
            self.nic.count_requests(-served);
        }
        if !notified.is_empty() {
            self.nic.push(notified);
        }
    }

    fn raise_event(&mut self) {
        if let Some(event) = &mut self.event {
            event.armed = false;
            event.raise();
        }
    }
}

/// Records completions. The VI is locked.
pub(crate) fn push<V>(
    cq: &'static Slot<Cq<V>>,
    slot: Option<&'static V>,
    vi: VIP_VI_HANDLE,
    recv: bool,
    count: u32,
) {
    let Some(mut cq) = cq.lock_any() else { return };
    cq.page.added.add(count as usize);
    for _ in 0..count {
        cq.entries.push_back(Entry { vi, recv });
    }
    if let (true, Some(slot)) = (recv, slot) {
        cq.hot.remember(slot);
    }
    if !cq.waiters.is_empty() {
        cq.serve_waiters();
    }
    if cq.entries.len() > cq.capacity && !cq.overflowed {
        overflow(&mut cq);
    }
}

/// Spec §7.3: nothing is lost, but the overflow is reported once.
#[cold]
fn overflow<V>(cq: &mut Cq<V>) {
    cq.overflowed = true;
    cq.page.overflows.add(1);
    let error = VIP_ERROR_DESCRIPTOR {
        NicHandle: cq.nic.handle,
        ViHandle: std::ptr::null_mut(),
        CQHandle: cq.handle,
        DescriptorPtr: std::ptr::null_mut(),
        OpCode: 0,
        ResourceCode: VIP_RESOURCE_CODE::VIP_RESOURCE_CQ,
        ErrorCode: VIP_ERROR_CODE::VIP_ERROR_VI_OVERRUN,
    };
    cq.nic.raise(error);
}
