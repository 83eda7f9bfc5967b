//! One run: a NIC of the test's device, its objects, and the random calls.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use vipl_abi::*;

use super::calls::{Context, entry, on_error, pointer, taken};
use super::device::{self, Plan};
use super::oracle::{Answer, Call, Oracle, State};
use crate::cq;
use crate::memory::ptag;
use crate::nic;
use crate::plugin::host;
use crate::vi::{self, Which};

/// Time limit for events that must happen, on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum VIs at a time.
const VIS: usize = 5;
/// Maximum CQs at a time.
pub(super) const CQS: usize = 3;
/// More than fit into all queues.
const DESCRIPTORS: usize = 1024;
/// Maximum waiting threads at a time.
pub(super) const THREADS: usize = 3;

/// Number of empty polls of a CQ after which every VI has been checked.
const POLLS: usize = 8;

/// splitmix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn which(&mut self) -> Which {
        if self.one_in(2) {
            Which::Send
        } else {
            Which::Recv
        }
    }

    pub(super) fn key<K: Copy + Ord, V>(&mut self, map: &BTreeMap<K, V>) -> Option<K> {
        let keys: Vec<K> = map.keys().copied().collect();
        (!keys.is_empty()).then(|| keys[self.below(keys.len())])
    }
}

/// 64 bytes for a descriptor.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Place([u32; 16]);

type Channel<T> = (Sender<T>, Receiver<T>);

pub(super) struct Run {
    pub(super) random: Random,
    pub(super) nic: VIP_NIC_HANDLE,
    pub(super) ptag: VIP_PROTECTION_HANDLE,
    pub(super) oracle: Oracle,
    /// The descriptors, as a pointer, since the library writes there.
    places: *mut [Place],
    pub(super) free: Vec<usize>,
    calls: Channel<Call>,
    pub(super) answers: Channel<(u64, Answer)>,
    contexts: Vec<*mut Context>,
    /// Numbers of requests, threads and CQs.
    pub(super) last: u64,
    pub(super) threads: usize,
}

impl Run {
    pub(super) fn new(seed: u64, with_ready: bool) -> Run {
        let nic = crate::device::open_without_agent(device::plugin(with_ready)).unwrap();
        let places: Box<[Place]> = vec![Place([0; 16]); DESCRIPTORS].into();
        let mut run = Run {
            random: Random(seed),
            nic,
            ptag: ptag::create(nic).unwrap(),
            oracle: Oracle::default(),
            places: Box::into_raw(places),
            free: Vec::new(),
            calls: channel(),
            answers: channel(),
            contexts: Vec::new(),
            last: 0,
            threads: 0,
        };
        run.free = (0..DESCRIPTORS).map(|n| run.place(n)).collect();
        let context = run.context();
        crate::handlers::set_error_handler(nic, context, Some(on_error)).unwrap();
        run
    }

    fn place(&self, number: usize) -> usize {
        self.places
            .cast::<Place>()
            .wrapping_add(number)
            .expose_provenance()
    }

