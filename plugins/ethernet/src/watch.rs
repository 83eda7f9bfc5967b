//! Progress while the program makes none.
//!
//! A message for a program that computes, or that polls nothing but its own memory, must still arrive;
//! acknowledgements and timers must not wait for the program; and what was posted must leave. One thread
//! per NIC handle sees to that. It leaves a program alone that looks for itself:
//!
//! | the program | this thread |
//! | --- | --- |
//! | polls | naps, 1 to 16 ms, and looks in between, but not at what the program has looked at a moment ago |
//! | makes a call now and then, and leaves frames to this thread | sleeps on the socket, and takes what the program does not take at once |
//! | sleeps on the socket itself | sleeps until a deadline; the program ends that when it wakes |
//! | does neither | sleeps on the socket |
//!
//! The second row is a program that polls its own memory for RDMA Writes between calls. It is told from the first
//! by what this thread finds: frames that it takes give it credit, wakes for nothing use it up.
//!
//! A post, or a timer, that must not wait for the end of a nap shortens it to a millisecond.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use vipl_plugin_sdk::abi::{VIPL_LOG_ERROR, VIPL_LOG_WARN};
use vipl_plugin_sdk::futex;
use vipl_plugin_sdk::thread::{ask_for_short_turns, spawn_with_signals_blocked};
use vipl_plugin_sdk::{Host, Poll};

use crate::VIS_MAX;
use crate::bell::Bell;
use crate::nic::Core;

const MS: u64 = 1_000_000;
/// Shortest and longest nap while the program is at work, in nanoseconds.
const NAP_MIN: u64 = MS;
const NAP_MAX: u64 = 16 * MS;
/// A program that has not looked for so long does something else, in nanoseconds. It is longer than this thread
/// keeps a program from looking that it has preempted itself.
const AWAY: u64 = 50_000;
/// Looks for nothing after which a program is again taken for one that polls.
const CREDIT: u32 = 8;
/// Pause before a program that is just looking is looked after, in nanoseconds.
const PAUSE: u64 = 20_000;
/// Longest sleep: a partner that misbehaves may keep the bell from being rung.
const SLEEP_MAX: u64 = 500 * MS;
/// How often the interface is asked whether it is still there.
const CHECK_EVERY: u64 = 250 * MS;

thread_local! {
    static ON_WATCH: Cell<bool> = const { Cell::new(false) };
}

/// The thread, and how it is woken.
#[derive(Default)]
pub(crate) struct Watch {
    /// Counts kicks; the futex of naps.
    kicks: AtomicU32,
    /// When the thread looks next at the latest, in nanoseconds; 0 while it looks.
    until: AtomicU64,
    /// It sleeps on the bell and not on `kicks`.
    on_bell: AtomicBool,
    /// It sleeps because the program does: to be kicked when the program wakes.
    trusting: AtomicBool,
    /// The program was at work since this was last asked.
    active: AtomicBool,
    /// This thread has taken frames, whether or not they completed anything.
    arrived: AtomicBool,
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    /// A thread of the program is at work on this NIC.
    #[inline(always)]
    pub(crate) fn program_is_at_work(&self) {
        if !self.active.load(Ordering::Relaxed) && !ON_WATCH.get() {
            self.active.store(true, Ordering::Relaxed);
        }
    }

    /// A thread of the program has slept and goes on.
    pub(crate) fn program_wakes(&self) {
        if self.trusting.load(Ordering::Relaxed) && self.trusting.swap(false, Ordering::SeqCst) {
            self.kick(None);
        }
    }

    /// Frames have been taken. Those that the program takes are none of this thread's business: on their
    /// account it would look again at once, for as long as the program is busy, and be in its way.
    #[inline(always)]
    pub(crate) fn note_arrival(&self) {
        if ON_WATCH.get() {
            self.arrived.store(true, Ordering::Relaxed);
        }
    }

