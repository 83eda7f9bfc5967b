//! When the device polls, yields, asks the kernel for events, and sleeps.

use vipl_sys::clock::now_ns;

use crate::sharing::Sharing;

/// How often a polling device asks the kernel for events, in nanoseconds.
const ASK_NS: u64 = 1_000_000;
/// Longest time that a process may make the device poll, in microseconds.
const SPIN_US_MAX: u32 = 10_000;

/// What the device does after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Poll,
    /// Let an application run that polls on the same processor.
    Yield,
    /// Ask the kernel for events.
    Ask,
    Sleep,
}

/// The device's use of its processor.
pub(crate) struct Pace {
    /// How long the device polls without finding work, in nanoseconds.
    spin_ns: u64,
    last_work: u64,
    last_ask: u64,
    /// `None`: there are enough processors for applications and the device.
    sharing: Option<Sharing>,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        let is_crowded = std::thread::available_parallelism().is_ok_and(|count| count.get() <= 2);
        Pace {
            spin_ns: 0,
            last_work: 0,
            last_ask: 0,
            sharing: is_crowded.then(Sharing::new),
        }
    }

    /// A process asks the device to poll for so long, in microseconds.
    pub(crate) fn ask_to_poll(&mut self, us: u32) {
        self.spin_ns = self.spin_ns.max(u64::from(us.min(SPIN_US_MAX)) * 1000);
    }

    /// Decides after a round, which began at this time.
    #[inline(always)]
    pub(crate) fn next(&mut self, now: u64, worked: bool) -> Next {
        if worked {
            self.last_work = now;
        } else if now.saturating_sub(self.last_work) >= self.patience(now) {
            return Next::Sleep;
        }
        if now.saturating_sub(self.last_ask) >= ASK_NS {
            self.last_ask = now;
            return Next::Ask;
        }
        match &self.sharing {
            Some(sharing) if !worked && sharing.is_turn_over(now, self.last_work) => Next::Yield,
            _ => Next::Poll,
        }
    }

    fn patience(&self, now: u64) -> u64 {
        match &self.sharing {
            Some(sharing) => sharing.patience(self.spin_ns, now),
            None => self.spin_ns,
        }
    }

    /// Yields. The round began at this time.
    pub(crate) fn yield_processor(&mut self, from: u64) {
        std::thread::yield_now();
        if let Some(sharing) = &mut self.sharing {
            sharing.yielded(from, now_ns());
        }
    }

    /// The device has slept until this time.
    pub(crate) fn woke(&mut self, now: u64) {
        self.last_work = now;
    }
}
