//! A model of a scheduler on a virtual clock, and what becomes of threads there that poll by [`Idle`].
//!
//! Each processor runs the eligible thread with the earliest deadline, as Linux does since 6.6, looks at that at its ticks
//! and when a thread wakes, and charges a yield as the rest of a time slice, as Linux 6.18 does. Threads stay on their
//! processor. A pair sends a message to and fro.

use super::*;

/// Eight empty polls, or taking a message and answering it, in nanoseconds.
const STEP: u64 = 250;
/// What a switch to another thread costs, in nanoseconds.
const SWITCH: u64 = 1_000;
const SLICE: u64 = 1_400_000;
const TICK: u64 = 3_999_000;
/// From a wake-up until the thread is runnable, in nanoseconds.
const WAKE: u64 = 4_000;
/// The longest sleep of a thread that polls, in nanoseconds.
const SHORT_SLEEP: u64 = 200_000;
const MS: u64 = 1_000_000;

const LIMITS: Limits = Limits {
    first: 64,
    least: 8,
    most: 1000,
    alone_ns: 600,
    long_ns: 3_000_000,
    patience_ns: 20_000,
    in_pairs: true,
};

/// How a thread polls.
#[derive(Clone, Copy)]
enum Manner {
    /// Without a pause.
    Spins,
    /// With a yield after every eight polls.
    Yields,
    /// By the rules that are tested.
    Rules,
}

#[derive(Clone, Copy)]
struct Poller {
    manner: Manner,
    idle: Idle,
    /// The thread that it answers; itself: no thread sends.
    peer: usize,
    has_message: bool,
    empty: u64,
    polled: u64,
    yielded_at: Option<u64>,
    messages: u64,
    sleeps: u64,
}

#[derive(Clone, Copy)]
enum Work {
    Computes,
    /// Runs for a time at intervals.
    Interrupts {
        takes: u64,
        every: u64,
        left: u64,
    },
    Polls(Poller),
}

struct Thread {
    work: Work,
    processor: usize,
    vruntime: u64,
    deadline: u64,
    /// It sleeps until then.
    wakes_at: u64,
    /// How far it was behind the mean when it began to sleep, one tick at most.
    owed: u64,
    ran: u64,
}

struct Machine {
    now: u64,
    threads: Vec<Thread>,
    /// The thread that runs on each processor, and when the switch to it is over.
    runs: [(Option<usize>, u64); 2],
    /// No thread of each processor wakes before that.
    wakes_at: [u64; 2],
}

impl Machine {
    fn new() -> Machine {
        Machine {
            now: MS,
            threads: Vec::new(),
            runs: [(None, 0); 2],
            wakes_at: [u64::MAX; 2],
        }
    }

    fn add(&mut self, processor: usize, work: Work) -> usize {
        // No two of them are in step.
        let vruntime = self.threads.len() as u64 * 700_001 % SLICE;
        self.threads.push(Thread {
            work,
            processor,
            vruntime,
            deadline: vruntime + SLICE,
            wakes_at: 0,
            owed: 0,
            ran: 0,
        });
        self.threads.len() - 1
    }

    fn add_poller(&mut self, processor: usize, manner: Manner) -> usize {
        let peer = self.threads.len();
        self.add(
            processor,
            Work::Polls(Poller {
                manner,
                idle: Idle::new(),
                peer,
                has_message: false,
                empty: 0,
                polled: 0,
                yielded_at: None,
                messages: 0,
                sleeps: 0,
            }),
        )
    }

    fn poller(&mut self, thread: usize) -> &mut Poller {
        match &mut self.threads[thread].work {
            Work::Polls(poller) => poller,
            _ => panic!("it does not poll"),
        }
    }

    fn add_interruptions(&mut self, processor: usize, takes: u64, every: u64) {
        let left = takes;
        self.add(processor, Work::Interrupts { takes, every, left });
    }

    /// Two threads that send a message to and fro, each on one of the processors.
    fn add_pair(&mut self, processors: [usize; 2], manner: Manner) {
        let [one, other] = processors.map(|processor| self.add_poller(processor, manner));
        self.poller(one).peer = other;
        self.poller(other).peer = one;
        self.poller(one).has_message = true;
    }

