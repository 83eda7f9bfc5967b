//! Which road a large message takes where both are open: it is fetched, in one copy by the kernel, or goes through the
//! payload area in pieces, in two copies that two processors make at the same time.
//!
//! Which of them is faster depends on the processors, on what the kernel does at each system call against speculation, on
//! whether the two processors share a cache at present, and on whether the sender helps. So both are measured where they
//! end: the receiver knows how long it was busy with a message, tells the sender the means, and the sender takes the
//! road with the lower one, and tries the other one from time to time.
//!
//! The first piece of a message does not count: it was there when the receiver began. What follows takes as long as the
//! slower of the two copies, as in a stream.

use std::sync::atomic::{AtomicU32, Ordering};

/// One trial begins in so many messages, and takes so many.
const PERIOD: u32 = 512;
const TRIAL: u32 = 4;
/// A program that has not looked for so long, almost a millisecond, while pieces of its message waited for room has done
/// something else.
const AWAY_TICKS: u64 = 2_000_000;
/// How many messages of a sender that does not look are fetched, at first and at most.
const AWAY_MIN: u32 = PERIOD;
const AWAY_MAX: u32 = PERIOD << 8;

/// A road, and its place in [`Costs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Road {
    Fetch = 0,
    Pieces = 1,
}

impl Road {
    fn other(self) -> Road {
        match self {
            Road::Fetch => Road::Pieces,
            Road::Pieces => Road::Fetch,
        }
    }
}

/// What 64 KiB cost a receiver on each road, in ticks; 0 is not known. In shared memory: the receiver writes it.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Costs([AtomicU32; 2]);

impl Costs {
    fn of(&self, road: Road) -> u32 {
        self.0[road as usize].load(Ordering::Relaxed)
    }

    /// Written only if it has changed by an eighth: the sender reads other words of the same line.
    fn tell(&self, road: Road, mean: u32) {
        if self.of(road).abs_diff(mean) > mean / 8 {
            self.0[road as usize].store(mean, Ordering::Relaxed);
        }
    }
}

/// The sender's choice.
///
/// Pieces need a sender that looks: what has found no room waits for it, while a fetch needs it no more. Where the watch
/// thread looks for room, or the program does so late, the next messages are fetched, and more of them if that happens
/// twice in a row.
pub(crate) struct Choice {
    present: Road,
    /// The road of the message that comes next, once chosen: it may have to wait for room.
    chosen: Option<Road>,
    messages: u32,
    /// When pieces last found no room; 0 if they have.
    waited: u64,
    /// The look before was one of a sender that was away.
    away: bool,
    /// So many messages are fetched, and were so the last time.
    fetched: u32,
    fetched_last: u32,
}

impl Choice {
    pub(crate) fn new() -> Choice {
        Choice {
            present: Road::Fetch,
            chosen: None,
            messages: 0,
            waited: 0,
            away: false,
            fetched: 0,
            fetched_last: AWAY_MIN,
        }
    }

    /// The road of the next message, the same until that is `sent`.
    pub(crate) fn next(&mut self, costs: &Costs) -> Road {
        let road = self.chosen.unwrap_or_else(|| self.choose(costs));
        self.chosen = Some(road);
        road
    }

    /// The message has left.
    pub(crate) fn sent(&mut self) {
        (self.chosen, self.waited) = (None, 0);
    }

    /// Pieces look for room: the watch thread does it for them, or the program.
    pub(crate) fn looks(&mut self, now: u64, watching: bool) {
        if self.waited == 0 {
            return;
        }
        let away = watching || now.saturating_sub(self.waited) > AWAY_TICKS;
        if away && self.away {
            self.fetched_last = (2 * self.fetched_last).min(AWAY_MAX);
        }
        if away {
            self.fetched = self.fetched_last;
        }
        self.away = away && !self.away;
        self.waited = 0;
    }

    /// They have found none.
    pub(crate) fn waits(&mut self, now: u64) {
        self.waited = now;
    }

    fn choose(&mut self, costs: &Costs) -> Road {
        if self.fetched > 0 {
            self.fetched -= 1;
            return Road::Fetch;
        }
        let other = self.present.other();
        let [now, then] = [self.present, other].map(|road| u64::from(costs.of(road)));
        // Roads that are alike do not alternate.
        if then != 0 && 9 * then < 8 * now {
            self.present = other;
        }
        let trial = (TRIAL..2 * TRIAL).contains(&(self.messages % PERIOD));
        self.messages = self.messages.wrapping_add(1);
        if trial {
            self.present.other()
        } else {
            self.present
        }
    }
}

