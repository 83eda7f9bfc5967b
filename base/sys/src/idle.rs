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
//! | [`Limits::long_ns`] or more | a thread that computes used its time slice | do not yield for a while: the thread is *beside others* |
//!
//! Beside others a yield gives away a whole time slice, and the scheduler charges the thread for it. Polling on wastes
//! the thread's own slice while its peer has no processor. So the thread polls for [`Limits::patience_ns`], in which a
//! peer that runs has answered, and then sleeps until the peer wakes it. It has the processor again soon after that,
//! because the scheduler does not charge a thread for the time that it sleeps, and then both sides run at the same
//! time. If several sleeps in a row follow each other without an answer in between, the peer does not run while this
//! thread does, because both share one processor: then the thread sleeps as soon as it would yield otherwise.
//!
//! Two long yields within 50 ms begin that state. It ends after [`BESIDE_MIN_NS`], and lasts twice as long as before if
//! one of the yields that follow is long again. It costs nothing if it was begun by mistake and messages come soon.
//! The device process of clan, which no message finds awake ([`Limits::in_pairs`]), sleeps instead of polling on.

use crate::clock::now_ns;

#[cfg(test)]
mod model_tests;

/// A yield that takes so many times as long as the shortest system call has switched to another thread. Measured: 2 to
/// 3.5 times without a switch, 5 to 10 if the caches hold other data, and more than 12 with two switches, on processors
/// whose system calls take 70 to 190 ns.
const SWITCHED: u64 = 10;
/// Lower bound of that time, in nanoseconds.
const ALONE_MIN_NS: u64 = 600;
/// A thread that computes causes another long yield within this time, in nanoseconds. A single one may be due to
/// anything, such as a process that starts.
const PAIR_NS: u64 = 50_000_000;
/// So soon after a time beside others a single long yield begins the next one, in nanoseconds.
const AGAIN_NS: u64 = 100_000_000;
/// How long a thread counts as beside others before it tries to yield again, in nanoseconds.
pub const BESIDE_MIN_NS: u64 = 20_000_000;
const BESIDE_MAX_NS: u64 = 640_000_000;
/// Sleeps in a row, without a message that polling has found, after which a thread beside others sleeps sooner.
const SLEEPS_MAX: u8 = 4;
/// Every so many sleeps such a thread polls for longer nevertheless: a peer that had to be woken takes longer to answer.
const TRY_AFTER: u8 = 32;

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
    /// How long to poll beside others before a sleep, in nanoseconds.
    pub patience_ns: u64,
    /// A long yield counts only if another one ended less than 50 ms before. Without this each one counts, and after a
    /// shorter one the thread is beside others for the shortest period again.
    pub in_pairs: bool,
}

/// What a thread should do after an empty poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Poll on.
    Poll,
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
    /// The thread is beside others until this time; 0: it has not been.
    beside_until: u64,
    /// Length of that period.
    beside: u64,
    /// When the thread began to poll beside others; 0: it has not since its last message or sleep.
    since: u64,
    /// Sleeps since polling last found a message.
    sleeps: u8,
    /// It has slept since its last message.
    slept: bool,
}

impl Idle {
    /// A thread that has not polled yet.
    pub const fn new() -> Idle {
        Idle {
            interval: 0,
            last_long: 0,
            beside_until: 0,
            beside: BESIDE_MIN_NS,
            since: 0,
            sleeps: 0,
            slept: false,
        }
    }

    /// The thread has found a message, and polls for the next one.
    pub fn found(&mut self) {
        if !self.slept {
            self.sleeps = 0;
        }
        self.slept = false;
        self.since = 0;
    }

    /// Whether the thread has polled for long enough without success, in the unit of `limits`.
    pub fn is_due(&self, polled: u64, limits: &Limits) -> bool {
        let interval = match self.interval {
            0 => limits.first,
            interval => interval,
        };
        polled >= interval
    }

    /// Whether threads that compute share the processor, as far as is known.
    pub fn is_beside_others(&self, now: u64) -> bool {
        now < self.beside_until
    }

