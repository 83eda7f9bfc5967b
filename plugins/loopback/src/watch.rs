//! Progress while the program makes none.
//!
//! A message for a program that computes, or that polls nothing but its own memory, must still arrive.
//! One thread per NIC handle sees to it: it sleeps until a partner rings, then lets every connected VI
//! make progress, and for a while goes on doing so now and then, at first often and then less, before it
//! sleeps again. A partner rings only while it sleeps, so a busy program is not disturbed by it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use vipl_plugin_sdk::abi::{VIPL_LOG_ERROR, vipl_nic};
use vipl_plugin_sdk::{Host, Poll};
use vipl_sys::mutex::Mutex;
use vipl_sys::thread::spawn_with_signals_blocked;

use crate::shared::{SharedNic, VIS_MAX};

/// Shortest and longest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Looks without a find before the thread sleeps.
const QUIET_LOOKS: u32 = 12;
/// Longest sleep: a partner that misbehaves may keep the bell from being rung.
const SLEEP_MAX: Duration = Duration::from_millis(500);

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is a watch thread, and not one of the program.
pub(crate) fn is_this_thread() -> bool {
    WATCHING.get()
}

/// The host's NIC, for `Host::poll`.
struct NicPointer(*const vipl_nic);
// SAFETY: the NIC outlives the thread, which `stop` waits for.
unsafe impl Send for NicPointer {}
// SAFETY: only its address is used.
unsafe impl Sync for NicPointer {}

/// The thread, and which VIs it looks after.
pub(crate) struct Watch {
    nic: NicPointer,
    shared: Arc<SharedNic>,
    connected: [AtomicU64; VIS_MAX as usize / 64],
    /// VIs with sends that wait for the partner.
    pending: AtomicU32,
    asleep: AtomicBool,
    arrived: AtomicBool,
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    pub(crate) fn new(nic: *const vipl_nic, shared: Arc<SharedNic>) -> Arc<Watch> {
        Arc::new(Watch {
            nic: NicPointer(nic),
            shared,
            connected: [const { AtomicU64::new(0) }; VIS_MAX as usize / 64],
            pending: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            arrived: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: Mutex::new(None),
        })
    }

    /// Begins to look after a VI; the first one starts the thread.
    pub(crate) fn add(self: &Arc<Self>, index: u32) {
        self.connected[index as usize / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let watch = self.clone();
            *thread = spawn_with_signals_blocked("vipl-watch", move || watch.run())
                .inspect_err(|error| {
                    let text = format!("loopback: cannot start a thread: {error}");
                    Host::get().log(VIPL_LOG_ERROR, &text);
                })
                .ok();
        }
    }

    /// Looks after it no more.
    pub(crate) fn remove(&self, index: u32) {
        self.connected[index as usize / 64].fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.shared.bell().ring();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    fn run(&self) {
        WATCHING.set(true);
        let bell = self.shared.bell();
        while !self.stop.load(Ordering::Acquire) {
            let epoch = bell.arm();
            self.asleep.store(true, Ordering::SeqCst);
            // Something may have come just before the announcement.
            let awake = self.look() != Poll::Nothing
                || self.pending.load(Ordering::SeqCst) > 0
                || self.stop.load(Ordering::Acquire);
            bell.sleep(
                epoch,
                if awake {
                    0
                } else {
                    SLEEP_MAX.as_nanos() as u64
                },
            );
            self.asleep.store(false, Ordering::SeqCst);
            self.stay_awake();
        }
    }

    fn stay_awake(&self) {
        let (mut pause, mut quiet) = (PAUSE_MIN, 0);
        while quiet < QUIET_LOOKS && !self.stop.load(Ordering::Acquire) {
            let found = self.look();
            if found == Poll::Progress {
                (pause, quiet) = (PAUSE_MIN, 0);
                std::thread::yield_now();
                continue;
            }
            // Sends that wait for the partner keep the thread awake: the partner's sign may be missed.
            // So does a program at work, which may stop working at any time.
            let awake = found == Poll::Busy || self.pending.load(Ordering::Acquire) > 0;
            quiet = if awake { 0 } else { quiet + 1 };
            std::thread::park_timeout(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Some VI begins or ceases to wait for its partner.
    pub(crate) fn set_pending(&self, pending: bool) {
        if !pending {
            self.pending.fetch_sub(1, Ordering::AcqRel);
        } else if self.pending.fetch_add(1, Ordering::AcqRel) == 0
            && self.asleep.load(Ordering::SeqCst)
        {
            self.shared.bell().ring();
        }
    }

    /// Something arrived or left that completes no descriptor.
    pub(crate) fn note_arrival(&self) {
        self.arrived.store(true, Ordering::Relaxed);
    }

    /// Lets every connected VI make progress.
    fn look(&self) -> Poll {
        let mut found = Poll::Nothing;
        for (place, word) in self.connected.iter().enumerate() {
            let mut bits = word.load(Ordering::Acquire);
            while bits != 0 {
                let index = place as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                // SAFETY: the NIC is open until `stop` has returned; no operation runs on this thread.
                match unsafe { Host::get().poll(self.nic.0, index) } {
                    Poll::Nothing => {}
                    Poll::Busy if found == Poll::Progress => {}
                    result => found = result,
                }
            }
        }
        if self.arrived.swap(false, Ordering::Relaxed) {
            Poll::Progress
        } else {
            found
        }
    }
}
