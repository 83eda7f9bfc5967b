//! Giving up the processor when polls find nothing.
//!
//! A polling application keeps its processor. With more runnable threads than processors the peer or the device
//! process may need this very processor, and the message arrives only when the time slice ends: after milliseconds
//! instead of microseconds. So a thread yields after a number of empty polls, which follows from the duration of its
//! previous yields:
//!
//! | the yield took | which means | from now on |
//! | --- | --- | --- |
//! | hardly longer than a system call (`alone_ns`) | no other thread wanted the processor | yields half as often, down to `yield_after` |
//! | more | others made use of it, and gave it back | yields four times as often, up to [`OFTEN`] |
//! | more than [`LONG_NS`], and again within [`PAIR_NS`] | a thread that computes took its time slice | naps instead of yields for a while |
//!
//! A nap is a sleep of 0.2 ms at most that ends when the NIC has something, like that of a wait. A thread
//! that sleeps is not charged for it, so the scheduler runs it soon after it wakes, beside threads that
//! compute; a thread that yields pays with its time slice. Naps cost a wake-up per message, hence the
//! return to yields, first after [`NAPPING_MIN_NS`], later when they keep failing after twice the time.
//!
//! Threads that poll must not take each other for threads that compute: one that naps does not yield, so it looks
//! like one that computes to those that yield, and then all of them nap. With many of them a yield lasts as long as
//! one turn of all others, so a thread begins with few polls ([`FIRST`]), and naps after few.

use std::cell::Cell;
use std::time::Duration;

use crate::clock;
use crate::settings::Settings;
use crate::sync::OnceLock;

/// Empty polls that are counted at a time, and the fewest before a yield.
pub(crate) const OFTEN: u32 = 8;
/// Empty polls before the first yield, and before a nap.
const FIRST: u32 = 64;
/// A yield that takes so many times as long as the shortest system call has switched to another thread. Measured are 2
/// to 3.5 times without a switch, 5 to 10 if the caches hold something else, and more than 12 with two switches, on
/// processors whose system calls take 70 to 190 ns.
const SWITCHED: u64 = 10;
/// The least such time, in nanoseconds.
const ALONE_MIN_NS: u64 = 600;
/// A yield longer than this was to a thread that does not poll, in nanoseconds. It is longer than a turn of a few dozen
/// threads that poll, and shorter than a time slice of a kernel with 250 ticks a second.
const LONG_NS: u64 = 3_000_000;
/// A thread that computes causes another long yield within this time, in nanoseconds. One by itself may be due to
/// anything, such as a process that starts.
const PAIR_NS: u64 = 50_000_000;
/// How long a thread naps before it tries to yield again, in nanoseconds.
const NAPPING_MIN_NS: u64 = 20_000_000;
const NAPPING_MAX_NS: u64 = 640_000_000;

/// What a thread does after enough empty polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Yield,
    Nap,
}

/// When a thread gives its processor away, and how.
#[derive(Clone, Copy)]
struct Pace {
    /// Empty polls since the last yield or nap.
    empty_polls: u32,
    /// Yield or nap after so many; 0 before the first.
    limit: u32,
    /// When the last long yield ended.
    last_long: u64,
    /// Naps until this time.
    napping_until: u64,
    /// How long it naps at a time.
    napping: u64,
}

impl Pace {
    const fn new() -> Pace {
        Pace {
            empty_polls: 0,
            limit: 0,
            last_long: 0,
            napping_until: 0,
            napping: NAPPING_MIN_NS,
        }
    }

    /// Counts [`OFTEN`] empty polls of a queue that begins to be empty, or goes on. True: enough of them.
    fn count(&mut self, begins: bool, most: u32) -> bool {
        if self.limit == 0 {
            self.limit = FIRST.min(most);
        }
        if begins {
            self.empty_polls = 0;
        }
        self.empty_polls = self.empty_polls.saturating_add(OFTEN);
        self.empty_polls >= self.limit
    }

    /// After enough empty polls.
    fn action(&mut self, now: u64) -> Action {
        self.empty_polls = 0;
        if now < self.napping_until {
            Action::Nap
        } else {
            Action::Yield
        }
    }

