//! Yield or sleep after empty polls.
//!
//! A thread that polls keeps its processor. With more runnable threads than processors the thread that it waits for
//! may need this very processor, and gets it only when the time slice ends: after milliseconds instead of
//! microseconds. So the thread yields after a while without success. The duration of the yield shows which threads
//! share the processor:
//!
//! | the yield took | meaning | from now on |
//! | --- | --- | --- |
//! | less than [`Limits::alone_ns`] | no other thread wanted the processor | yield half as often, down to [`Limits::most`] |
//! | more | other threads used the processor and gave it back | yield four times as often, up to [`Limits::least`] |
//! | [`Limits::long_ns`] or more | a thread that computes used its time slice | sleep instead of yielding for a while |
//!
//! The scheduler does not charge a thread for the time that it sleeps, so it runs soon after it wakes, beside threads
//! that compute; a thread that yields pays with its time slice. A sleep costs a wake-up per message, hence the return to
//! yields: after [`SLEEPING_MIN_NS`] at first, and after twice the time when the first yields are long again.
//!
//! Threads that poll must not mistake each other for threads that compute. A thread that sleeps does not yield, so it
//! looks to the others as if it computed, and then all of them sleep. With many of them a yield lasts as long as one
//! turn of all others. [`Limits::long_ns`] and [`Limits::in_pairs`] tell the two apart.

use crate::clock::now_ns;

/// A yield that takes so many times as long as the shortest system call has switched to another thread. Measured: 2 to
/// 3.5 times without a switch, 5 to 10 if the caches hold other data, and more than 12 with two switches, on processors
/// whose system calls take 70 to 190 ns.
const SWITCHED: u64 = 10;
/// Lower bound of that time, in nanoseconds.
const ALONE_MIN_NS: u64 = 600;
/// A thread that computes causes another long yield within this time, in nanoseconds. A single one may be due to
/// anything, such as a process that starts.
const PAIR_NS: u64 = 50_000_000;
/// How long a thread sleeps instead of yielding before it tries to yield again, in nanoseconds.
pub const SLEEPING_MIN_NS: u64 = 20_000_000;
const SLEEPING_MAX_NS: u64 = 640_000_000;

/// The longest yield without a switch to another thread, in nanoseconds, including a read of the clock. Measured with
/// the shortest system call of this processor.
pub fn alone_ns() -> u64 {
    let clock = shortest_ns(|| ());
    // SAFETY: no pointers, and it cannot fail.
    let system_call = shortest_ns(|| _ = unsafe { libc::getuid() });
    (SWITCHED * system_call.saturating_sub(clock)).max(ALONE_MIN_NS) + clock
}

/// The shortest of several runs, in nanoseconds, including a read of the clock.
fn shortest_ns(run: impl Fn()) -> u64 {
    let times = (0..16).map(|_| {
        let from = now_ns();
        run();
        now_ns().saturating_sub(from)
    });
    times.min().unwrap_or(0)
}

/// What the caller is and how it measures its polling: in empty polls or in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Polling before the first yield, and after a long one.
    pub first: u64,
    /// Polling between yields when other threads want the processor.
    pub least: u64,
    /// Polling between yields when no other thread does.
    pub most: u64,
    /// A shorter yield has not switched to another thread, in nanoseconds ([`alone_ns`]).
    pub alone_ns: u64,
    /// A yield at least as long was to a thread that computes, in nanoseconds.
    pub long_ns: u64,
    /// A long yield counts only if another one ended less than 50 ms before. Without this each one counts, and after a
    /// shorter one the thread sleeps for the shortest period again.
    pub in_pairs: bool,
}

/// What a thread should do after polling for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Yield, and report it by [`Idle::yielded`].
    Yield,
    /// Sleep, for a short time or until it is woken.
    Sleep,
}

/// When one thread gives up its processor, and how.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    /// Polling between yields; 0 before the first.
    interval: u64,
    /// When the last long yield ended.
    last_long: u64,
    /// The thread sleeps instead of yielding until this time.
    sleeping_until: u64,
    /// Length of that period.
    sleeping: u64,
}

impl Idle {
    /// A thread that has not polled yet.
    pub const fn new() -> Idle {
        Idle {
            interval: 0,
            last_long: 0,
            sleeping_until: 0,
            sleeping: SLEEPING_MIN_NS,
        }
    }

    /// Whether the thread has polled for long enough without success, in the unit of `limits`.
    pub fn is_due(&self, polled: u64, limits: &Limits) -> bool {
        let interval = match self.interval {
            0 => limits.first,
            interval => interval,
        };
        polled >= interval
    }

    /// What a thread that is due should do at this time.
    pub fn action(&self, now: u64) -> Action {
        if now < self.sleeping_until {
            Action::Sleep
        } else {
            Action::Yield
        }
    }

    /// Reports a yield and when it began and ended.
    pub fn yielded(&mut self, from: u64, to: u64, limits: &Limits) {
        let took = to.saturating_sub(from);
        if took >= limits.long_ns {
            self.interval = limits.first;
            self.long_yield(to, limits.in_pairs);
            return;
        }
        if !limits.in_pairs {
            self.sleeping_until = 0;
        }
        let interval = match self.interval {
            0 => limits.first,
            interval => interval,
        };
        self.interval = if took < limits.alone_ns {
            interval.saturating_mul(2).min(limits.most)
        } else {
            (interval / 4).max(limits.least)
        };
    }