/// The receiver's measurements.
#[derive(Default)]
pub(crate) struct Gauge {
    /// When it began with what it measures, and how much of the message had come by then.
    begun: u64,
    before: u32,
    means: [u32; 2],
}

impl Gauge {
    pub(crate) fn begin(&mut self, now: u64, before: u32) {
        (self.begun, self.before) = (now, before);
    }

    /// All of a message of so many bytes has come. A mean falls fast and rises slowly, because what keeps a receiver for
    /// long is another thread on its processor and not the road.
    pub(crate) fn end(&mut self, now: u64, road: Road, bytes: u32, costs: &Costs) {
        let bytes = bytes.saturating_sub(self.before);
        if bytes == 0 {
            return;
        }
        let ticks = now.saturating_sub(self.begun).min(u64::from(u32::MAX));
        let cost = (ticks << 16) / u64::from(bytes);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX).max(1);
        let mean = &mut self.means[road as usize];
        *mean = match *mean {
            0 => cost,
            old if cost < old => old - (old - cost) / 2,
            old => old.saturating_add((cost - old).min(old.saturating_mul(3)).div_ceil(8)),
        };
        costs.tell(road, *mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Roads of so many messages, which cost this much.
    fn run(choice: &mut Choice, gauge: &mut Gauge, costs: &Costs, prices: [u64; 2]) -> [u32; 2] {
        let mut taken = [0, 0];
        for _ in 0..PERIOD {
            let road = choice.next(costs);
            assert_eq!(
                choice.next(costs),
                road,
                "it is asked again when there was no room"
            );
            choice.sent();
            taken[road as usize] += 1;
            gauge.begin(1000, 0);
            gauge.end(1000 + prices[road as usize], road, 1 << 16, costs);
        }
        taken
    }

    #[test]
    fn the_cheaper_road_is_taken_and_the_other_one_tried() {
        let (mut choice, mut gauge) = (Choice::new(), Gauge::default());
        let costs = Costs::default();
        let mut taken = |prices| run(&mut choice, &mut gauge, &costs, prices);
        assert_eq!(taken([10_000, 30_000]), [PERIOD - TRIAL, TRIAL]);
        // As soon as a trial shows it.
        let changed = taken([10_000, 4_000]);
        assert!(changed[1] > PERIOD - 3 * TRIAL, "{changed:?}");
        assert_eq!(taken([10_000, 4_000]), [TRIAL, PERIOD - TRIAL]);
        // What is alike does not alternate.
        assert_eq!(taken([3_900, 4_000]), [TRIAL, PERIOD - TRIAL]);
        assert!(taken([4_000, 30_000])[0] > PERIOD - 3 * TRIAL);
    }

    #[test]
    fn messages_of_a_sender_that_computes_are_fetched() {
        let costs = Costs::default();
        costs.tell(Road::Fetch, 20_000);
        costs.tell(Road::Pieces, 10_000);
        let mut choice = Choice::new();
        // Each message that goes in pieces waits for room, and is looked after so often by a sender that is away.
        let mut taken = |messages: u32, times: u32, late: u64, watching: bool| {
            let mut pieces = 0;
            for _ in 0..messages {
                if choice.next(&costs) == Road::Pieces {
                    pieces += 1;
                    for _ in 0..times {
                        choice.waits(1);
                        choice.looks(1 + late, watching);
                    }
                    choice.waits(1);
                    choice.looks(1, false);
                }
                choice.sent();
            }
            pieces
        };
        assert_eq!(taken(4, 1, AWAY_TICKS, false), 4);
        assert_eq!(taken(1, 1, 0, true), 0, "the trial of the other road");
        assert_eq!(taken(4, 1, 0, true), 1);
        assert_eq!(taken(AWAY_MIN, 0, 0, false), 0);
        assert_eq!(taken(1, 2, AWAY_TICKS + 1, false), 1);
        assert_eq!(taken(2 * AWAY_MIN, 0, 0, false), 0);
        assert!(taken(AWAY_MIN / 2, 0, 0, false) > AWAY_MIN / 4);
    }

    #[test]
    fn one_that_was_kept_changes_little() {
        let (costs, mut gauge) = (Costs::default(), Gauge::default());
        for took in [10_000, u64::MAX / 2, 10_000, 10_000, 10_000] {
            gauge.begin(0, 0);
            gauge.end(took, Road::Fetch, 1 << 16, &costs);
        }
        let mean = costs.of(Road::Fetch);
        assert!((10_000..20_000).contains(&mean), "{mean}");
        // A message of one piece says nothing.
        gauge.begin(0, 1 << 16);
        gauge.end(10_000, Road::Pieces, 1 << 16, &costs);
        assert_eq!(costs.of(Road::Pieces), 0);
    }
}