    /// Somebody wants to be looked after at this time.
    #[inline(always)]
    pub(crate) fn expect(&self, bell: &Bell, deadline: u64) {
        let until = self.until.load(Ordering::SeqCst);
        if deadline.saturating_add(NAP_MIN) < until {
            self.hurry(bell, until);
        }
    }

    #[cold]
    fn hurry(&self, bell: &Bell, until: u64) {
        // One kick is enough.
        let first = self
            .until
            .compare_exchange(until, 0, Ordering::SeqCst, Ordering::SeqCst);
        if first.is_ok() {
            self.kick(Some(bell));
        }
    }

    /// The thread shall look now.
    #[cold]
    pub(crate) fn look(&self, bell: &Bell) {
        self.kick(Some(bell));
    }

    fn kick(&self, bell: Option<&Bell>) {
        self.kicks.fetch_add(1, Ordering::SeqCst);
        match bell {
            Some(bell) if self.on_bell.load(Ordering::SeqCst) => bell.ring(),
            _ => futex::wake(&self.kicks),
        }
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
    }
}

/// Starts the thread, if it does not run yet.
pub(crate) fn start(core: &Arc<Core>) {
    let mut thread = core.watch.thread();
    if thread.is_none() {
        let core = core.clone();
        *thread = spawn_with_signals_blocked("vipl-watch", move || Round::new(&core).run())
            .inspect_err(|error| {
                let text = format!("cannot start a thread: {error}");
                Host::get().log(VIPL_LOG_ERROR, &text);
            })
            .ok();
    }
}

/// Ends it.
pub(crate) fn stop(core: &Core) {
    core.watch.stop.store(true, Ordering::SeqCst);
    core.watch.kick(None);
    core.bell.ring();
    let thread = core.watch.thread().take();
    if let Some(thread) = thread {
        let _ = thread.join();
    }
}

/// What the thread remembers.
struct Round<'a> {
    core: &'a Core,
    nap: u64,
    /// Frames were waiting at the doorbell when it last looked.
    posted: bool,
    checked: u64,
    failed: bool,
    /// Looks for nothing that the thread may make before it naps.
    credit: u32,
}

