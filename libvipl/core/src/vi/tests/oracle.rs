//! The expected results of one NIC's queues, from the specification alone (§4.3, §4.4, §7, §8): simple lists,
//! without rings and wrapping counters.

use std::collections::{BTreeMap, VecDeque};

use vipl_abi::*;

use super::device::{DESCRIPTORS_MAX, Event};
use crate::error::Error;
use crate::vi::Which;

/// State of a VI.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    Idle,
    Connected,
    Error,
}

/// The result of a call that removes something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Answer {
    Nothing(VIP_RETURN),
    Descriptor { result: VIP_RETURN, at: usize },
    Entry { vi: usize, which: Which },
}

/// A call of one of the application's handlers. `request` identifies the registration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Call {
    Descriptor {
        request: u64,
        vi: usize,
        at: usize,
    },
    Entry {
        request: u64,
        vi: usize,
        which: Which,
    },
    Error {
        code: VIP_ERROR_CODE,
        vi: usize,
        cq: usize,
        at: usize,
    },
}

/// A waiter for a completion.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiter {
    Thread(u64),
    Handler(u64),
}

/// One posted descriptor; no status until it is complete.
struct Posted {
    at: usize,
    opcode: u32,
    status: Option<u32>,
}

#[derive(Default)]
pub(super) struct Queue {
    posted: VecDeque<Posted>,
    pub cq: Option<usize>,
    line: VecDeque<Waiter>,
    /// Completions not yet reported to its CQ.
    unreported: usize,
}

impl Queue {
    fn new(cq: Option<usize>) -> Queue {
        Queue {
            cq,
            ..Queue::default()
        }
    }

    fn complete(&self) -> usize {
        self.posted.iter().filter(|p| p.status.is_some()).count()
    }

    pub(super) fn pending(&self) -> usize {
        self.posted.len() - self.complete()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    pub(super) fn in_line(&self) -> usize {
        self.line.len()
    }

    /// Whether a wait would have to wait.
    pub(super) fn is_quiet(&self) -> bool {
        !self.posted.is_empty() && (self.complete() == 0 || !self.line.is_empty())
    }

    fn take(&mut self) -> Option<(usize, u32)> {
        let status = self.posted.front()?.status?;
        self.posted.pop_front().map(|posted| (posted.at, status))
    }
}

pub(super) struct Vi {
    pub handle: usize,
    pub state: State,
    pub queues: [Queue; 2],
}

pub(super) struct Cq {
    pub handle: usize,
    capacity: usize,
    entries: VecDeque<(usize, Which)>,
    line: VecDeque<Waiter>,
    /// Whether an overflow has been reported since it was empty.
    overflowed: bool,
}

impl Cq {
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn in_line(&self) -> usize {
        self.line.len()
    }

    fn pop(&mut self) -> Option<(usize, Which)> {
        let entry = self.entries.pop_front();
        self.overflowed &= !self.entries.is_empty();
        entry
    }
}

/// The whole NIC. Keys are the numbers of VIs, and numbers of the test's for CQs.
#[derive(Default)]
pub(super) struct Oracle {
    pub vis: BTreeMap<u32, Vi>,
    pub cqs: BTreeMap<usize, Cq>,
    /// The expected calls of handlers, in order.
    pub calls: Vec<Call>,
    /// The expected results of waiting threads.
    pub given: BTreeMap<u64, Answer>,
    /// Final status of each removed descriptor, with its address.
    pub taken: Vec<(usize, u32)>,
}

fn number(which: Which) -> usize {
    usize::from(which == Which::Recv)
}

fn result(status: u32) -> VIP_RETURN {
    if status & VIP_STATUS_ERROR_MASK == 0 {
        VIP_RETURN::VIP_SUCCESS
    } else {
        VIP_RETURN::VIP_DESCRIPTOR_ERROR
    }
}

impl Oracle {
    pub(super) fn new_vi(&mut self, index: u32, handle: usize, cqs: [Option<usize>; 2]) {
        let queues = cqs.map(Queue::new);
        let state = State::Idle;
        let before = self.vis.insert(
            index,
            Vi {
                handle,
                state,
                queues,
            },
        );
        assert!(before.is_none(), "VI number {index} was given twice");
    }

    pub(super) fn new_cq(&mut self, number: usize, handle: usize, capacity: usize) {
        let cq = Cq {
            handle,
            capacity,
            entries: VecDeque::new(),
            line: VecDeque::new(),
            overflowed: false,
        };
        self.cqs.insert(number, cq);
    }