    /// A yield has lasted from one time to the other.
    fn yielded(&mut self, from: u64, to: u64, rules: Rules) {
        let (took, most) = (to.saturating_sub(from), rules.most);
        if took >= LONG_NS {
            self.limit = FIRST.min(most);
            self.long_yield(to);
            return;
        }
        self.limit = if took < rules.alone_ns {
            self.limit.saturating_mul(2).min(most)
        } else {
            (self.limit / 4).max(OFTEN.min(most))
        };
    }

    /// A long yield has ended.
    fn long_yield(&mut self, now: u64) {
        let is_soon_after = |time: u64| time != 0 && now.saturating_sub(time) < PAIR_NS;
        let before = std::mem::replace(&mut self.last_long, now);
        if !is_soon_after(before) {
            return;
        }
        self.napping = if is_soon_after(self.napping_until) {
            (self.napping * 2).min(NAPPING_MAX_NS)
        } else {
            NAPPING_MIN_NS
        };
        self.napping_until = now.saturating_add(self.napping);
    }
}

/// What all threads of the process go by.
#[derive(Clone, Copy)]
struct Rules {
    /// The setting `yield_after`.
    most: u32,
    /// A shorter yield has not switched to another thread, in nanoseconds.
    alone_ns: u64,
}

fn rules(settings: &Settings) -> Rules {
    static RULES: OnceLock<Rules> = OnceLock::new();
    *RULES.get_or_init(|| Rules {
        most: settings.number("yield_after") as u32,
        alone_ns: alone_ns(),
    })
}

/// What a yield to nobody takes at most, in nanoseconds, reading the clock included.
fn alone_ns() -> u64 {
    let clock = shortest_ns(|| ());
    // SAFETY: no pointers, and it cannot fail.
    let system_call = shortest_ns(|| _ = unsafe { libc::getuid() });
    (SWITCHED * system_call.saturating_sub(clock)).max(ALONE_MIN_NS) + clock
}

/// The shortest of a few times that something takes, in nanoseconds, reading the clock included.
fn shortest_ns(what: impl Fn()) -> u64 {
    let times = (0..16).map(|_| {
        let from = clock::now_ns();
        what();
        clock::now_ns().saturating_sub(from)
    });
    times.min().unwrap_or(0)
}

/// Measures what [`yield_processor`] goes by, before data waits.
pub(crate) fn prepare(settings: &Settings) {
    rules(settings);
}

thread_local! {
    static PACE: Cell<Pace> = const { Cell::new(Pace::new()) };
    static MAY: Cell<bool> = const { Cell::new(true) };
}

/// Whether empty polls of the calling thread may give its processor away, from now on; returns what held before. Whoever polls
/// under a lock of his own keeps all who wait for it waiting as long as a yield takes.
pub fn set_may_yield(may: bool) -> bool {
    MAY.replace(may)
}

/// Whether a queue that has been polled without success this often in a row is due for [`yield_processor`].
#[inline(always)]
pub(crate) fn is_due(row: u32) -> bool {
    row.is_multiple_of(OFTEN)
}

/// Whether such a row has just begun.
pub(crate) fn begins(row: u32) -> bool {
    row == OFTEN
}

/// What became of a thread that has polled without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// It keeps the processor.
    Nothing,
    /// Others could have the processor for so long.
    Time(Duration),
    /// Nothing, and the thread should sleep a little (`wait::nap`).
    Nap,
}