    /// A machine with so many pairs, and so many threads that compute on each processor.
    fn with(pairs: usize, computing: usize, manner: Manner) -> Machine {
        let mut machine = Machine::new();
        for _ in 0..pairs {
            machine.add_pair([0, 1], manner);
        }
        for thread in 0..2 * computing {
            machine.add(thread % 2, Work::Computes);
        }
        if computing > 0 {
            // Something always runs now and then, so that processors do not stay in step.
            for (processor, every) in [(0, 17 * MS), (1, 23 * MS)] {
                machine.add_interruptions(processor, 700_000, every);
            }
        }
        machine
    }

    fn is_runnable(&self, thread: usize, processor: usize) -> bool {
        let thread = &self.threads[thread];
        thread.processor == processor && thread.wakes_at <= self.now
    }

    /// Mean of the virtual times of the runnable threads of a processor, and their number.
    fn mean(&self, processor: usize) -> Option<(u64, u64)> {
        let all = (0..self.threads.len()).filter(|thread| self.is_runnable(*thread, processor));
        let (sum, count) = all.fold((0, 0), |(sum, count), thread| {
            (sum + self.threads[thread].vruntime, count + 1)
        });
        (count > 0).then(|| (sum / count, count))
    }

    fn choose(&mut self, processor: usize) {
        if let (Some(thread), _) = self.runs[processor] {
            let it = &mut self.threads[thread];
            if it.vruntime >= it.deadline {
                it.deadline = it.vruntime + SLICE;
            }
        }
        let mean = self.mean(processor).map(|(mean, _)| mean);
        let best = (0..self.threads.len())
            .filter(|thread| self.is_runnable(*thread, processor))
            .filter(|thread| Some(self.threads[*thread].vruntime) <= mean)
            .min_by_key(|thread| self.threads[*thread].deadline);
        if self.runs[processor].0 != best {
            self.runs[processor] = (best, self.now + SWITCH);
        }
    }

    /// Threads whose sleep ends now are owed what they were owed before, and owe nothing.
    fn wake(&mut self, processor: usize) {
        if self.now < self.wakes_at[processor] {
            return;
        }
        for thread in 0..self.threads.len() {
            let it = &self.threads[thread];
            if it.processor == processor && it.wakes_at != 0 && it.wakes_at <= self.now {
                self.threads[thread].wakes_at = u64::MAX;
                let mean = self.mean(processor);
                let it = &mut self.threads[thread];
                it.wakes_at = 0;
                // With this thread the mean is less.
                it.vruntime = mean.map_or(it.vruntime, |(mean, count)| {
                    mean.saturating_sub(it.owed * (count + 1) / count)
                });
                it.deadline = it.vruntime + SLICE;
                self.choose(processor);
            }
        }
        let sleeping = self
            .threads
            .iter()
            .filter(|thread| thread.processor == processor && thread.wakes_at != 0);
        let next = sleeping.map(|thread| thread.wakes_at).min();
        self.wakes_at[processor] = next.unwrap_or(u64::MAX);
    }

    fn step(&mut self) {
        self.now += STEP;
        for processor in 0..2 {
            self.wake(processor);
            let (Some(thread), ready) = self.runs[processor] else {
                self.choose(processor);
                continue;
            };
            let it = &mut self.threads[thread];
            it.vruntime += STEP;
            it.ran += STEP;
            // Processors do not tick at the same time.
            let tick = (self.now + processor as u64 * TICK / 3).is_multiple_of(TICK);
            if tick && it.vruntime >= it.deadline {
                self.choose(processor);
            } else if self.now >= ready {
                self.work(thread, processor);
            }
        }
    }

