//! Sharing few processors with applications that poll ([`vipl_sys::idle`]).
//!
//! With fewer processors than polling threads the device and an application take turns on one. A device that sleeps
//! must be woken for each message, which takes the kernel tens of microseconds beside a thread that polls. So between
//! messages the device yields instead, as applications do after empty polls: a turn of each then takes about one
//! microsecond. Beside a thread that computes it sleeps: messages would wait for the end of that thread's time slice,
//! because no application wakes a device that is awake.

use vipl_sys::idle::{Idle, Limits, alone_ns};

/// How long the device keeps the processor without finding work, in nanoseconds. Applications measure their own yields in
/// the same way, and the device must not look to them as if it had not run: its turn is not shorter than
/// [`Limits::alone_ns`].
const TURN_NS: u64 = 2_000;
/// How long the device polls beside such a thread, in nanoseconds.
const PATIENCE_NS: u64 = 10_000;
/// A yield at least as long was to a thread that computes, in nanoseconds.
const LONG_NS: u64 = 500_000;

/// The device's turns on a processor.
pub(crate) struct Sharing {
    idle: Idle,
    limits: Limits,
    /// End of the last yield.
    turn_began: u64,
}

impl Sharing {
    pub(crate) fn new() -> Sharing {
        let alone_ns = alone_ns();
        let turn = TURN_NS.max(alone_ns);
        Sharing {
            idle: Idle::new(),
            limits: Limits {
                first: turn,
                least: turn,
                most: turn,
                alone_ns,
                long_ns: LONG_NS,
                patience_ns: PATIENCE_NS,
                in_pairs: false,
            },
            turn_began: 0,
        }
    }

    /// How long the device polls without finding work, of so much, in nanoseconds. It polls for a shorter time where it
    /// would keep a thread that computes from its processor: being woken costs less.
    pub(crate) fn patience(&self, spin_ns: u64, now: u64) -> u64 {
        match self.idle.is_beside_others(now) {
            true => spin_ns.min(self.limits.patience_ns),
            false => spin_ns,
        }
    }

    /// Whether the device yields now. It has no work at this time and had some at `last_work`: either an application waits for
    /// the result, or the device has polled for long enough.
    pub(crate) fn is_turn_over(&self, now: u64, last_work: u64) -> bool {
        let polled = now.saturating_sub(self.turn_began);
        let is_due = last_work >= self.turn_began || self.idle.is_due(polled, &self.limits);
        is_due && !self.idle.is_beside_others(now)
    }

    /// A yield began and ended at these times.
    pub(crate) fn yielded(&mut self, from: u64, to: u64) {
        self.turn_began = to;
        self.idle.yielded(from, to, &self.limits);
    }
}
