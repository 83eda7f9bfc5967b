//! Further calls of a run: creating and destroying objects and connections, waiting threads and handlers.

use std::time::Instant;

use vipl_abi::*;

use super::calls::{entry, on_descriptor, on_entry, pointer, taken};
use super::device::{self, CQ_ENTRIES_MAX};
use super::oracle::{Answer, State, Waiter};
use super::run::{CQS, PATIENCE, Run, THREADS};
use crate::connect;
use crate::cq;
use crate::error::Error;
use crate::memory::ptag;
use crate::process;
use crate::vi::state::CONNECTED;
use crate::vi::{self, Which};

impl Run {
    pub(super) fn create_vi(&mut self) {
        if self.oracle.cqs.len() < CQS {
            self.create_cq();
        }
        let attributes = VIP_VI_ATTRIBUTES {
            ReliabilityLevel: VIP_SERVICE_RELIABLE_DELIVERY,
            MaxTransferSize: 65536,
            QoS: std::ptr::null_mut(),
            Ptag: self.ptag,
            EnableRdmaWrite: VIP_FALSE,
            EnableRdmaRead: VIP_FALSE,
        };
        let cqs = [(); 2].map(|()| {
            let none = self.random.one_in(2);
            self.random.key(&self.oracle.cqs).filter(|_| !none)
        });
        let handles = cqs.map(|cq| {
            cq.map_or(std::ptr::null_mut(), |cq| {
                pointer(self.oracle.cqs[&cq].handle)
            })
        });
        let handle = vi::create(self.nic, &attributes, handles[0], handles[1]).unwrap();
        let mut vi = vi::lock(handle).unwrap();
        // Regardless of the user's settings: no memory is registered here.
        vi.check_descriptor = false;
        for which in [Which::Send, Which::Recv] {
            let start = u32::MAX - self.random.below(300) as u32;
            let (queue, own) = vi.queue(which);
            (queue.posted, queue.completed, queue.taken) = (start, start, start);
            own.signalled = start;
            own.set_slow(queue, 0);
        }
        self.oracle
            .new_vi(vi.abi.index, handle.expose_provenance(), cqs);
    }

    fn create_cq(&mut self) {
        let capacity = 1 + self.random.below(40);
        let handle = cq::create(self.nic, capacity as VIP_ULONG).unwrap();
        let number = self.next() as usize;
        self.oracle
            .new_cq(number, handle.expose_provenance(), capacity);
    }

    /// Resizes or destroys a CQ.
    pub(super) fn cq_change(&mut self) {
        let Some(number) = self.random.key(&self.oracle.cqs) else {
            return;
        };
        let handle = pointer(self.oracle.cqs[&number].handle);
        if self.random.one_in(3) {
            // Pending calls of a handler might or might not be cancelled.
            self.settle();
            let attached = self.oracle.is_attached(number);
            let expected = if attached {
                Err(Error::Resource)
            } else {
                Ok(())
            };
            assert_eq!(cq::destroy(handle), expected);
            if !attached {
                self.oracle.destroy_cq(number);
            }
            return;
        }
        let size = match self.random.below(8) {
            0 => 0,
            1 => CQ_ENTRIES_MAX as usize + 1,
            _ => 1 + self.random.below(80),
        };
        let held = self.oracle.cqs[&number].entries();
        let expected = match size {
            0 => Err(Error::InvalidParameter),
            size if size > CQ_ENTRIES_MAX as usize || size < held => Err(Error::Resource),
            _ => Ok(()),
        };
        assert_eq!(cq::resize(handle, size as VIP_ULONG), expected);
        if expected.is_ok() {
            self.oracle.resize_cq(number, size);
        }
    }

    /// Connects without an agent, or disconnects.
    pub(super) fn connect(&mut self, vi: u32) {
        if self.oracle.vi(vi).state == State::Idle {
            vi::lock(self.handle(vi)).unwrap().set_state(CONNECTED);
            self.oracle.set_state(vi, State::Connected);
        } else if self.random.one_in(3) {
            self.disconnect(vi);
        }
    }

    fn disconnect(&mut self, vi: u32) {
        device::forget(vi);
        connect::disconnect(self.handle(vi)).unwrap();
        self.broken(vi, State::Idle);
    }

    /// Breaks the connection.
    pub(super) fn fail(&mut self, vi: u32) {
        device::forget(vi);
        let cause = vipl_plugin_abi::VIPL_CAUSE_REPORTED;
        let mut locked = vi::lock(self.handle(vi)).unwrap();
        locked.fail(cause, 0, std::ptr::null_mut());
        drop(locked);
        if self.oracle.vi(vi).state == State::Connected {
            self.broken(vi, State::Error);
        }
    }

