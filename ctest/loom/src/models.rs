//! The models: a few threads, and what must hold however they run.

use std::sync::atomic::{AtomicU64 as Count, Ordering as O};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::abi::vipl_region;
use crate::barrier::{OWNERS, be, patiently};
use crate::bell::{Bell, Marks};
use crate::board::{Board, Job, Report};
use crate::claim::{self, Claim};
use crate::lock::{Held, Lock};
use crate::region::Table;
use crate::ring::{Ring, SLOTS};
use crate::buffers::Segment;

/// All models by name.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("ring", ring),
    ("ring-end", ring_end),
    ("bell", bell),
    ("bell-fences", bell_fences),
    ("marks", marks),
    ("marks-again", marks_again),
    ("board", board),
    ("board-again", board_again),
    ("claim", claim),
    ("claim-offer", claim_offer),
    ("claim-end", claim_end),
    ("region", region),
    ("lock-bias", lock_bias),
    ("lock-borrow", lock_borrow),
];

/// Runs a model in every order; gives how many there were.
pub(crate) fn explore(model: fn()) -> u64 {
    static RUNS: Count = Count::new(0);
    RUNS.store(0, O::Relaxed);
    let mut builder = loom::model::Builder::new();
    // Every order with so many switches away from a thread that could go on: more find nothing new in
    // models of this size, and take hours.
    builder.preemption_bound = Some(3);
    builder.max_branches = 20_000;
    builder.check(move || {
        RUNS.fetch_add(1, O::Relaxed);
        model();
    });
    RUNS.load(O::Relaxed)
}

/// Messages arrive once, in order and whole, also when slots are used again.
fn ring() {
    let ring = Arc::new(Ring::default());
    let messages = SLOTS + 1;
    let sender = {
        let ring = ring.clone();
        thread::spawn(move || {
            for number in 0..messages {
                while !ring.has_slot(number) {
                    thread::yield_now();
                }
                ring.publish(number, 100 + u64::from(number));
            }
        })
    };
    for number in 0..messages {
        let message = loop {
            match ring.arrival(number) {
                Some(message) => break message,
                None => thread::yield_now(),
            }
        };
        assert_eq!(message, 100 + u64::from(number));
        ring.acknowledge(number + 1);
    }
    sender.join().expect("no panic");
}

/// Who sees that the sender has left sees all that it sent.
fn ring_end() {
    let ring = Arc::new(Ring::default());
    let sender = {
        let ring = ring.clone();
        thread::spawn(move || {
            ring.publish(0, 7);
            ring.close(1);
        })
    };
    let mut arrived = ring.arrival(0).is_some();
    if ring.closed() != 0 {
        arrived |= ring.arrival(0) == Some(7);
        assert!(arrived, "a message from before the end is lost");
    }
    sender.join().expect("no panic");
}

/// A thread that goes to sleep after a check is woken by the thread that publishes: no wake is lost.
fn bell() {
    wake(false);
}

/// The same where the publisher's process is not reached by barriers.
fn bell_fences() {
    wake(true);
}

fn wake(own_fences: bool) {
    let bell = Arc::new(Bell::default());
    let ring = Arc::new(Ring::default());
    bell.prepare();
    let sender = {
        let (bell, ring) = (bell.clone(), ring.clone());
        thread::spawn(move || {
            ring.publish(0, 7);
            bell.ring_if_wanted(own_fences);
        })
    };
    while ring.arrival(0).is_none() {
        let epoch = bell.arm();
        let there = ring.arrival(0).is_some();
        bell.sleep(epoch, if there { 0 } else { u64::MAX });
    }
    sender.join().expect("no panic");
}

/// Marks of two senders are all taken, and what was published before a mark is seen after it.
fn marks() {
    let marks = Arc::new(Marks::<1>::default());
    let rings = Arc::new([Ring::default(), Ring::default()]);
    let senders: Vec<_> = [0, 1]
        .map(|who: usize| {
            let (marks, rings) = (marks.clone(), rings.clone());
            thread::spawn(move || {
                rings[who].publish(0, 7);
                marks.set(who as u32 + 3);
            })
        })
        .into();
    let mut seen = 0;
    while seen < 2 {
        let mut indices = [0; 64];
        let found = marks.take(1, &mut indices);
        for index in &indices[..found] {
            assert_eq!(rings[*index as usize - 3].arrival(0), Some(7));
        }
        seen += found;
        if seen < 2 {
            thread::yield_now();
        }
    }
    for sender in senders {
        sender.join().expect("no panic");
    }
}