    pub(super) fn vi(&self, vi: u32) -> &Vi {
        &self.vis[&vi]
    }

    pub(super) fn queue(&self, vi: u32, which: Which) -> &Queue {
        &self.vi(vi).queues[number(which)]
    }

    fn queue_mut(&mut self, vi: u32, which: Which) -> &mut Queue {
        let vi = self.vis.get_mut(&vi).expect("a VI of the test");
        &mut vi.queues[number(which)]
    }

    fn error(&mut self, code: VIP_ERROR_CODE, vi: usize, cq: usize, at: usize) {
        self.calls.push(Call::Error { code, vi, cq, at });
    }

    /// A post; `opcode` is the value that a flush would write, `None` if the descriptor is bad (POST-02).
    pub(super) fn post(
        &mut self,
        vi: u32,
        which: Which,
        at: usize,
        opcode: Option<u32>,
    ) -> Result<(), Error> {
        let handle = self.vi(vi).handle;
        let Some(opcode) = opcode else {
            if at != 0 {
                self.error(VIP_ERROR_CODE::VIP_ERROR_POST_DESC, handle, 0, at);
            }
            return Err(Error::InvalidParameter);
        };
        let queue = self.queue_mut(vi, which);
        if queue.posted.len() >= DESCRIPTORS_MAX as usize {
            self.error(VIP_ERROR_CODE::VIP_ERROR_VI_OVERRUN, handle, 0, at);
            return Err(Error::Resource);
        }
        let status = None;
        queue.posted.push_back(Posted { at, opcode, status });
        let kept = which == Which::Recv && self.vi(vi).state == State::Idle;
        if self.vi(vi).state != State::Connected && !kept {
            self.flush(vi, which);
        }
        Ok(())
    }

    /// Flushes all incomplete descriptors.
    pub(super) fn flush(&mut self, vi: u32, which: Which) {
        let queue = self.queue_mut(vi, which);
        if queue.pending() == 0 {
            return;
        }
        for posted in &mut queue.posted {
            if posted.status.is_none() {
                let flushed = VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR;
                posted.status = Some(flushed | posted.opcode);
                queue.unreported += 1;
            }
        }
        self.deliver(vi, which);
    }

    /// Applies an action of the device.
    pub(super) fn happened(&mut self, event: Event) {
        match event {
            Event::Completed {
                vi,
                which,
                descriptor,
                status,
            } => {
                let queue = self.queue_mut(vi, which);
                let oldest = queue.posted.iter_mut().find(|p| p.status.is_none());
                let oldest = oldest.expect("the device found a descriptor that nobody has posted");
                assert_eq!(oldest.at, descriptor, "the device found another descriptor");
                oldest.status = Some(status);
                queue.unreported += 1;
            }
            Event::Signalled { vi, which } => self.deliver(vi, which),
        }
    }

    /// Delivers new completions to the CQ or the waiters.
    fn deliver(&mut self, vi: u32, which: Which) {
        let handle = self.vi(vi).handle;
        let queue = self.queue_mut(vi, which);
        let unreported = std::mem::take(&mut queue.unreported);
        if let Some(cq) = queue.cq {
            self.push(cq, handle, which, unreported);
            return;
        }
        while let queue = self.queue_mut(vi, which)
            && !queue.line.is_empty()
            && let Some((at, status)) = queue.take()
        {
            let result = result(status);
            match queue.line.pop_front() {
                Some(Waiter::Thread(id)) => {
                    self.given.insert(id, Answer::Descriptor { result, at });
                }
                Some(Waiter::Handler(request)) => self.calls.push(Call::Descriptor {
                    request,
                    vi: handle,
                    at,
                }),
                None => {}
            }
            self.taken.push((at, status));
        }
    }

    fn push(&mut self, number: usize, vi: usize, which: Which, count: usize) {
        let cq = self.cqs.get_mut(&number).expect("a CQ of the test");
        cq.entries.extend((0..count).map(|_| (vi, which)));
        self.serve(number);
        let cq = self.cqs.get_mut(&number).expect("as above");
        if cq.entries.len() > cq.capacity && !cq.overflowed {
            cq.overflowed = true;
            let handle = cq.handle;
            self.error(VIP_ERROR_CODE::VIP_ERROR_VI_OVERRUN, 0, handle, 0);
        }
    }

