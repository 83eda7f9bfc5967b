//! Sharing a processor with applications that poll.
//!
//! With fewer processors than polling threads the device and an application take turns on one. A device that sleeps
//! must be woken for each message, which takes the kernel tens of microseconds beside a thread that polls. So between
//! messages the device yields instead, as applications do after empty polls: a turn of each then takes about one
//! microsecond.
//!
//! A thread that computes does not give the processor back, and messages wait meanwhile, because nobody wakes a device
//! that is awake. The duration of a yield shows which of the two it was:
//!
//! | the yield took | which means | from now on |
//! | --- | --- | --- |
//! | less than [`LONG_NS`] | the processor was free, or an application that polls gave it back | yields |
//! | more | a thread that computes took its time slice | sleeps instead, for [`ASLEEP_MIN_NS`] first, then twice as long |

/// How long the device keeps the processor without finding work, in nanoseconds. An application measures its own yields
/// in the same way: one that takes less than 1500 ns has not switched to another thread, and it yields seldom.
const TURN_NS: u64 = 2_000;
/// A yield longer than this was to a thread that does not poll, in nanoseconds.
const LONG_NS: u64 = 500_000;
/// How long the device sleeps between messages before it tries to yield again, in nanoseconds.
const ASLEEP_MIN_NS: u64 = 20_000_000;
const ASLEEP_MAX_NS: u64 = 640_000_000;

/// What the device knows of those that share its processor.
pub(crate) struct Sharing {
    /// The device does not yield before this time.
    asleep_until: u64,
    /// How long it sleeps between messages after the next long yield.
    asleep: u64,
    /// End of the last yield.
    turn_began: u64,
}

impl Sharing {
    pub(crate) fn new() -> Sharing {
        Sharing {
            asleep_until: 0,
            asleep: ASLEEP_MIN_NS,
            turn_began: 0,
        }
    }

    /// Whether a device without work yields at this time. Otherwise it sleeps.
    pub(crate) fn may_yield(&self, now: u64) -> bool {
        now >= self.asleep_until
    }

    /// Whether a device that finds no work at this time, and found some at `last_work`, yields now: an application waits for
    /// what it has done, or it has been looking for long enough.
    pub(crate) fn is_turn_over(&self, now: u64, last_work: u64) -> bool {
        let looked = last_work >= self.turn_began || now >= self.turn_began + TURN_NS;
        looked && self.may_yield(now)
    }

    /// A yield has lasted from one time to the other.
    pub(crate) fn yielded(&mut self, from: u64, to: u64) {
        self.turn_began = to;
        if to.saturating_sub(from) < LONG_NS {
            self.asleep = ASLEEP_MIN_NS;
            return;
        }
        self.asleep_until = to.saturating_add(self.asleep);
        self.asleep = (self.asleep * 2).min(ASLEEP_MAX_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_beside_polling_applications_yields_on() {
        let mut sharing = Sharing::new();
        for step in 0..1000 {
            let now = step * 10_000;
            assert!(sharing.may_yield(now));
            sharing.yielded(now, now + 5_000);
        }
    }

    #[test]
    fn threads_that_compute_are_yielded_to_seldom() {
        const SLICE: u64 = 3_000_000;
        let (mut sharing, mut now, mut yields) = (Sharing::new(), 1, 0);
        while now < 10_000_000_000 {
            if sharing.may_yield(now) {
                yields += 1;
                sharing.yielded(now, now + SLICE);
                now += SLICE;
            }
            now += 100_000;
        }
        assert!((10..25).contains(&yields), "{yields}");
        // When nobody computes any more.
        while !sharing.may_yield(now) {
            now += 100_000;
        }
        sharing.yielded(now, now + 1_000);
        assert!(sharing.may_yield(now));
        sharing.yielded(now, now + SLICE);
        assert!(sharing.may_yield(now + SLICE + ASLEEP_MIN_NS));
    }
}