/// An object that is marked twice while its mark is taken once: after the last mark has been taken, everything
/// that was published is seen.
fn marks_again() {
    let marks = Arc::new(Marks::<1>::default());
    let ring = Arc::new(Ring::default());
    let sender = {
        let (marks, ring) = (marks.clone(), ring.clone());
        thread::spawn(move || {
            for number in 0..2 {
                ring.publish(number, 7);
                marks.set(3);
            }
        })
    };
    let mut arrived = 0;
    let mut look_if_marked = || {
        let marked = marks.take(1, &mut [0; 64]) > 0;
        while marked && arrived < 2 && ring.arrival(arrived).is_some() {
            arrived += 1;
        }
        marked
    };
    while !look_if_marked() {
        thread::yield_now();
    }
    sender.join().expect("no panic");
    look_if_marked();
    assert_eq!(arrived, 2, "a mark is lost");
}

/// Units of a copy that two sides share.
const UNITS: u32 = 2;

/// A copy of two units, which two sides share.
#[derive(Default)]
struct Halves {
    board: Board,
    reports: Board,
    /// Generation of the copy that was made last; loom checks each access.
    units: [UnsafeCell<u32>; UNITS as usize],
}

// SAFETY: that a unit is used by one side at a time is what the models show.
unsafe impl Sync for Halves {}

impl Halves {
    fn copy(&self, generation: u32, (first, part): (u32, u32)) {
        for unit in first..first + part {
            self.units[unit as usize].with_mut(|last| {
                // SAFETY: as above.
                let last = unsafe { &mut *last };
                assert!(*last < generation, "copied twice");
                *last = generation;
            });
        }
    }

    /// Makes a copy as its owner; it is whole then, whichever side made it.
    fn own(&self, generation: u32) {
        let segment = Segment {
            address: 0,
            handle: generation,
            length: generation,
        };
        let job = Job::Message(generation);
        self.board.open(generation, job, generation, &[segment]);
        let mut mine = 0;
        while let Some(taken) = self.board.take(generation, UNITS, UNITS) {
            mine += taken.1;
            self.copy(generation, taken);
        }
        let theirs = self.board.close(generation, UNITS) - mine;
        while self.reports.reported(generation).units < theirs {
            thread::yield_now();
        }
        for unit in &self.units {
            // SAFETY: as above.
            unit.with(|last| assert_eq!(unsafe { *last }, generation, "left out"));
        }
    }

    /// Looks once.
    fn help(&self) {
        let Some(asked) = self.board.read() else {
            return;
        };
        let generation = asked.generation;
        let mut report = Report {
            units: 0,
            given_up: false,
        };
        while let Some(taken) = self.board.take(generation, UNITS, UNITS) {
            assert_eq!(asked.job, Job::Message(generation));
            assert_eq!(asked.bytes, generation);
            let [segment] = asked.segments() else {
                panic!("one segment");
            };
            assert_eq!((segment.handle, segment.length), (generation, generation));
            self.copy(generation, taken);
            report.units += taken.1;
            self.reports.report(generation, report);
        }
    }
}

/// Owner and helper make one copy: each unit once.
fn board() {
    halves(1);
}

/// The board is used again while the helper may still have the description of the copy before.
fn board_again() {
    halves(2);
}

fn halves(copies: u32) {
    let halves = Arc::new(Halves::default());
    let helper = {
        let halves = halves.clone();
        thread::spawn(move || halves.help())
    };
    for generation in 1..=copies {
        halves.own(generation);
    }
    helper.join().expect("no panic");
}

/// The entry of a region that has gone is used for another one. A reader with the old handle gets the old
/// region or none, and one with the new handle the new one or none: never a mixture.
fn region() {
    let entry = Arc::new([vipl_region::default()]);
    entry[0].insert(1000, 1100, 5 << 32, 1);
    let writer = {
        let entry = entry.clone();
        thread::spawn(move || {
            entry[0].remove();
            entry[0].insert(5000, 5900, 6 << 32, 2);
        })
    };
    // SAFETY: one entry, which outlives the table.
    let table = unsafe { Table::new(entry.as_ptr(), 1) };
    assert!(
        !table.is_registered(1, 5000, 10),
        "the old handle, the new region"
    );
    assert!(
        !table.is_registered(1, 1000, 500),
        "the old base, the new end"
    );
    assert!(
        !table.is_registered(2, 1000, 10),
        "the new handle, the old region"
    );
    writer.join().expect("no panic");
    assert!(table.is_registered(2, 5000, 900) && !table.is_registered(1, 1000, 1));
}

/// What a lock guards; loom checks each access. Two threads only: loom orders stores of a word by what
/// happened before what, so that of three threads two may swap the same 0 out of it, which no machine does.
/// At most one thread may be inside.
#[derive(Default)]
struct Guarded {
    lock: Lock,
    value: UnsafeCell<u32>,
    /// Times that a thread was inside; not part of the model.
    times: Times,
}

