//! Background progress thread, one per NIC handle.
//!
//! It delivers messages and lets waiting sends go on while the application computes or polls nothing but its own memory. It
//! sleeps until a peer rings, then polls connected VIs for a while, at first often and then less, before it sleeps again. A
//! peer rings only while the thread sleeps, so an active application is not disturbed.
//!
//! To poll a VI takes its lock away from the thread that owns it, which costs a barrier of all processors. Most polls are
//! therefore of some VIs only: not of those whose peers set a ready bit and have not, nor of ready ones while the
//! application takes the ready bits, unless their sends wait for the peer.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use vipl_plugin_sdk::abi::VIPL_LOG_ERROR;
use vipl_plugin_sdk::{Host, NicHandle, Poll, Status};
use vipl_sys::futex;
use vipl_sys::mutex::Mutex;
use vipl_sys::table::WordsInUse;
use vipl_sys::thread::{Thread, spawn_with_signals_blocked};

use crate::shared::{SharedNic, VIS_MAX};

/// Shortest and longest pause between two polls.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Polls that find nothing before the thread sleeps.
const QUIET_POLLS: u32 = 12;
/// Every so many polls are of all VIs: a peer may have missed that it is to set a ready bit, or be hostile. Its messages are
/// then found after a sixth of a second, or later on a VI on which the application does something else meanwhile.
const ALL_EVERY: u32 = 8;
/// First sleep that no ring ends, and the longest: a hostile peer may not ring the bell. Each lasts twice as long as the one
/// before, so that an idle process is left alone.
const SLEEP_MIN: Duration = Duration::from_millis(500);
const SLEEP_MAX: Duration = Duration::from_secs(4);

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static ARRIVED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is a watch thread, and not one of the application.
pub(crate) fn is_this_thread() -> bool {
    WATCHING.get()
}

/// This thread has taken or sent something that completes no descriptor. A watch thread then polls again at once.
pub(crate) fn note_arrival() {
    ARRIVED.set(true);
}

/// One bit per VI.
struct Vis([AtomicU64; VIS_MAX as usize / 64]);

impl Default for Vis {
    fn default() -> Vis {
        Vis([const { AtomicU64::new(0) }; VIS_MAX as usize / 64])
    }
}

