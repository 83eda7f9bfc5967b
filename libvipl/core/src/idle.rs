//! Giving up the processor when polls find nothing.
//!
//! A program that polls keeps its processor. With more runnable threads than processors the peer that it
//! waits for, or the device process, may be waiting for just this processor, and the message comes when the
//! time slice ends: some milliseconds instead of some microseconds. So a thread that has polled in vain
//! often enough yields. How often that is follows from what the yields before came to:
//!
//! | the yield took | which means | from now on |
//! | --- | --- | --- |
//! | less than [`ALONE_NS`] | no other thread wanted the processor | yields half as often, down to `yield_after` |
//! | more | others made use of it, and gave it back | yields four times as often, up to [`OFTEN`] |
//! | more than [`LONG_NS`] | a thread that computes took its time slice | no yield for a while, see [`Pace::rest`] |
//!
//! A yield to a thread that computes is worth its time only if the peer, too, waits for this processor. It does
//! if nothing arrives while this thread polls on: then the next rest is half as long, but never so short that
//! the thread would lose more than it keeps several times over. If messages arrive all the same, the
//! peer runs elsewhere, and the next rest is twice as long.

use std::cell::Cell;

use crate::sync::OnceLock;
use crate::{clock, process};

/// Polls in vain that are counted at a time, and the fewest before a yield.
const OFTEN: u32 = 16;
/// A yield shorter than this has not switched to another thread, in nanoseconds.
const ALONE_NS: u64 = 1_500;
/// A yield longer than this was to a thread that does not poll, in nanoseconds.
const LONG_NS: u64 = 500_000;
/// The longest rest is so many times the shortest, which is half of the yield before it.
const FACTOR_MAX: u32 = 16;
/// A thread that has not polled for so long was not running, in nanoseconds.
const GAP_NS: u64 = 200_000;

/// When a thread yields.
#[derive(Clone, Copy)]
struct Pace {
    /// Polls in vain since the last yield.
    vain: u32,
    /// Yield after so many; 0 before the first.
    limit: u32,
    /// No yield before this time; 0: whenever it is due.
    rest_until: u64,
    /// How long rests are.
    factor: u32,
    /// The last poll of this rest.
    polled: u64,
    /// What has arrived during this rest, and whether the thread was not running meanwhile.
    arrivals: u32,
    interrupted: bool,
}

impl Pace {
    const fn new() -> Pace {
        Pace {
            vain: 0,
            limit: 0,
            rest_until: 0,
            factor: 1,
            polled: 0,
            arrivals: 0,
            interrupted: false,
        }
    }

    /// Counts [`OFTEN`] polls in vain; of a queue that begins to be empty, or goes on. True: enough of them.
    fn count(&mut self, begins: bool, most: u32) -> bool {
        if self.limit == 0 {
            self.limit = most;
        }
        if begins {
            self.vain = 0;
        }
        self.vain = self.vain.saturating_add(OFTEN);
        self.vain >= self.limit
    }

    fn rests(&self) -> bool {
        self.rest_until != 0
    }

    /// Polls while the thread rests; the rest is counted in time of its own. What arrives after an interruption
    /// tells nothing.
    fn rest(&mut self, begins: bool, now: u64) {
        let gap = now.saturating_sub(self.polled);
        self.polled = now;
        if gap > GAP_NS {
            self.interrupted = true;
            self.rest_until = self.rest_until.saturating_add(gap);
        }
        self.arrivals += u32::from(begins && !self.interrupted);
        if now < self.rest_until {
            return;
        }
        self.rest_until = 0;
        // The first one came while the thread was away.
        if self.arrivals > 1 {
            self.factor = (self.factor * 2).min(FACTOR_MAX);
        } else if !self.interrupted {
            self.factor = (self.factor / 2).max(1);
        }
    }