/// Counts [`OFTEN`] empty polls of the calling thread, which holds no lock, and yields if it is time for that. `begins`: those
/// before count no more.
pub(crate) fn yield_processor(settings: &Settings, begins: bool) -> Given {
    let rules = rules(settings);
    if rules.most == 0 || !MAY.get() {
        return Given::Nothing;
    }
    let mut pace = PACE.get();
    let mut given = Given::Nothing;
    if pace.count(begins, rules.most) {
        let from = clock::now_ns();
        match pace.action(from) {
            Action::Nap => given = Given::Nap,
            Action::Yield => {
                std::thread::yield_now();
                let to = clock::now_ns();
                pace.yielded(from, to, rules);
                given = Given::Time(Duration::from_nanos(to.saturating_sub(from)));
            }
        }
    }
    PACE.set(pace);
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 1000;
    const RULES: Rules = Rules {
        most: MOST,
        alone_ns: 600,
    };
    const SLICE: u64 = 3_000_000;
    const NAP_NS: u64 = 200_000;

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

        /// Empty polls until it yields, which then takes this long, or naps.
        fn polls_until_action(&mut self, takes: u64) -> (u32, Action) {
            let mut polls = 0;
            loop {
                polls += OFTEN;
                self.row += OFTEN;
                self.now += 30 * u64::from(OFTEN);
                if !self.pace.count(self.row == OFTEN, MOST) {
                    continue;
                }
                let action = self.pace.action(self.now);
                if action == Action::Yield {
                    self.pace.yielded(self.now, self.now + takes, RULES);
                    self.now += takes;
                } else {
                    self.now += NAP_NS;
                }
                return (polls, action);
            }
        }
    }

    #[test]
    fn a_thread_that_is_alone_yields_seldom() {
        let mut poller = Poller::new();
        for _ in 0..5 {
            poller.polls_until_action(400);
        }
        for _ in 0..10 {
            let (polls, action) = poller.polls_until_action(400);
            assert!(polls >= MOST && action == Action::Yield);
        }
    }

    /// With the mitigations of some processors a yield to nobody takes as long as one to a neighbour on others.
    #[test]
    fn the_shortest_system_call_tells_what_a_short_yield_is() {
        let mut pace = Pace::new();
        for (alone_ns, limit) in [(600, OFTEN), (1_200, MOST)] {
            for _ in 0..10 {
                pace.count(true, MOST);
                let rules = Rules {
                    most: MOST,
                    alone_ns,
                };
                pace.yielded(1, 851, rules);
            }
            assert_eq!(pace.limit, limit);
        }
    }

    #[test]
    fn a_processor_that_others_want_is_given_up_soon_and_kept_again_later() {
        let mut poller = Poller::new();
        for _ in 0..5 {
            poller.polls_until_action(5_000);
        }
        assert_eq!(poller.polls_until_action(400), (OFTEN, Action::Yield));
        for _ in 0..8 {
            poller.polls_until_action(400);
        }
        assert!(poller.polls_until_action(400).0 >= MOST);
    }

    #[test]
    fn threads_that_compute_get_a_slice_seldom() {
        let mut poller = Poller::new();
        let actions: Vec<Action> = (0..10_000)
            .map(|_| poller.polls_until_action(SLICE).1)
            .collect();
        let yields = actions
            .iter()
            .filter(|action| **action == Action::Yield)
            .count();
        assert!((2..20).contains(&yields), "{yields}");
    }

    #[test]
    fn a_thread_yields_again_when_nobody_computes_any_more() {
        let mut poller = Poller::new();
        for _ in 0..2 {
            assert_eq!(poller.polls_until_action(SLICE).1, Action::Yield);
        }
        let start = poller.now;
        while poller.polls_until_action(5_000).1 == Action::Nap {}
        assert!(poller.now - start < 2 * NAPPING_MIN_NS);
        assert_eq!(poller.polls_until_action(5_000).1, Action::Yield);
    }

    #[test]
    fn many_threads_that_poll_are_not_taken_for_one_that_computes() {
        let mut poller = Poller::new();
        // One at a time may be long for any reason.
        for takes in [SLICE, PAIR_NS, SLICE] {
            assert_eq!(poller.polls_until_action(takes).1, Action::Yield);
            poller.now += PAIR_NS;
        }
        // A turn of all others, which differs.
        for _ in 0..10 {
            assert_eq!(poller.polls_until_action(150_000).1, Action::Yield);
        }
        for takes in [900_000, 1_900_000, 2_900_000, 100_000] {
            assert_eq!(poller.polls_until_action(takes), (OFTEN, Action::Yield));
        }
    }
}