    /// Words of a descriptor: 3 has SegCount and Control, 5 to 7 ImmediateData, Length, Status.
    fn word(at: usize, word: usize) -> *mut u32 {
        pointer(at).cast::<u32>().wrapping_add(word)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A context for the request with the next number.
    pub(super) fn context(&mut self) -> VIP_PVOID {
        let context = Context {
            request: self.next(),
            calls: self.calls.0.clone(),
        };
        let context = Box::into_raw(Box::new(context));
        self.contexts.push(context);
        context.cast()
    }

    pub(super) fn handle(&self, vi: u32) -> VIP_VI_HANDLE {
        pointer(self.oracle.vi(vi).handle)
    }

    /// One random call, and the checks after it.
    pub(super) fn step(&mut self, step: u32) {
        if self.oracle.vis.is_empty() || (self.oracle.vis.len() < VIS && self.random.one_in(20)) {
            self.create_vi();
        }
        let Some(vi) = self.random.key(&self.oracle.vis) else {
            return;
        };
        let which = self.random.which();
        match self.random.below(100) {
            0..30 => self.post(vi, which),
            30..50 => self.arrive(vi),
            50..66 => self.done(vi, which),
            66..70 => self.wait(vi, which),
            70..72 => self.watch(vi),
            72..82 => self.cq_done(),
            82..84 => self.cq_wait(),
            84..86 => self.cq_change(),
            86..89 => self.notify(vi, which),
            89..91 => self.cq_notify(),
            91..93 => self.thread(vi, which),
            93..94 => self.cq_thread(),
            94..98 => self.connect(vi),
            98..99 => self.fail(vi),
            _ => self.destroy_vi(vi),
        }
        self.happened();
        self.look();
        // More than 1024 undelivered errors are dropped (spec §11).
        if step.is_multiple_of(32) || self.oracle.calls.len() > 500 {
            self.settle();
        }
    }

    /// Applies the actions of the device to the oracle.
    fn happened(&mut self) {
        for event in device::record() {
            self.oracle.happened(event);
        }
    }

    /// Checks the descriptors in memory.
    pub(super) fn look(&mut self) {
        self.oracle.check();
        for at in self.oracle.owned() {
            // SAFETY: the test's memory, which is not written now.
            let status = unsafe { Self::word(at, 7).read() };
            assert_eq!(status, 0, "Status of a descriptor that is not complete");
        }
        for (at, expected) in std::mem::take(&mut self.oracle.taken) {
            // SAFETY: as above.
            let (length, status) = unsafe { (Self::word(at, 6).read(), Self::word(at, 7).read()) };
            assert_eq!(
                status, expected,
                "Status of a descriptor that was taken off"
            );
            let flushed = status & VIP_STATUS_DESC_FLUSHED_ERROR != 0;
            if status & VIP_STATUS_OP_MASK == VIP_STATUS_OP_RECEIVE {
                assert_eq!(length, if flushed { 0 } else { 77 }, "Length of a receive");
            }
            self.free.push(at);
        }
    }

    /// Waits until handlers have been called and threads have returned, as the oracle expects.
    pub(super) fn settle(&mut self) {
        for expected in std::mem::take(&mut self.oracle.calls) {
            let call = self.calls.1.recv_timeout(PATIENCE);
            assert_eq!(call, Ok(expected), "calls of handlers");
        }
        while !self.oracle.given.is_empty() {
            let answer = self.answers.1.recv_timeout(PATIENCE);
            let Ok((id, answer)) = answer else {
                panic!("threads do not return: {:?}", self.oracle.given);
            };
            assert_eq!(Some(answer), self.oracle.given.remove(&id), "thread {id}");
            self.threads -= 1;
        }
        assert!(
            self.calls.1.try_recv().is_err(),
            "a handler was called once too often"
        );
        assert!(
            self.answers.1.try_recv().is_err(),
            "a thread returned early"
        );
    }

    fn post(&mut self, vi: u32, which: Which) {
        let burst = if self.random.one_in(8) { 40 } else { 3 };
        for _ in 0..1 + self.random.below(burst) {
            let place = self.free.pop().expect("more places than room");
            let operation = self.random.below(3) as u32;
            // SAFETY: the test's memory, which is not otherwise used now.
            unsafe {
                Self::word(place, 3).write(operation << 16);
                Self::word(place, 6).write(12345);
                Self::word(place, 7).write(u32::MAX);
            }
            let send = [
                VIP_STATUS_OP_SEND,
                VIP_STATUS_OP_RDMA_WRITE,
                VIP_STATUS_OP_RDMA_READ,
            ];
            let opcode = match which {
                Which::Send => send[operation as usize],
                Which::Recv => VIP_STATUS_OP_RECEIVE,
            };
            let (at, opcode) = match self.random.below(60) {
                0 => (place + 8, None),
                1 => (0, None),
                _ => (place, Some(opcode)),
            };
            let expected = self.oracle.post(vi, which, at, opcode);
            let posted = vi::post(self.handle(vi), which, pointer(at).cast(), 0);
            assert_eq!(posted, expected);
            if posted.is_err() {
                self.free.push(place);
            }
        }
    }

    /// Plans an arrival on a connected VI, of which the library does not know yet.
    fn arrive(&mut self, vi: u32) {
        if self.oracle.vi(vi).state != State::Connected {
            return;
        }
        let mut due = Vec::new();
        let mut left = [Which::Send, Which::Recv]
            .map(|which| self.oracle.queue(vi, which).pending() - device::planned(vi, which));
        for _ in 0..self.random.below(12) {
            let which = self.random.which();
            let left = &mut left[usize::from(which == Which::Recv)];
            if *left == 0 {
                continue;
            }
            *left -= 1;
            let operation = match which {
                Which::Send => VIP_STATUS_OP_SEND,
                Which::Recv => VIP_STATUS_OP_RECEIVE,
            };
            let error = match self.random.below(10) {
                0 => VIP_STATUS_LENGTH_ERROR,
                1 => VIP_STATUS_TRANSPORT_ERROR,
                _ => 0,
            };
            due.push((which, VIP_STATUS_DONE | operation | error));
        }
        let signal_each = self.random.one_in(2);
        device::plan(vi, Plan { due, signal_each });
    }

    pub(super) fn done(&mut self, vi: u32, which: Which) {
        for _ in 0..1 + self.random.below(6) {
            let found = taken(&vi::done(self.handle(vi), which));
            self.happened();
            assert_eq!(found, self.oracle.done(vi, which, VIP_RETURN::VIP_NOT_DONE));
        }
    }

    fn timeout(&mut self) -> VIP_ULONG {
        self.random.below(2) as VIP_ULONG
    }

    fn wait(&mut self, vi: u32, which: Which) {
        let found = taken(&vi::wait(self.handle(vi), which, self.timeout()).finish());
        self.happened();
        let expected = if self.oracle.queue(vi, which).cq.is_some() {
            Answer::Nothing(VIP_RETURN::VIP_INVALID_PARAMETER)
        } else {
            self.oracle.done(vi, which, VIP_RETURN::VIP_TIMEOUT)
        };
        assert_eq!(found, expected);
    }

    /// Polls a VI as a thread of the plug-in.
    fn watch(&mut self, vi: u32) {
        let nic = nic::resolve(self.nic).unwrap();
        let end = Instant::now() + PATIENCE;
        // SAFETY: the NIC is open, and this thread is inside no operation.
        while unsafe { (host::HOST.poll)(nic.abi(), vi) } == vipl_plugin_abi::VIPL_POLL_BUSY {
            assert!(Instant::now() < end, "the VI stays busy");
        }
        let left = device::planned(vi, Which::Send) + device::planned(vi, Which::Recv);
        assert_eq!(left, 0, "a watcher leaves nothing behind");
    }

    fn cq_done(&mut self) {
        let Some(number) = self.random.key(&self.oracle.cqs) else {
            return;
        };
        let handle = pointer(self.oracle.cqs[&number].handle);
        let mut polls = 0;
        for _ in 0..1 + self.random.below(2 * POLLS) {
            let found = entry(cq::done(handle));
            self.happened();
            let expected = self.oracle.cq_done(number, VIP_RETURN::VIP_NOT_DONE);
            assert_eq!(found, expected);
            polls = if found == Answer::Nothing(VIP_RETURN::VIP_NOT_DONE) {
                polls + 1
            } else {
                0
            };
        }
        let unseen = |vi: &u32, which: Which| {
            self.oracle.queue(*vi, which).cq == Some(number) && device::planned(*vi, which) > 0
        };
        if polls >= POLLS {
            let mut vis = self.oracle.vis.keys();
            let unseen = vis.find(|vi| unseen(vi, Which::Send) || unseen(vi, Which::Recv));
            assert_eq!(
                unseen, None,
                "{polls} polls have not found what this VI has"
            );
        }
    }

    fn cq_wait(&mut self) {
        let Some(number) = self.random.key(&self.oracle.cqs) else {
            return;
        };
        let handle = pointer(self.oracle.cqs[&number].handle);
        let found = entry(cq::wait(handle, self.timeout()).finish());
        self.happened();
        let expected = self.oracle.cq_done(number, VIP_RETURN::VIP_TIMEOUT);
        assert_eq!(found, expected);
    }

    /// Frees memory to which the library had pointers; the NIC is closed.
    pub(super) fn free_all(self) {
        // SAFETY: all made by `Box::into_raw`; no handler and no VI is left.
        unsafe {
            for context in self.contexts {
                drop(Box::from_raw(context));
            }
            drop(Box::from_raw(self.places));
        }
    }
}