    fn work(&mut self, thread: usize, processor: usize) {
        let now = self.now;
        let it = &mut self.threads[thread];
        match &mut it.work {
            Work::Computes => {}
            Work::Interrupts { takes, every, left } => {
                *left = left.saturating_sub(STEP);
                if *left == 0 {
                    *left = *takes;
                    let until = now + *every;
                    self.sleep(thread, until);
                }
            }
            Work::Polls(poller) => {
                if let Some(from) = poller.yielded_at.take() {
                    poller.idle.yielded(from, now, &LIMITS);
                }
                let peer = poller.peer;
                if poller.has_message && peer != thread {
                    poller.has_message = false;
                    poller.empty = 0;
                    poller.messages += 1;
                    self.send(peer);
                    return;
                }
                match poller.poll(now) {
                    Action::Poll => {}
                    Action::Yield => {
                        it.vruntime = it.deadline;
                        it.deadline += SLICE;
                        self.choose(processor);
                    }
                    Action::Sleep => self.sleep(thread, now + SHORT_SLEEP),
                }
            }
        }
    }

    fn sleep(&mut self, thread: usize, until: u64) {
        let processor = self.threads[thread].processor;
        let mean = self.mean(processor).map_or(0, |(mean, _)| mean);
        let it = &mut self.threads[thread];
        it.owed = mean.saturating_sub(it.vruntime).min(TICK);
        it.wakes_at = until;
        self.wakes_at[processor] = self.wakes_at[processor].min(until);
        self.choose(processor);
    }

    fn send(&mut self, to: usize) {
        self.poller(to).has_message = true;
        let soon = self.now + WAKE;
        let it = &mut self.threads[to];
        it.wakes_at = it.wakes_at.min(soon);
        let earliest = &mut self.wakes_at[it.processor];
        *earliest = (*earliest).min(soon);
    }

    /// Messages of all pairs in a time.
    fn messages_in(&mut self, time: u64) -> u64 {
        let count = |machine: &Machine| {
            let pollers = machine.threads.iter().map(|thread| match &thread.work {
                Work::Polls(poller) => poller.messages,
                _ => 0,
            });
            pollers.sum::<u64>()
        };
        let (before, end) = (count(self), self.now + time);
        while self.now < end {
            self.step();
        }
        count(self) - before
    }

    /// Share of the time that computing threads had since the beginning, in percent of their processors.
    fn computed(&self) -> u64 {
        let computing = self
            .threads
            .iter()
            .filter(|thread| matches!(thread.work, Work::Computes));
        let (ran, count) =
            computing.fold((0, 0), |(ran, count), thread| (ran + thread.ran, count + 1));
        100 * ran / (self.now - MS) / count
    }

    fn sleeps(&self) -> u64 {
        let pollers = self.threads.iter().map(|thread| match &thread.work {
            Work::Polls(poller) => poller.sleeps,
            _ => 0,
        });
        pollers.sum()
    }
}

impl Poller {
    /// Eight empty polls.
    fn poll(&mut self, now: u64) -> Action {
        self.empty += 8;
        self.polled += 8;
        if self.empty == 8 {
            self.idle.found();
            self.polled = 8;
        }
        let action = match self.manner {
            Manner::Spins => Action::Poll,
            Manner::Yields => Action::Yield,
            Manner::Rules => self.idle.next(self.polled, || now, &LIMITS),
        };
        match action {
            Action::Poll => return action,
            Action::Yield => self.yielded_at = Some(now),
            Action::Sleep => self.sleeps += 1,
        }
        self.polled = 0;
        action
    }
}

/// Messages in half a second of so many pairs beside so many computing threads per processor, after half a second.
fn messages(pairs: usize, computing: usize, manner: Manner) -> u64 {
    let mut machine = Machine::with(pairs, computing, manner);
    machine.messages_in(500 * MS);
    machine.messages_in(500 * MS)
}

#[test]
fn a_pair_alone_only_polls() {
    let mut machine = Machine::with(1, 0, Manner::Rules);
    let messages = machine.messages_in(100 * MS);
    let most = Machine::with(1, 0, Manner::Spins).messages_in(100 * MS);
    assert_eq!((messages, machine.sleeps()), (most, 0));
}

