//! The doorbell: passing posted frames to the kernel.
//!
//! The cards of this class have no doorbell that an application could ring, so a system call takes its place. With
//! [`Policy::Trap`] each operation that has made frames ends with one. With [`Policy::Batch`] frames of several posts
//! are collected and passed in one call: when a burst is full, when the application polls for completions or goes to
//! sleep, or else when the watch thread polls, a millisecond later at most. Small messages share a frame in the same
//! way (`coalescing`). If nothing is in flight on a connection, its next frame leaves at once: the peer is waiting for
//! it, and there is nothing to collect it with.
//!
//! Frames for which the device has no room stay here. No more are accepted until the device has room, or until the
//! first of them is lost.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use vipl_netio::{BURST, Frame, Header, Outbox, Sent, Socket, WAITING_MAX};
use vipl_plugin_sdk::Host;
use vipl_plugin_sdk::abi::{VIPL_LOG_DEBUG, VIPL_LOG_WARN};
use vipl_sys::mutex::Mutex;

/// Frames that an operation hands over at a time.
pub(crate) const GROUP: usize = 11;

// A burst that begins with an empty queue is not exceeded.
const _: () = assert!(BURST.is_multiple_of(GROUP));

/// When the system call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// After every operation.
    Trap,
    /// Once per burst.
    Batch,
}

/// Counters of the transmit side.
pub(crate) struct Counters {
    pub(crate) sent: &'static AtomicU64,
    pub(crate) again: &'static AtomicU64,
    pub(crate) lost: &'static AtomicU64,
    pub(crate) kicks: &'static AtomicU64,
}

/// The transmit side of a NIC.
pub(crate) struct Doorbell {
    policy: Policy,
    socket: Socket,
    outbox: Mutex<Outbox>,
    /// How many frames wait in the outbox; read without the lock.
    waiting: AtomicUsize,
    /// A frame of the current operation was sent at once. Operations of several VIs may share this: the frames behind
    /// it are sent at the end of one of these operations.
    trapped: AtomicBool,
    /// The last `errno` in the log, and whether the log has a line about a lack of room.
    reported: AtomicI32,
    full_reported: AtomicBool,
    counters: Counters,
}

impl Doorbell {
    pub(crate) fn new(policy: Policy, socket: Socket, counters: Counters) -> Doorbell {
        Doorbell {
            policy,
            socket,
            outbox: Mutex::default(),
            waiting: AtomicUsize::new(0),
            trapped: AtomicBool::new(false),
            reported: AtomicI32::new(0),
            full_reported: AtomicBool::new(false),
            counters,
        }
    }

    /// The data socket. `None`: the application has closed it.
    pub(crate) fn socket(&self) -> Option<RawFd> {
        self.socket.fd()
    }

    /// The socket for trains, if there is one that the application has not closed.
    pub(crate) fn train_socket(&self) -> Option<RawFd> {
        self.socket.train_socket()
    }

    /// Whether frames may join trains.
    pub(crate) fn carries_trains(&self) -> bool {
        self.socket.carries_trains()
    }

    /// From now on frames carry the ECT codepoint, if the medium has it; with `false` never again.
    pub(crate) fn mark(&self, on: bool) {
        self.socket.mark(on);
    }

    /// Moves the train that waits last to an empty group, if it may grow there.
    #[inline(always)]
    pub(crate) fn resume(&self, header: &Header, group: &mut Outbox) {
        if self.collects() && self.waits() {
            let mut outbox = self.outbox.lock();
            outbox.resume(header, group);
            self.waiting.store(outbox.len(), Ordering::Release);
        }
    }

    /// Adds `count` buffers to a group, or as many as there are.
    pub(crate) fn lend(&self, count: usize, group: &mut Outbox) {
        self.outbox.lock().lend(count, group);
    }

    /// Sends a frame now, if none waits and it is `urgent`, or the first of an operation with [`Policy::Trap`]: the rest
    /// of the operation then overlaps with its transmission. False: it has still to be sent.
    #[inline(always)]
    pub(crate) fn send_at_once(&self, frame: &Frame, urgent: bool) -> bool {
        let traps = self.policy == Policy::Trap && !self.trapped.load(Ordering::Relaxed);
        if !(urgent || traps) || self.waits() {
            return false;
        }
        self.trapped.store(true, Ordering::Relaxed);
        // No lock: the kernel accepts frames from several threads.
        let sent = self.socket.send(std::slice::from_ref(frame));
        self.count(sent);
        sent != Sent::Again
    }

    /// Accepts the frames of a group and its spare buffers but one. Sends at once if a burst is full.
    pub(crate) fn push(&self, group: &mut Outbox) {
        let mut outbox = self.outbox.lock();
        outbox.append(group);
        if outbox.len() >= BURST {
            self.send(&mut outbox);
        }
        self.waiting.store(outbox.len(), Ordering::Release);
    }

    /// Whether frames are collected.
    pub(crate) fn collects(&self) -> bool {
        self.policy == Policy::Batch
    }

    /// Ends an operation that may have pushed frames: rings if the policy demands it.
    #[inline(always)]
    pub(crate) fn end_operation(&self) {
        if self.policy == Policy::Trap {
            self.trapped.store(false, Ordering::Relaxed);
            self.ring();
        }
    }

    /// Whether frames wait for the doorbell.
    #[inline(always)]
    pub(crate) fn waits(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Whether so many frames wait for the device that no more may be begun.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Acquire) >= WAITING_MAX
    }

    /// Sends the waiting frames, unless another thread is sending them.
    #[inline(always)]
    pub(crate) fn ring(&self) {
        if self.waits() {
            self.ring_for_waiting();
        }
    }

    fn ring_for_waiting(&self) {
        let Some(mut outbox) = self.outbox.try_lock() else {
            return;
        };
        self.send(&mut outbox);
        self.waiting.store(outbox.len(), Ordering::Release);
    }

    fn send(&self, outbox: &mut Outbox) {
        outbox.send(&self.socket, |sent| self.count(sent));
    }

    #[inline(always)]
    fn count(&self, sent: Sent) {
        let add = |counter: &AtomicU64, more| {
            counter.fetch_add(more, Ordering::Relaxed);
        };
        match sent {
            Sent::Frames(count) => {
                add(self.counters.sent, count as u64);
                add(self.counters.kicks, 1);
                self.reported.store(0, Ordering::Relaxed);
            }
            Sent::Again => add(self.counters.again, 1),
            Sent::NoTrains(count) => {
                add(self.counters.lost, count as u64);
                let text = "the kernel or the driver takes no trains of frames: each frame is sent by itself";
                Host::get().log(VIPL_LOG_DEBUG, text);
            }
            Sent::Lost(error) => {
                add(self.counters.lost, 1);
                self.report(error);
            }
        }
    }

    /// Logs each new kind of failure once, not once for each frame. A lack of room is logged once: it may affect long
    /// frames only, and each shorter frame that is sent in between would cause another line.
    #[cold]
    fn report(&self, error: i32) {
        if error == libc::ENOBUFS {
            if !self.full_reported.swap(true, Ordering::Relaxed) {
                let text = "a frame cannot be sent: the interface has no room for it; if others are sent, compare the MTU of both ends";
                Host::get().log(VIPL_LOG_WARN, text);
            }
        } else if self.reported.swap(error, Ordering::Relaxed) != error {
            let error = std::io::Error::from_raw_os_error(error);
            Host::get().log(VIPL_LOG_WARN, &format!("a frame cannot be sent: {error}"));
        }
    }
}
