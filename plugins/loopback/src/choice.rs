//! Fetch or pieces: how a large message travels where both are possible.
//!
//! A fetched message is copied once, by the kernel. One in pieces is copied twice, by two processors at the same time.
//! Which is faster depends on the processors, on the cost of a system call, on whether the two processors share a cache at
//! present and on whether the sender helps (decision 67), so both are measured: the receiver times messages and publishes the
//! mean cost of each method, and the sender takes the cheaper one and tries the other from time to time. Times are arguments.
//!
//! Pieces need a sender that polls: those without room wait for it. If it polls late, or the watch thread does it, the next
//! messages are fetched.

use std::sync::atomic::{AtomicU32, Ordering};

/// Every so many messages a trial of the other method begins, which takes so many. Placements of the processors change within
/// a minute; four trials in 512 cost less than 1 % of the 64 KiB stream.
const PERIOD: u32 = 512;
const TRIAL: u32 = 4;
/// A program that polled so late, almost a millisecond, has done something else: its messages are fetched for a period.
const LATE_TICKS: u64 = 2_000_000;

/// A method, and its place in [`Costs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Large {
    Fetch = 0,
    Pieces = 1,
}

impl Large {
    fn other(self) -> Large {
        match self {
            Large::Fetch => Large::Pieces,
            Large::Pieces => Large::Fetch,
        }
    }
}

/// What 64 KiB cost a receiver by each method, in ticks; 0: not known. In shared memory, written by the receiver.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Costs([AtomicU32; 2]);

impl Costs {
    fn of(&self, method: Large) -> u64 {
        self.0[method as usize].load(Ordering::Relaxed).into()
    }
}

/// The choice of a sender, and the measurements of a receiver.
pub(crate) struct Choice {
    present: Large,
    /// The method of the next message, once chosen: it may have to wait for room.
    chosen: Option<Large>,
    messages: u32,
    /// When pieces found no room; 0: they have not.
    waits_since: u64,
    /// So many messages are fetched because the sender did not poll.
    fetched: u32,
    /// When the message being received began, how much of it was there by then, and the mean costs.
    begun: u64,
    before: u32,
    means: [u32; 2],
}

impl Choice {
    pub(crate) fn new() -> Choice {
        Choice {
            present: Large::Fetch,
            chosen: None,
            messages: 0,
            waits_since: 0,
            fetched: 0,
            begun: 0,
            before: 0,
            means: [0; 2],
        }
    }

    /// The method of the next message, the same until that is `sent`.
    pub(crate) fn next(&mut self, costs: &Costs) -> Large {
        let method = self.chosen.unwrap_or_else(|| self.choose(costs));
        self.chosen = Some(method);
        method
    }

    fn choose(&mut self, costs: &Costs) -> Large {
        if self.fetched > 0 {
            self.fetched -= 1;
            return Large::Fetch;
        }
        let other = self.present.other();
        // Methods of equal cost do not alternate.
        if costs.of(other) != 0 && 9 * costs.of(other) < 8 * costs.of(self.present) {
            self.present = other;
        }
        let is_trial = (TRIAL..2 * TRIAL).contains(&(self.messages % PERIOD));
        self.messages = self.messages.wrapping_add(1);
        if is_trial {
            self.present.other()
        } else {
            self.present
        }
    }

    /// The message has left.
    pub(crate) fn sent(&mut self) {
        (self.chosen, self.waits_since) = (None, 0);
    }

    /// Pieces find no room.
    pub(crate) fn waits(&mut self, now: u64) {
        self.waits_since = now;
    }

    /// Pieces go on, by the watch thread or by the program.
    pub(crate) fn goes_on(&mut self, now: u64, by_watch: bool) {
        let since = std::mem::take(&mut self.waits_since);
        if since != 0 && (by_watch || now.saturating_sub(since) > LATE_TICKS) {
            self.fetched = PERIOD;
        }
    }

    /// A large message begins to arrive; `before` bytes were there when the receiver polled, and do not count.
    pub(crate) fn begin(&mut self, now: u64, before: u32) {
        (self.begun, self.before) = (now, before);
    }