impl Round<'_> {
    fn new(core: &Core) -> Round<'_> {
        Round {
            core,
            nap: NAP_MIN,
            posted: false,
            checked: 0,
            failed: false,
            credit: 0,
        }
    }

    fn run(&mut self) {
        ON_WATCH.set(true);
        ask_for_short_turns();
        let watch = &self.core.watch;
        while !watch.stop.load(Ordering::SeqCst) {
            let kicks = watch.kicks.load(Ordering::SeqCst);
            let found = self.look();
            if found == Poll::Progress {
                self.nap = NAP_MIN;
                self.credit = CREDIT;
                continue;
            }
            if self.credit > 0 {
                self.credit -= 1;
                if found == Poll::Busy || self.posted {
                    self.nap(kicks, PAUSE);
                } else {
                    self.sleep(kicks);
                }
                continue;
            }
            let active = watch.active.swap(false, Ordering::Relaxed);
            if active || found == Poll::Busy || self.posted {
                self.nap = if self.posted { NAP_MIN } else { self.nap };
                self.nap(kicks, self.nap);
                self.nap = (self.nap * 2).min(NAP_MAX);
            } else if self.core.bell.is_led() {
                watch.trusting.store(true, Ordering::SeqCst);
                // The program may have woken before it could see that.
                if self.core.bell.is_led() {
                    self.nap(kicks, SLEEP_MAX);
                }
                watch.trusting.store(false, Ordering::SeqCst);
                self.nap = NAP_MIN;
            } else {
                self.sleep(kicks);
                self.nap = NAP_MIN;
            }
        }
    }

    /// Lets every VI that may have something make progress.
    fn look(&mut self) -> Poll {
        let core = self.core;
        let now = Host::get().now_ns();
        // To lock a VI that the program is at, or to take frames away from it, would cost it more than help.
        let lately = now.saturating_sub(AWAY);
        self.ring();
        let mut found = Poll::Nothing;
        if !core.is_read(lately) {
            core.receive_all();
        } else if core.wire.as_ref().is_some_and(|wire| wire.tip.has_frame()) {
            found = Poll::Busy;
        }
        core.farewells.pump(core, now);
        core.mark_due(now);
        self.check_interface(now);
        let mut indices = [0; VIS_MAX as usize];
        let marked = core.bell.take_marks(&mut indices);
        for index in &indices[..marked] {
            let polled = if core.is_attended(*index, lately) {
                Poll::Busy
            } else {
                // SAFETY: the NIC is open until `stop` has returned; no operation runs on this thread.
                let polled = unsafe { Host::get().poll(core.nic(), *index) };
                core.neglect(*index);
                polled
            };
            match polled {
                Poll::Nothing => {}
                Poll::Progress => found = Poll::Progress,
                Poll::Busy => {
                    // The program may stop working on it without having looked.
                    core.bell.mark(*index);
                    found = if found == Poll::Progress {
                        found
                    } else {
                        Poll::Busy
                    };
                }
            }
        }
        if core.watch.arrived.swap(false, Ordering::Relaxed) {
            Poll::Progress
        } else {
            found
        }
    }

    /// Sends what has been waiting since the last look; what was posted just now may get company.
    fn ring(&mut self) {
        let Some(doorbell) = self.core.doorbell() else {
            return;
        };
        if self.posted {
            doorbell.ring();
        }
        self.posted = doorbell.waits();
    }

    fn check_interface(&mut self, now: u64) {
        if self.core.wire.is_none() || self.failed || now < self.checked + CHECK_EVERY {
            return;
        }
        self.checked = now;
        let socket = self.core.socket();
        if !socket.is_some_and(vipl_packet::is_bound) {
            self.failed = true;
            let what = match socket {
                Some(_) => "the interface has been removed",
                None => "the program has closed the descriptor of the interface",
            };
            let text = format!("{}: {what}", self.core.name);
            Host::get().log(VIPL_LOG_WARN, &text);
            // SAFETY: the NIC is open until `stop` has returned; no operation runs on this thread.
            unsafe { Host::get().catastrophe(self.core.nic()) };
        }
    }

    /// When somebody wants to be looked after, but not sooner than in a nap.
    fn soonest(&self, now: u64) -> u64 {
        let core = self.core;
        let soonest = core.mark_due(now).min(core.farewells.deadline());
        soonest.max(now + NAP_MIN)
    }

    /// Says until when this thread sleeps at the latest, and gives for how long.
    fn announce(&self, time: u64) -> u64 {
        let watch = &self.core.watch;
        let now = Host::get().now_ns();
        let mut until = now + time;
        loop {
            watch.until.store(until, Ordering::SeqCst);
            // Whoever sets a deadline from here on compares it with `until`.
            let soonest = self.soonest(now);
            if soonest >= until {
                return until - now;
            }
            until = soonest;
        }
    }

    fn nap(&self, kicks: u32, time: u64) {
        let watch = &self.core.watch;
        let time = self.announce(time);
        futex::wait(&watch.kicks, kicks, time);
        watch.until.store(0, Ordering::SeqCst);
    }

    /// Sleeps on the bell: a frame, a partner on this host or a kick ends it.
    fn sleep(&mut self, kicks: u32) {
        let (core, watch) = (self.core, &self.core.watch);
        watch.on_bell.store(true, Ordering::SeqCst);
        let epoch = core.bell.arm();
        // Something may have come just before that.
        let found = self.look();
        if found == Poll::Progress {
            self.credit = CREDIT;
        }
        let awake = found != Poll::Nothing || self.posted;
        let time = self.announce(SLEEP_MAX);
        let awake = awake
            || watch.kicks.load(Ordering::SeqCst) != kicks
            || watch.stop.load(Ordering::SeqCst);
        if !awake {
            core.bell.sleep(epoch, time, core.socket());
        }
        core.bell.disarm();
        watch.on_bell.store(false, Ordering::SeqCst);
        watch.until.store(0, Ordering::SeqCst);
    }
}