    /// What a thread should do that has polled so often without success since the last message, yield or sleep. It reads
    /// the clock only beside others.
    pub fn next(&mut self, polled: u64, now: impl Fn() -> u64, limits: &Limits) -> Action {
        if self.beside_until != 0 {
            let now = now();
            if self.is_beside_others(now) {
                return self.next_beside_others(polled, now, limits);
            }
            if now.saturating_sub(self.beside_until) >= AGAIN_NS {
                self.beside_until = 0;
            }
        }
        match self.is_due(polled, limits) {
            true => Action::Yield,
            false => Action::Poll,
        }
    }

    fn next_beside_others(&mut self, polled: u64, now: u64, limits: &Limits) -> Action {
        if self.since == 0 {
            self.since = now;
        }
        let is_patient = self.sleeps < SLEEPS_MAX || self.sleeps.is_multiple_of(TRY_AFTER);
        let is_over = match is_patient {
            true => now.saturating_sub(self.since) >= limits.patience_ns,
            false => polled >= limits.first,
        };
        if !is_over {
            return Action::Poll;
        }
        self.sleeps = self.sleeps.checked_add(1).unwrap_or(TRY_AFTER + 1);
        self.slept = true;
        self.since = 0;
        Action::Sleep
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
            self.beside_until = 0;
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
        let is_within = |time: u64, since: u64| since != 0 && now.saturating_sub(since) < time;
        let before = std::mem::replace(&mut self.last_long, now);
        let again = is_within(AGAIN_NS, self.beside_until);
        if in_pairs && !again && !is_within(PAIR_NS, before) {
            return;
        }
        self.beside = match again {
            true => (self.beside * 2).min(BESIDE_MAX_NS),
            false => BESIDE_MIN_NS,
        };
        // All threads end such times together: one alone that yields among others that sleep would find them computing.
        self.beside_until = (now / self.beside + 1) * self.beside;
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
        patience_ns: 20_000,
        in_pairs: true,
    };
    /// A device process, which measures nanoseconds.
    const TURNS: Limits = Limits {
        first: 2_000,
        least: 2_000,
        most: 2_000,
        alone_ns: 600,
        long_ns: 500_000,
        patience_ns: 0,
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
            let action = loop {
                let now = self.now;
                match self.idle.next(polled, || now, &self.limits) {
                    Action::Poll => {
                        polled += 8;
                        self.now += 240;
                    }
                    action => break action,
                }
            };
            let from = self.now;
            self.now += if action == Action::Yield {
                takes
            } else {
                SLEEP_NS
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
            assert!(poller.now - start < 2 * BESIDE_MIN_NS);
            assert_eq!(poller.poll(5_000).1, Action::Yield);
        }
    }

    #[test]
    fn a_thread_beside_others_is_patient_unless_its_peer_never_answers() {
        let mut poller = Poller::new(POLLS);
        while poller.poll(SLICE).1 == Action::Yield {}
        poller.idle.found();
        for _ in 1..SLEEPS_MAX {
            let began = poller.now;
            assert_eq!(poller.poll(SLICE).1, Action::Sleep);
            assert!(poller.now - began >= SLEEP_NS + POLLS.patience_ns);
            // The message that has ended the sleep.
            poller.idle.found();
        }
        assert_eq!(poller.poll(SLICE), (POLLS.first, Action::Sleep));
        poller.idle.found();
        assert_eq!(poller.poll(SLICE), (POLLS.first, Action::Sleep));
        // One that polling has found.
        poller.idle.found();
        poller.idle.found();
        assert!(poller.poll(SLICE).0 > POLLS.first);
    }

    #[test]
    fn a_long_yield_soon_after_a_time_beside_others_is_enough() {
        let mut poller = Poller::new(POLLS);
        while poller.poll(SLICE).1 == Action::Yield {}
        while poller.poll(SLICE).1 == Action::Sleep {}
        assert_eq!(poller.idle.beside, 2 * BESIDE_MIN_NS);
        assert_eq!(poller.poll(SLICE).1, Action::Sleep);
        while poller.poll(5_000).1 == Action::Sleep {}
        poller.now += AGAIN_NS;
        assert_eq!(poller.poll(SLICE).1, Action::Yield);
        assert_eq!(poller.poll(5_000).1, Action::Yield, "a single one");
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
        assert_eq!(device.idle.beside, BESIDE_MIN_NS);
        while device.poll(5_000).1 == Action::Sleep {}
        for _ in 0..1000 {
            assert_eq!(device.poll(5_000), (TURNS.least, Action::Yield));
        }
    }
}