#[test]
fn a_pair_beside_computing_threads_is_not_slower_than_one_that_spins() {
    for computing in 1..=2 {
        let spins = messages(1, computing, Manner::Spins);
        let yields = messages(1, computing, Manner::Yields);
        let mut machine = Machine::with(1, computing, Manner::Rules);
        machine.messages_in(500 * MS);
        let ours = machine.messages_in(500 * MS);
        println!(
            "{computing} per processor: spins {spins}, yields {yields}, rules {ours}, computed {} % sleeps {}",
            machine.computed(),
            machine.sleeps()
        );
        assert!(ours >= spins, "{ours} beside {spins}");
        assert!(ours > 2 * yields, "{ours} beside {yields}");
        assert!(machine.computed() >= 45 / computing as u64);
    }
}

/// Messages in half a second on two processors with a switch to another thread for each.
const TURNS: u64 = 2 * 500 * MS / (STEP + SWITCH);

#[test]
fn many_pairs_on_two_processors_take_turns() {
    for pairs in [2, 4, 8] {
        let ours = messages(pairs, 0, Manner::Rules);
        println!("{pairs} pairs: {ours}, {TURNS} in turns");
        assert!(ours >= TURNS / 10 * 9, "{ours} beside {TURNS}");
    }
}

/// Pairs that share one processor, where the peer never runs while a thread polls.
#[test]
fn a_pair_on_one_processor_beside_a_computing_thread() {
    let run = |manner| {
        let mut machine = Machine::new();
        machine.add_pair([0, 0], manner);
        machine.add(0, Work::Computes);
        machine.messages_in(500 * MS);
        machine.messages_in(500 * MS)
    };
    let (spins, yields, ours) = (run(Manner::Spins), run(Manner::Yields), run(Manner::Rules));
    println!("on one processor: spins {spins}, yields {yields}, rules {ours}");
    assert!(
        ours >= 10 * spins && ours >= 10 * yields,
        "{ours} beside {spins}, {yields}"
    );
}

/// Once the computing threads have ended, pairs that took each other for such threads find out.
#[test]
fn many_pairs_recover_from_computing_threads() {
    for pairs in [4, 8] {
        let mut machine = Machine::with(pairs, 1, Manner::Rules);
        machine.messages_in(1000 * MS);
        for thread in &mut machine.threads {
            if matches!(thread.work, Work::Computes) {
                thread.wakes_at = u64::MAX;
            }
        }
        machine.runs = [(None, 0); 2];
        machine.messages_in(1000 * MS);
        let ours = machine.messages_in(500 * MS);
        println!("{pairs} pairs: {ours}, {TURNS} in turns");
        assert!(ours >= TURNS / 10 * 8, "{ours} beside {TURNS}");
    }
}

/// As a profiler does: 30 microseconds a thousand times a second, and ten milliseconds four times a second.
#[test]
fn interruptions_cost_what_they_take() {
    let run = |manner| {
        let mut machine = Machine::with(1, 0, manner);
        for processor in 0..2 {
            for (takes, every) in [(30_000, MS), (10 * MS, 240 * MS)] {
                machine.add_interruptions(processor, takes, every);
            }
        }
        let mut repetitions: Vec<u64> = (0..50).map(|_| machine.messages_in(20 * MS)).collect();
        repetitions.sort_unstable();
        repetitions
    };
    let (spins, ours) = (run(Manner::Spins), run(Manner::Rules));
    let sums = [&spins, &ours].map(|all| all.iter().sum::<u64>());
    println!(
        "spins {sums:?} {} {}, rules {} {}",
        spins[0], spins[25], ours[0], ours[25]
    );
    assert!(sums[1] >= sums[0] / 10 * 9, "{sums:?}");
    assert!(3 * ours[0] >= ours[25], "{ours:?}");
}

/// A server whose peers send nothing leaves its processor to others.
#[test]
fn a_server_with_idle_peers_leaves_its_processor_to_others() {
    let mut machine = Machine::new();
    machine.add_poller(0, Manner::Rules);
    machine.add(0, Work::Computes);
    machine.messages_in(1000 * MS);
    println!("beside a server: {} %", machine.computed());
    assert!(machine.computed() >= 80, "{} %", machine.computed());
}