impl Vis {
    fn set(&self, index: u32, on: bool) {
        let (word, bit) = (&self.0[index as usize / 64], 1 << (index % 64));
        if on {
            word.fetch_or(bit, Ordering::SeqCst);
        } else {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    fn word(&self, place: usize) -> u64 {
        self.0[place].load(Ordering::SeqCst)
    }

    fn any(&self, words: usize) -> bool {
        (0..words).any(|place| self.word(place) != 0)
    }
}

/// The thread, and the VIs that it polls.
pub(crate) struct Watch {
    nic: NicHandle,
    shared: Arc<SharedNic>,
    /// What is in use of the sets below.
    words: WordsInUse,
    connected: Vis,
    /// VIs whose peers set ready bits.
    marked: Vis,
    /// The application has taken ready bits since the thread's last poll.
    marks_taken: AtomicBool,
    /// VIs whose sends wait for the peer.
    waiting: Vis,
    asleep: AtomicBool,
    /// 1: the thread ends. It sleeps on this word between two polls.
    stop: AtomicU32,
    thread: Mutex<Option<Thread>>,
}

impl Watch {
    pub(crate) fn new(nic: NicHandle, shared: Arc<SharedNic>) -> Arc<Watch> {
        Arc::new(Watch {
            nic,
            shared,
            words: WordsInUse::default(),
            connected: Vis::default(),
            marked: Vis::default(),
            marks_taken: AtomicBool::new(false),
            waiting: Vis::default(),
            asleep: AtomicBool::new(false),
            stop: AtomicU32::new(0),
            thread: Mutex::new(None),
        })
    }

    /// Starts the thread. Without it an application that computes would receive nothing.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Status> {
        let watch = self.clone();
        let started = spawn_with_signals_blocked("vipl-watch", move || watch.run());
        let thread = started.map_err(|error| {
            let text = format!("loopback: cannot start a thread: {error}");
            Host::get().log(VIPL_LOG_ERROR, &text);
            Status::Resource
        })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Begins to poll a VI.
    pub(crate) fn add(&self, index: u32) {
        self.words.include(index);
        self.connected.set(index, true);
    }

    /// How many words of ready bits are in use.
    #[inline(always)]
    pub(crate) fn words(&self) -> usize {
        self.words.count()
    }

    /// Polls it no more.
    pub(crate) fn remove(&self, index: u32) {
        self.connected.set(index, false);
        self.marked.set(index, false);
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stop.store(1, Ordering::Release);
        futex::wake(&self.stop);
        self.shared.bell().ring();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            thread.join();
        }
    }

    fn run(&self) {
        WATCHING.set(true);
        let bell = self.shared.bell();
        // First of all: the application has just connected, and its first message should not have to ring.
        let (mut active, mut time) = (true, SLEEP_MIN);
        while self.stop.load(Ordering::Acquire) == 0 {
            if active {
                self.stay_awake();
                time = SLEEP_MIN;
            }
            let epoch = bell.arm();
            self.asleep.store(true, Ordering::SeqCst);
            // Something may have come just before the announcement.
            let found = self.poll_vis(true, false);
            active = found == Poll::Progress
                || self.waiting.any(self.words())
                || self.stop.load(Ordering::Acquire) != 0;
            bell.sleep(
                epoch,
                match found {
                    _ if active => 0,
                    // A VI that the application has used since the last poll was not polled.
                    Poll::Busy => PAUSE_MAX.as_nanos() as u64,
                    _ => time.as_nanos() as u64,
                },
            );
            self.asleep.store(false, Ordering::SeqCst);
            // A sleep that no ring has ended is no sign of work.
            active |= bell.has_rung(epoch);
            time = (time * 2).min(SLEEP_MAX);
        }
    }

    fn stay_awake(&self) {
        let (mut pause, mut quiet, mut polls) = (PAUSE_MIN, 0, 0u32);
        while quiet < QUIET_POLLS && self.stop.load(Ordering::Acquire) == 0 {
            let found = self.poll(polls.is_multiple_of(ALL_EVERY));
            polls = polls.wrapping_add(1);
            if found == Poll::Progress {
                (pause, quiet) = (PAUSE_MIN, 0);
                std::thread::yield_now();
                continue;
            }
            // Waiting sends keep the thread awake: the peer's alert may be missed. So does an active application, which may stop
            // polling at any time.
            let awake = found == Poll::Busy || self.waiting.any(self.words());
            quiet = if awake { 0 } else { quiet + 1 };
            futex::wait(&self.stop, 0, pause.as_nanos() as u64);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// A VI's sends begin or cease to wait for the peer.
    pub(crate) fn set_waiting(&self, index: u32, waiting: bool) {
        self.waiting.set(index, waiting);
        if waiting && self.asleep.load(Ordering::SeqCst) {
            self.shared.bell().ring();
        }
    }

    /// Notes whether the peer sets the ready bit of a VI.
    pub(crate) fn set_marked(&self, index: u32, marked: bool) {
        self.marked.set(index, marked);
    }

    /// The application takes the ready bits. The word is written once for each poll of the thread.
    #[inline(always)]
    pub(crate) fn note_marks_taken(&self) {
        if !self.marks_taken.load(Ordering::Relaxed) {
            self.marks_taken.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the application has taken ready bits since the last call.
    fn application_takes_marks(&self) -> bool {
        self.marks_taken.swap(false, Ordering::Relaxed)
    }

    /// Which of 64 VIs are polled.
    fn due(&self, place: usize, all: bool, by_application: bool) -> u64 {
        let connected = self.connected.word(place);
        if all || connected == 0 {
            return connected;
        }
        let ready = self.shared.ready().word(place);
        let ready = if by_application { 0 } else { ready };
        connected & (ready | !self.marked.word(place) | self.waiting.word(place))
    }

    /// Polls VIs: all of them, or those that no other thread polls.
    fn poll(&self, all: bool) -> Poll {
        let by_application = self.application_takes_marks();
        match self.poll_vis(all, by_application) {
            Poll::Nothing if by_application => Poll::Busy,
            found => found,
        }
    }

    fn poll_vis(&self, all: bool, by_application: bool) -> Poll {
        let mut found = Poll::Nothing;
        for place in 0..self.words() {
            let mut bits = self.due(place, all, by_application);
            while bits != 0 {
                let index = place as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                // SAFETY: the NIC is open until `stop` has returned; no operation runs on this thread.
                match unsafe { self.nic.poll(index) } {
                    Poll::Nothing => {}
                    Poll::Busy if found == Poll::Progress => {}
                    result => found = result,
                }
            }
        }
        if ARRIVED.replace(false) {
            Poll::Progress
        } else {
            found
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RD, pair};

    #[test]
    fn ready_vis_are_left_to_an_application_that_takes_the_ready_bits() {
        let pair = pair(RD, true);
        let shared = pair.right.nic.shared().clone();
        // One whose thread does not run.
        // SAFETY: nothing polls it.
        let nic = unsafe { NicHandle::new(std::ptr::null()) };
        let watch = Watch::new(nic, shared.clone());
        let is_due = |all| {
            let by_application = watch.application_takes_marks();
            watch.due(1, all, by_application) & 1 << 5 != 0
        };
        assert!(!is_due(true), "it is not connected");
        watch.connected.set(69, true);
        assert!(is_due(false), "its peer sets no ready bit");
        watch.set_marked(69, true);
        assert!(!is_due(false) && is_due(true), "it is not ready");
        shared.ready().set(69);
        assert!(is_due(false), "it is ready");
        watch.note_marks_taken();
        assert!(!is_due(false), "the application takes the ready bits");
        assert!(is_due(false), "it does not any more");
        watch.note_marks_taken();
        watch.set_waiting(69, true);
        assert!(
            is_due(false),
            "its sends wait for the peer, whose alert may be missed"
        );
        watch.set_waiting(69, false);
        watch.remove(69);
        assert!(!is_due(true));
    }
}
