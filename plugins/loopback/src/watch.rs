//! Progress while the program makes none.
//!
//! A message for a program that computes, or that polls nothing but its own memory, must still arrive.
//! One thread per NIC handle sees to it: it sleeps until a partner rings, then lets connected VIs
//! make progress, and for a while goes on doing so now and then, at first often and then less, before it
//! sleeps again. A partner rings only while it sleeps, so a busy program is not disturbed by it.
//!
//! To look at a VI takes its lock away from the thread that owns it, which costs a barrier of all processors.
//! Most looks are therefore only at VIs that somebody has to look at: not at those that partners mark and have
//! not marked, nor at marked ones while the program takes the marks, unless they wait for their partner.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use vipl_plugin_sdk::abi::VIPL_LOG_ERROR;
use vipl_plugin_sdk::{Host, NicHandle, Poll, Status};
use vipl_sys::futex;
use vipl_sys::mutex::Mutex;
use vipl_sys::thread::{Thread, spawn_with_signals_blocked};

use crate::shared::{SharedNic, VIS_MAX};

/// Shortest and longest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Looks without a find before the thread sleeps.
const QUIET_LOOKS: u32 = 12;
/// Every so many looks are at all VIs: a partner may have missed that it is to mark one, or be hostile. What it has sent
/// is then found after a sixth of a second, or later on a VI on which the program does something else meanwhile.
const ALL_EVERY: u32 = 8;
/// Longest sleep: a partner that misbehaves may keep the bell from being rung.
const SLEEP_MAX: Duration = Duration::from_millis(500);

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static ARRIVED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is a watch thread, and not one of the program.
pub(crate) fn is_this_thread() -> bool {
    WATCHING.get()
}

/// This thread has taken or sent something that completes no descriptor. A watch thread then looks again at once.
pub(crate) fn note_arrival() {
    ARRIVED.set(true);
}

/// One bit per VI.
#[derive(Default)]
struct Vis([AtomicU64; VIS_MAX as usize / 64]);

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

    fn any(&self) -> bool {
        (0..self.0.len()).any(|place| self.word(place) != 0)
    }
}

/// The thread, and which VIs it looks after.
pub(crate) struct Watch {
    nic: NicHandle,
    shared: Arc<SharedNic>,
    connected: Vis,
    /// VIs that partners mark.
    marked: Vis,
    /// The program has taken marks since the thread's last look.
    marks_taken: AtomicBool,
    /// VIs with sends that cannot go on before the partner has.
    waiting: Vis,
    asleep: AtomicBool,
    /// 1: the thread ends. It sleeps on this word between two looks.
    stop: AtomicU32,
    thread: Mutex<Option<Thread>>,
}

impl Watch {
    pub(crate) fn new(nic: NicHandle, shared: Arc<SharedNic>) -> Arc<Watch> {
        Arc::new(Watch {
            nic,
            shared,
            connected: Vis::default(),
            marked: Vis::default(),
            marks_taken: AtomicBool::new(false),
            waiting: Vis::default(),
            asleep: AtomicBool::new(false),
            stop: AtomicU32::new(0),
            thread: Mutex::new(None),
        })
    }

    /// Starts the thread. A device without it would connect and then move nothing for a program that computes.
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

    /// Begins to look after a VI.
    pub(crate) fn add(&self, index: u32) {
        self.connected.set(index, true);
    }

    /// Looks after it no more.
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
        while self.stop.load(Ordering::Acquire) == 0 {
            // First of all: the program has just connected, and its first message should not have to ring.
            self.stay_awake();
            let epoch = bell.arm();
            self.asleep.store(true, Ordering::SeqCst);
            // Something may have come just before the announcement.
            let awake = self.look(true) != Poll::Nothing
                || self.waiting.any()
                || self.stop.load(Ordering::Acquire) != 0;
            bell.sleep(
                epoch,
                if awake {
                    0
                } else {
                    SLEEP_MAX.as_nanos() as u64
                },
            );
            self.asleep.store(false, Ordering::SeqCst);
        }
    }

    fn stay_awake(&self) {
        let (mut pause, mut quiet, mut looks) = (PAUSE_MIN, 0, 0u32);
        while quiet < QUIET_LOOKS && self.stop.load(Ordering::Acquire) == 0 {
            let found = self.look(looks.is_multiple_of(ALL_EVERY));
            looks = looks.wrapping_add(1);
            if found == Poll::Progress {
                (pause, quiet) = (PAUSE_MIN, 0);
                std::thread::yield_now();
                continue;
            }
            // Sends that cannot go on keep the thread awake: the partner's sign may be missed.
            // So does a program at work, which may stop working at any time.
            let awake = found == Poll::Busy || self.waiting.any();
            quiet = if awake { 0 } else { quiet + 1 };
            futex::wait(&self.stop, 0, pause.as_nanos() as u64);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// A VI begins or ceases to wait for its partner.
    pub(crate) fn set_waiting(&self, index: u32, waiting: bool) {
        self.waiting.set(index, waiting);
        if waiting && self.asleep.load(Ordering::SeqCst) {
            self.shared.bell().ring();
        }
    }

    /// Says whether partners mark a VI when they have something for it.
    pub(crate) fn set_marked(&self, index: u32, marked: bool) {
        self.marked.set(index, marked);
    }

    /// The program takes the marks. The word is written once for each look of the thread.
    #[inline(always)]
    pub(crate) fn note_marks_taken(&self) {
        if !self.marks_taken.load(Ordering::Relaxed) {
            self.marks_taken.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the program has taken marks since this was asked last.
    fn program_takes_marks(&self) -> bool {
        self.marks_taken.swap(false, Ordering::Relaxed)
    }

    /// Which 64 VIs a look is at.
    fn due(&self, place: usize, all: bool, by_program: bool) -> u64 {
        let connected = self.connected.word(place);
        if all || connected == 0 {
            return connected;
        }
        let ready = self.shared.ready().word(place);
        let unheard = if by_program { 0 } else { ready };
        connected & (unheard | !self.marked.word(place) | self.waiting.word(place))
    }

    /// Lets VIs make progress, all of them or those of which nobody else would hear.
    fn look(&self, all: bool) -> Poll {
        let by_program = self.program_takes_marks();
        let mut found = if by_program {
            Poll::Busy
        } else {
            Poll::Nothing
        };
        for place in 0..VIS_MAX as usize / 64 {
            let mut bits = self.due(place, all, by_program);
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
    fn marked_vis_are_left_to_a_program_that_takes_the_marks() {
        let pair = pair(RD, true);
        let shared = pair.right.nic.shared().clone();
        // One whose thread does not run.
        // SAFETY: nothing polls it.
        let nic = unsafe { NicHandle::new(std::ptr::null()) };
        let watch = Watch::new(nic, shared.clone());
        let is_due = |all| {
            let by_program = watch.program_takes_marks();
            watch.due(1, all, by_program) & 1 << 5 != 0
        };
        assert!(!is_due(true), "it is not connected");
        watch.connected.set(69, true);
        assert!(is_due(false), "nobody marks it");
        watch.set_marked(69, true);
        assert!(!is_due(false) && is_due(true), "it is not marked");
        shared.ready().set(69);
        assert!(is_due(false), "it is marked");
        watch.note_marks_taken();
        assert!(!is_due(false), "the program takes the marks");
        assert!(is_due(false), "it does not any more");
        watch.note_marks_taken();
        watch.set_waiting(69, true);
        assert!(
            is_due(false),
            "it waits for its partner, whose sign may be missed"
        );
        watch.set_waiting(69, false);
        watch.remove(69);
        assert!(!is_due(true));
    }
}