    /// All `bytes` of it have arrived. A mean falls fast and rises slowly: a receiver that is delayed was mostly preempted. It
    /// is published if it has changed by an eighth, because the sender reads other words of the same line.
    pub(crate) fn end(&mut self, now: u64, method: Large, bytes: u32, costs: &Costs) {
        let bytes = bytes.saturating_sub(self.before);
        if bytes == 0 {
            return;
        }
        let ticks = now.saturating_sub(self.begun).min(u64::from(u32::MAX));
        let cost = u32::try_from((ticks << 16) / u64::from(bytes)).unwrap_or(u32::MAX);
        let cost = cost.max(1);
        let mean = &mut self.means[method as usize];
        *mean = match *mean {
            0 => cost,
            old if cost < old => old - (old - cost) / 2,
            old => old.saturating_add((cost - old).min(old.saturating_mul(3)).div_ceil(8)),
        };
        let published = &costs.0[method as usize];
        if published.load(Ordering::Relaxed).abs_diff(*mean) > *mean / 8 {
            published.store(*mean, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many messages of a period travel by each method, at these costs.
    fn run(choice: &mut Choice, costs: &Costs, prices: [u64; 2]) -> [u32; 2] {
        let mut taken = [0, 0];
        for _ in 0..PERIOD {
            let method = choice.next(costs);
            assert_eq!(choice.next(costs), method, "it may be asked again");
            choice.sent();
            taken[method as usize] += 1;
            choice.begin(1000, 0);
            choice.end(1000 + prices[method as usize], method, 1 << 16, costs);
        }
        taken
    }

    #[test]
    fn the_cheaper_method_is_taken_and_the_other_tried() {
        let (mut choice, costs) = (Choice::new(), Costs::default());
        let mut taken = |prices| run(&mut choice, &costs, prices);
        assert_eq!(taken([10_000, 30_000]), [PERIOD - TRIAL, TRIAL]);
        // As soon as a trial shows it.
        let changed = taken([10_000, 4_000]);
        assert!(changed[1] > PERIOD - 3 * TRIAL, "{changed:?}");
        assert_eq!(taken([10_000, 4_000]), [TRIAL, PERIOD - TRIAL]);
        // Equal costs do not alternate.
        assert_eq!(taken([3_900, 4_000]), [TRIAL, PERIOD - TRIAL]);
        assert!(taken([4_000, 30_000])[0] > PERIOD - 3 * TRIAL);
    }

    #[test]
    fn messages_of_a_sender_that_does_not_poll_are_fetched() {
        for (late, by_watch, fetched) in [
            (LATE_TICKS, false, 0),
            (LATE_TICKS + 1, false, PERIOD),
            (0, true, PERIOD),
        ] {
            let (mut choice, costs) = (Choice::new(), Costs::default());
            costs.0[0].store(20_000, Ordering::Relaxed);
            costs.0[1].store(10_000, Ordering::Relaxed);
            assert_eq!(choice.next(&costs), Large::Pieces);
            choice.waits(1);
            choice.goes_on(1 + late, by_watch);
            choice.sent();
            for _ in 0..fetched {
                assert_eq!(choice.next(&costs), Large::Fetch);
                choice.sent();
            }
            assert_eq!(choice.next(&costs), Large::Pieces);
        }
    }

    #[test]
    fn a_preempted_receiver_changes_the_mean_little() {
        let (costs, mut choice) = (Costs::default(), Choice::new());
        for took in [10_000, u64::MAX / 2, 10_000, 10_000, 10_000] {
            choice.begin(0, 0);
            choice.end(took, Large::Fetch, 1 << 16, &costs);
        }
        let mean = costs.of(Large::Fetch);
        assert!((10_000..20_000).contains(&mean), "{mean}");
        // A message of one piece measures nothing.
        choice.begin(0, 1 << 16);
        choice.end(10_000, Large::Pieces, 1 << 16, &costs);
        assert_eq!(costs.of(Large::Pieces), 0);
    }
}
