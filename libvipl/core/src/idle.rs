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
//! | more than [`LONG_NS`] | a thread that computes took its time slice | no yield for a quarter of that time |
//!
//! The last line limits what a program loses to threads that have nothing to do with it.

use std::cell::Cell;

use crate::sync::OnceLock;
use crate::{clock, process};

/// Polls in vain that are counted at a time, and the fewest before a yield.
const OFTEN: u32 = 16;
/// A yield shorter than this has not switched to another thread, in nanoseconds.
const ALONE_NS: u64 = 1_500;
/// A yield longer than this was to a thread that does not poll, in nanoseconds.
const LONG_NS: u64 = 500_000;
/// The longest time that is made up for, in nanoseconds.
const MADE_UP_MAX_NS: u64 = 2_000_000;

/// When a thread yields.
#[derive(Clone, Copy, Default)]
struct Pace {
    /// Polls in vain since the last yield.
    vain: u32,
    /// Yield after so many.
    limit: u32,
    /// No yield before this time.
    rest_until: u64,
}

impl Pace {
    /// Counts [`OFTEN`] polls in vain; of a queue that begins to be empty, or goes on. True: enough of them.
    fn count(&mut self, begins: bool, most: u32) -> bool {
        if self.limit == 0 {
            self.limit = most;
        }
        if begins {
            self.vain = 0;
        }
        self.vain += OFTEN;
        self.vain >= self.limit
    }

    /// Whether to yield now.
    fn is_due(&mut self, now: u64) -> bool {
        self.vain = 0;
        now >= self.rest_until
    }

    /// A yield has lasted from one time to the other.
    fn yielded(&mut self, from: u64, to: u64, most: u32) {
        let took = to.saturating_sub(from);
        if took < ALONE_NS {
            self.limit = self.limit.saturating_mul(2).min(most);
        } else if took < LONG_NS {
            self.limit = (self.limit / 4).max(OFTEN.min(most));
        } else {
            self.rest_until = to + took.min(MADE_UP_MAX_NS) / 4;
        }
    }
}

thread_local! {
    static PACE: Cell<Pace> = const { Cell::new(Pace { vain: 0, limit: 0, rest_until: 0 }) };
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
    if pace.count(row == OFTEN, most) {
        let from = clock::now_ns();
        if pace.is_due(from) {
            std::thread::yield_now();
            pace.yielded(from, clock::now_ns(), most);
        }
    }
    PACE.set(pace);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 1000;

    /// Polls until the next yield, which then takes this long.
    fn polls_until_yield(pace: &mut Pace, now: &mut u64, takes: u64) -> u32 {
        let mut polls = 0;
        loop {
            polls += OFTEN;
            *now += 30 * u64::from(OFTEN);
            if pace.count(polls == OFTEN, MOST) && pace.is_due(*now) {
                pace.yielded(*now, *now + takes, MOST);
                *now += takes;
                return polls;
            }
        }
    }

    #[test]
    fn a_thread_that_is_alone_yields_seldom() {
        let (mut pace, mut now) = (Pace::default(), 1);
        for _ in 0..10 {
            assert!(polls_until_yield(&mut pace, &mut now, 400) >= MOST);
        }
    }

    #[test]
    fn a_processor_that_others_want_is_given_up_soon_and_kept_again_later() {
        let (mut pace, mut now) = (Pace::default(), 1);
        for _ in 0..5 {
            polls_until_yield(&mut pace, &mut now, 5_000);
        }
        assert_eq!(polls_until_yield(&mut pace, &mut now, 400), OFTEN);
        for _ in 0..8 {
            polls_until_yield(&mut pace, &mut now, 400);
        }
        assert!(polls_until_yield(&mut pace, &mut now, 400) >= MOST);
    }

    #[test]
    fn a_thread_that_computes_does_not_get_every_turn() {
        let (mut pace, mut now) = (Pace::default(), 1);
        let (mut polled, mut given) = (0, 0);
        for _ in 0..50 {
            let before = now;
            polls_until_yield(&mut pace, &mut now, 3_000_000);
            given += 3_000_000;
            polled += now - before - 3_000_000;
        }
        assert!(polled > given / 8, "{polled} of {given} ns");
    }
}