    fn long_yield(&mut self, now: u64, in_pairs: bool) {
        let is_soon_after = |time: u64| time != 0 && now.saturating_sub(time) < PAIR_NS;
        let before = std::mem::replace(&mut self.last_long, now);
        if in_pairs && !is_soon_after(before) {
            return;
        }
        self.sleeping = if is_soon_after(self.sleeping_until) {
            (self.sleeping * 2).min(SLEEPING_MAX_NS)
        } else {
            SLEEPING_MIN_NS
        };
        self.sleeping_until = now.saturating_add(self.sleeping);
    }
}

impl Default for Idle {
    fn default() -> Idle {
        Idle::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An application, which counts polls.
    const POLLS: Limits = Limits {
        first: 64,
        least: 8,
        most: 1000,
        alone_ns: 600,
        long_ns: 3_000_000,
        in_pairs: true,
    };
    /// A device process, which measures nanoseconds.
    const TURNS: Limits = Limits {
        first: 2_000,
        least: 2_000,
        most: 2_000,
        alone_ns: 600,
        long_ns: 500_000,
        in_pairs: false,
    };
    const SLICE: u64 = 3_000_000;
    const SLEEP_NS: u64 = 200_000;

    /// A thread that polls, on a virtual clock.
    struct Poller {
        idle: Idle,
        limits: Limits,
        now: u64,
    }

    impl Poller {
        fn new(limits: Limits) -> Poller {
            Poller {
                idle: Idle::new(),
                limits,
                now: 1,
            }
        }

        /// Polls until it yields, for `takes` nanoseconds, or sleeps. Returns how long it polled and what it did.
        fn poll(&mut self, takes: u64) -> (u64, Action) {
            let mut polled = 0;
            while !self.idle.is_due(polled, &self.limits) {
                polled += 8;
                self.now += 240;
            }
            let action = self.idle.action(self.now);
            let from = self.now;
            self.now += match action {
                Action::Yield => takes,
                Action::Sleep => SLEEP_NS,
            };
            if action == Action::Yield {
                self.idle.yielded(from, self.now, &self.limits);
            }
            (polled, action)
        }
    }

    #[test]
    fn a_thread_that_is_alone_yields_seldom() {
        let mut poller = Poller::new(POLLS);
        for _ in 0..5 {
            poller.poll(400);
        }
        for _ in 0..10 {
            assert_eq!(poller.poll(400), (POLLS.most, Action::Yield));
        }
    }

    /// With the mitigations of some processors a yield without a switch takes as long as one with a switch on others.
    #[test]
    fn the_shortest_system_call_decides_what_a_short_yield_is() {
        for (alone_ns, polled) in [(600, POLLS.least), (1_200, POLLS.most)] {
            let mut poller = Poller::new(Limits { alone_ns, ..POLLS });
            for _ in 0..10 {
                poller.poll(850);
            }
            assert_eq!(poller.poll(850), (polled, Action::Yield));
        }
        let measured = alone_ns();
        assert!(measured >= ALONE_MIN_NS, "{measured}");
    }

    #[test]
    fn a_processor_that_others_want_is_given_up_soon_and_kept_again_later() {
        let mut poller = Poller::new(POLLS);
        for _ in 0..5 {
            poller.poll(5_000);
        }
        assert_eq!(poller.poll(400), (POLLS.least, Action::Yield));
        for _ in 0..8 {
            poller.poll(400);
        }
        assert_eq!(poller.poll(400), (POLLS.most, Action::Yield));
    }

    #[test]
    fn threads_that_compute_get_a_slice_seldom() {
        for (limits, few) in [(POLLS, 2..20), (TURNS, 2..15)] {
            let mut poller = Poller::new(limits);
            let actions = (0..10_000).map(|_| poller.poll(SLICE).1);
            let yields = actions.filter(|action| *action == Action::Yield).count();
            assert!(few.contains(&yields), "{yields}");
        }
    }

    #[test]
    fn a_thread_yields_again_when_no_thread_computes_any_more() {
        for limits in [POLLS, TURNS] {
            let mut poller = Poller::new(limits);
            while poller.poll(SLICE).1 == Action::Yield {}
            let start = poller.now;
            while poller.poll(5_000).1 == Action::Sleep {}
            assert!(poller.now - start < 2 * SLEEPING_MIN_NS);
            assert_eq!(poller.poll(5_000).1, Action::Yield);
        }
    }

    #[test]
    fn other_threads_that_poll_are_not_mistaken_for_one_that_computes() {
        let mut poller = Poller::new(POLLS);
        // A single long yield may have any reason.
        for takes in [SLICE, PAIR_NS, SLICE] {
            assert_eq!(poller.poll(takes).1, Action::Yield);
            poller.now += PAIR_NS;
        }
        // A turn of all others, which differs.
        for _ in 0..10 {
            assert_eq!(poller.poll(150_000).1, Action::Yield);
        }
        for takes in [900_000, 1_900_000, 2_900_000, 100_000] {
            assert_eq!(poller.poll(takes), (POLLS.least, Action::Yield));
        }
        let mut device = Poller::new(TURNS);
        for takes in [SLICE, 5_000, SLICE] {
            while device.poll(takes).1 == Action::Sleep {}
        }
        assert_eq!(device.idle.sleeping, SLEEPING_MIN_NS);
        while device.poll(5_000).1 == Action::Sleep {}
        for _ in 0..1000 {
            assert_eq!(device.poll(5_000), (TURNS.least, Action::Yield));
        }
    }
}