    fn serve(&mut self, number: usize) {
        let cq = self.cqs.get_mut(&number).expect("a CQ of the test");
        while !cq.line.is_empty() {
            let Some((vi, which)) = cq.pop() else {
                break;
            };
            match cq.line.pop_front() {
                Some(Waiter::Thread(id)) => {
                    self.given.insert(id, Answer::Entry { vi, which });
                }
                Some(Waiter::Handler(request)) => {
                    self.calls.push(Call::Entry { request, vi, which });
                }
                None => {}
            }
        }
    }

    /// Done; a wait returns `yet` instead of VIP_NOT_DONE, and leaves completions of other waiters.
    pub(super) fn done(&mut self, vi: u32, which: Which, yet: VIP_RETURN) -> Answer {
        let queue = self.queue_mut(vi, which);
        if queue.is_empty() {
            return Answer::Nothing(VIP_RETURN::VIP_DESCRIPTOR_ERROR);
        }
        let Some((at, status)) = queue.take() else {
            return Answer::Nothing(yet);
        };
        self.taken.push((at, status));
        let result = result(status);
        Answer::Descriptor { result, at }
    }

    pub(super) fn cq_done(&mut self, number: usize, yet: VIP_RETURN) -> Answer {
        let cq = self.cqs.get_mut(&number).expect("a CQ of the test");
        match cq.pop() {
            Some((vi, which)) => Answer::Entry { vi, which },
            None => Answer::Nothing(yet),
        }
    }

    /// Adds a thread or a handler to the waiters of a queue.
    pub(super) fn join(&mut self, vi: u32, which: Which, waiter: Waiter) {
        self.queue_mut(vi, which).line.push_back(waiter);
        self.deliver(vi, which);
    }

    pub(super) fn cq_join(&mut self, number: usize, waiter: Waiter) {
        let cq = self.cqs.get_mut(&number).expect("a CQ of the test");
        cq.line.push_back(waiter);
        self.serve(number);
    }

    pub(super) fn set_state(&mut self, vi: u32, state: State) {
        self.vis.get_mut(&vi).expect("a VI of the test").state = state;
    }

    pub(super) fn resize_cq(&mut self, number: usize, capacity: usize) {
        self.cqs
            .get_mut(&number)
            .expect("a CQ of the test")
            .capacity = capacity;
    }

    /// Destroys a VI, with its entries on CQs; threads that wait on it are notified. Returns the descriptors
    /// left on its queues.
    pub(super) fn destroy_vi(&mut self, index: u32) -> Vec<usize> {
        let vi = self.vis.remove(&index).expect("a VI of the test");
        for cq in vi.queues.iter().filter_map(|queue| queue.cq) {
            let cq = self.cqs.get_mut(&cq).expect("a CQ of the test");
            cq.entries.retain(|entry| entry.0 != vi.handle);
            cq.overflowed &= !cq.entries.is_empty();
        }
        let mut left = Vec::new();
        for queue in vi.queues {
            left.extend(queue.posted.iter().map(|posted| posted.at));
            self.dismiss(queue.line);
        }
        left
    }

    pub(super) fn destroy_cq(&mut self, number: usize) {
        let cq = self.cqs.remove(&number).expect("a CQ of the test");
        self.dismiss(cq.line);
    }

    fn dismiss(&mut self, line: impl IntoIterator<Item = Waiter>) {
        for waiter in line {
            if let Waiter::Thread(id) = waiter {
                let stale = VIP_RETURN::VIP_INVALID_PARAMETER;
                self.given.insert(id, Answer::Nothing(stale));
            }
        }
    }

    /// Whether a CQ serves some queue.
    pub(super) fn is_attached(&self, number: usize) -> bool {
        let mut queues = self.vis.values().flat_map(|vi| &vi.queues);
        queues.any(|queue| queue.cq == Some(number))
    }

    /// Invariants after every call: no waiter while a completion is available, and no CQ has missed one.
    pub(super) fn check(&self) {
        for vi in self.vis.values() {
            for queue in &vi.queues {
                assert!(
                    queue.cq.is_none() || queue.unreported == 0,
                    "a CQ was not told"
                );
                assert!(
                    queue.line.is_empty() || queue.complete() == 0,
                    "a waiter was not told"
                );
            }
        }
    }

    /// Addresses of descriptors owned by the device, which must not be marked complete.
    pub(super) fn owned(&self) -> impl Iterator<Item = usize> {
        let queues = self.vis.values().flat_map(|vi| &vi.queues);
        let posted = queues.flat_map(|queue| &queue.posted);
        posted.filter(|p| p.status.is_none()).map(|p| p.at)
    }
}