    /// A yield has lasted from one time to the other.
    fn yielded(&mut self, from: u64, to: u64, most: u32) {
        let took = to.saturating_sub(from);
        self.vain = 0;
        if took < ALONE_NS {
            self.limit = self.limit.saturating_mul(2).min(most);
        } else if took < LONG_NS {
            self.limit = (self.limit / 4).max(OFTEN.min(most));
        } else {
            self.rest_until = to + took / 2 * u64::from(self.factor);
            (self.polled, self.arrivals, self.interrupted) = (to, 0, false);
        }
    }
}

thread_local! {
    static PACE: Cell<Pace> = const { Cell::new(Pace::new()) };
}

/// The calling thread has polled a queue in vain this often in a row, and holds no lock.
#[inline(always)]
pub(crate) fn polled_in_vain(row: u32) {
    if row.is_multiple_of(OFTEN) {
        consider(row);
    }
}

#[cold]
#[inline(never)]
fn consider(row: u32) {
    static YIELD_AFTER: OnceLock<u32> = OnceLock::new();
    let most = *YIELD_AFTER.get_or_init(|| {
        let polls = process::get()
            .settings
            .number("yield_after", 0..=1_000_000_000);
        polls as u32
    });
    if most == 0 {
        return;
    }
    let mut pace = PACE.get();
    let begins = row == OFTEN;
    let enough = pace.count(begins, most);
    if pace.rests() {
        pace.rest(begins, clock::now_ns());
    }
    if enough && !pace.rests() {
        let from = clock::now_ns();
        std::thread::yield_now();
        pace.yielded(from, clock::now_ns(), most);
    }
    PACE.set(pace);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 1000;

    /// A thread that polls, on a clock of its own.
    struct Poller {
        pace: Pace,
        now: u64,
        row: u32,
    }

    impl Poller {
        fn new() -> Poller {
            Poller {
                pace: Pace::new(),
                now: 1,
                row: 0,
            }
        }

        /// Polls until the next yield, which then takes this long. Something arrives every so many polls.
        fn polls_until_yield(&mut self, takes: u64, every: u32) -> u32 {
            let mut polls = 0;
            loop {
                polls += OFTEN;
                self.row = match self.row {
                    row if row >= every => OFTEN,
                    row => row + OFTEN,
                };
                self.now += 30 * u64::from(OFTEN);
                let enough = self.pace.count(self.row == OFTEN, MOST);
                if self.pace.rests() {
                    self.pace.rest(self.row == OFTEN, self.now);
                }
                if enough && !self.pace.rests() {
                    self.pace.yielded(self.now, self.now + takes, MOST);
                    self.now += takes;
                    return polls;
                }
            }
        }
    }

    #[test]
    fn a_thread_that_is_alone_yields_seldom() {
        let mut poller = Poller::new();
        for _ in 0..10 {
            assert!(poller.polls_until_yield(400, u32::MAX) >= MOST);
        }
    }

    #[test]
    fn a_processor_that_others_want_is_given_up_soon_and_kept_again_later() {
        let mut poller = Poller::new();
        for _ in 0..5 {
            poller.polls_until_yield(5_000, u32::MAX);
        }
        assert_eq!(poller.polls_until_yield(400, u32::MAX), OFTEN);
        for _ in 0..8 {
            poller.polls_until_yield(400, u32::MAX);
        }
        assert!(poller.polls_until_yield(400, u32::MAX) >= MOST);
    }

    /// How much of a time a thread polls whose yields all go to a thread that computes.
    fn share_kept(every: u32) -> f64 {
        const SLICE: u64 = 3_000_000;
        let (mut poller, yields) = (Poller::new(), 100);
        for _ in 0..yields {
            poller.polls_until_yield(SLICE, every);
        }
        1.0 - (yields * SLICE) as f64 / poller.now as f64
    }

    #[test]
    fn threads_that_compute_get_little_when_messages_arrive_anyway() {
        assert!(share_kept(1200) > 0.75, "{}", share_kept(1200));
    }

    #[test]
    fn threads_that_compute_are_let_run_when_nothing_arrives_otherwise() {
        let share = share_kept(u32::MAX);
        assert!(0.3 < share && share < 0.5, "{share}");
    }
}