    fn broken(&mut self, vi: u32, state: State) {
        self.oracle.set_state(vi, state);
        self.oracle.flush(vi, Which::Send);
        self.oracle.flush(vi, Which::Recv);
    }

    pub(super) fn destroy_vi(&mut self, index: u32) {
        if self.random.one_in(2) {
            self.disconnect(index);
        }
        self.settle();
        let vi = self.oracle.vi(index);
        let empty = vi.queues.iter().all(|queue| queue.is_empty());
        let expected = if vi.state != State::Idle {
            Err(Error::State)
        } else if empty || process::get().settings.lenient_destroy() {
            Ok(())
        } else {
            Err(Error::Resource)
        };
        assert_eq!(vi::destroy(self.handle(index)), expected);
        if expected.is_ok() {
            let left = self.oracle.destroy_vi(index);
            self.free.extend(left);
        }
    }

    pub(super) fn notify(&mut self, vi: u32, which: Which) {
        let context = self.context();
        let result = vi::notify(self.handle(vi), which, context, Some(on_descriptor));
        if self.oracle.queue(vi, which).cq.is_some() {
            assert_eq!(result, Err(Error::InvalidParameter));
            return;
        }
        assert_eq!(result, Ok(()));
        self.oracle.join(vi, which, Waiter::Handler(self.last));
    }

    pub(super) fn cq_notify(&mut self) {
        let Some(number) = self.random.key(&self.oracle.cqs) else {
            return;
        };
        let context = self.context();
        let handle = pointer(self.oracle.cqs[&number].handle);
        assert_eq!(cq::notify(handle, context, Some(on_entry)), Ok(()));
        self.oracle.cq_join(number, Waiter::Handler(self.last));
    }

    /// Starts a waiting thread, if it would have to wait.
    pub(super) fn thread(&mut self, vi: u32, which: Which) {
        let queue = self.oracle.queue(vi, which);
        if queue.cq.is_some() || !queue.is_quiet() || self.threads >= THREADS {
            return;
        }
        let (handle, others) = (self.oracle.vi(vi).handle, queue.in_line());
        let id =
            self.start(move || taken(&vi::wait(pointer(handle), which, VIP_INFINITE).finish()));
        until_in_line(others, || {
            let mut vi = vi::lock(pointer(handle)).unwrap();
            vi.queue(which).1.waiters.count()
        });
        self.oracle.join(vi, which, Waiter::Thread(id));
    }

    pub(super) fn cq_thread(&mut self) {
        let Some(number) = self.random.key(&self.oracle.cqs) else {
            return;
        };
        let cq = &self.oracle.cqs[&number];
        if cq.entries() > 0 || self.threads >= THREADS {
            return;
        }
        let (handle, others) = (cq.handle, cq.in_line());
        let id = self.start(move || entry(cq::wait(pointer(handle), VIP_INFINITE).finish()));
        until_in_line(others, || cq::waiting(pointer(handle)).unwrap());
        self.oracle.cq_join(number, Waiter::Thread(id));
    }

    fn start(&mut self, wait: impl FnOnce() -> Answer + Send + 'static) -> u64 {
        let (id, answers) = (self.next(), self.answers.0.clone());
        std::thread::spawn(move || answers.send((id, wait())));
        self.threads += 1;
        id
    }

    /// Destroys everything; waiting threads must learn that their object was destroyed.
    pub(super) fn end(mut self) {
        let vis: Vec<u32> = self.oracle.vis.keys().copied().collect();
        for vi in vis {
            self.disconnect(vi);
            for which in [Which::Send, Which::Recv] {
                while !self.oracle.queue(vi, which).is_empty() {
                    self.done(vi, which);
                }
            }
            self.look();
            self.destroy_vi(vi);
        }
        self.settle();
        let cqs: Vec<usize> = self.oracle.cqs.keys().copied().collect();
        for number in cqs {
            let handle = pointer(self.oracle.cqs[&number].handle);
            assert_eq!(cq::destroy(handle), Ok(()));
            self.oracle.destroy_cq(number);
        }
        self.settle();
        assert_eq!(self.threads, 0, "threads that wait for nothing");
        assert_eq!(ptag::destroy(self.nic, self.ptag), Ok(()));
        assert_eq!(crate::device::close(self.nic), Ok(()));
        self.free_all();
    }
}

/// Waits until there is one more waiter than `others`.
fn until_in_line(others: usize, count: impl Fn() -> usize) {
    let end = Instant::now() + PATIENCE;
    while count() <= others {
        assert!(Instant::now() < end, "a thread does not begin to wait");
        std::thread::yield_now();
    }
}