#[derive(Default)]
struct Times(std::sync::atomic::AtomicU32);

impl Guarded {
    fn inside(&self, lock: impl FnOnce(&Lock) -> Held) -> Option<Held> {
        let held = patiently(|| lock(&self.lock))?;
        // SAFETY: loom checks that the lock holds.
        self.value.with_mut(|value| unsafe { *value += 1 });
        self.times.0.fetch_add(1, O::Relaxed);
        self.lock.unlock(held);
        Some(held)
    }

    fn add(&self) -> Option<Held> {
        self.inside(Lock::lock)
    }

    fn watch(&self) -> Option<Held> {
        self.inside(Lock::borrow)
    }

    /// All threads have ended: no update is lost.
    fn check(&self) {
        // SAFETY: as above.
        let value = self.value.with(|value| unsafe { *value });
        assert_eq!(value, self.times.0.load(O::Relaxed), "updates are lost");
    }

    /// A lock that thread 1 owns, after three rounds.
    fn owned() -> Arc<Guarded> {
        let guarded = Arc::new(Guarded::default());
        be(1);
        let last = [(); 3].map(|()| guarded.add())[2];
        assert!(
            last.is_some_and(|held| held.0 > OWNERS),
            "three rounds earn it"
        );
        guarded
    }

    /// Runs a body as another thread beside the calling one.
    fn beside(guarded: &Arc<Self>, number: usize, body: fn(&Guarded)) -> thread::JoinHandle<()> {
        let guarded = guarded.clone();
        thread::spawn(move || {
            be(number);
            body(&guarded);
        })
    }
}

/// Another thread takes the bias away while the owner goes in and out.
fn lock_bias() {
    let guarded = Guarded::owned();
    let other = Guarded::beside(&guarded, 2, |guarded| drop(guarded.add()));
    guarded.add();
    guarded.add();
    other.join().expect("no panic");
    guarded.check();
}

/// A watcher borrows it and gives it back: the owner need not earn it again.
fn lock_borrow() {
    let guarded = Guarded::owned();
    let other = Guarded::beside(&guarded, 2, |guarded| drop(guarded.watch()));
    guarded.add();
    let last = guarded.add();
    other.join().expect("no panic");
    guarded.check();
    assert!(
        last.is_none_or(|held| held.0 != 0),
        "it was the owner's all the time"
    );
}

/// A completion of clan: its claim, and a word of it that one side at a time may touch.
#[derive(Default)]
struct Completion {
    claim: Claim,
    data: UnsafeCell<u32>,
}

// SAFETY: that `data` is used by one side at a time is what the models show.
unsafe impl Sync for Completion {}

impl Completion {
    fn change(&self) {
        self.data.with_mut(|data| {
            // SAFETY: as above; loom watches.
            unsafe { *data += 1 };
        });
    }
}

/// The program's side and the device both want to put a completion into memory: one of them does.
fn claim() {
    let slot = Arc::new(Completion::default());
    let device = {
        let slot = slot.clone();
        thread::spawn(move || {
            let taken = slot.claim.take_for_device();
            if taken {
                slot.change();
                slot.claim.publish(claim::PLACED);
            }
            taken
        })
    };
    let ours = match slot.claim.take_for_application() {
        Ok(()) => true,
        Err(claim::PLACED) => {
            slot.data.with(|data| {
                // SAFETY: the device is done with it.
                assert_eq!(unsafe { *data }, 1);
            });
            false
        }
        Err(_) => false,
    };
    if ours {
        slot.change();
    }
    assert_ne!(device.join().expect("no panic"), ours);
}

/// The program's side fetches an offer that the device wants back: either has it, and what the program's side
/// has fetched the device sees.
fn claim_offer() {
    let slot = Arc::new(Completion::default());
    slot.claim.publish(claim::OFFERED);
    let program = {
        let slot = slot.clone();
        thread::spawn(move || {
            let begun = slot.claim.begin_fetch();
            if begun {
                slot.change();
                assert!(slot.claim.end_fetch(true), "nobody withdraws here");
            }
            begun
        })
    };
    let ours = slot.claim.take_back();
    if ours || slot.claim.state() == claim::FETCHED {
        slot.change();
    }
    assert_ne!(program.join().expect("no panic"), ours);
}

/// An offer is withdrawn while it is fetched: both sides agree whether it was in time.
fn claim_end() {
    let slot = Arc::new(Completion::default());
    slot.claim.publish(claim::OFFERED);
    let program = {
        let slot = slot.clone();
        thread::spawn(move || slot.claim.begin_fetch() && slot.claim.end_fetch(true))
    };
    let fetched = slot.claim.withdraw();
    assert_eq!(program.join().expect("no panic"), fetched);
}
