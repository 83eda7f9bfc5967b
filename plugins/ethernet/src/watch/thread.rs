//! The watch thread, one per NIC handle: progress while the application does not call into the library.
//!
//! It delivers incoming messages, sends acknowledgements, runs timers and transmits posted frames while the
//! application computes, or polls nothing but its own memory. It backs off while the application serves the NIC:
//!
//! | the application | this thread |
//! | --- | --- |
//! | polls | sleeps for 1 to 16 ms at a time and polls in between, but not what the application has just served |
//! | calls now and then, and leaves frames to this thread | sleeps on the socket, and takes what the application does not take at once |
//! | sleeps on the socket itself | sleeps until a deadline; the application ends that sleep when it wakes |
//! | does neither | sleeps on the socket |
//!
//! In the second row the application polls its own memory for RDMA Writes between calls. What this thread finds
//! distinguishes it from the first row: frames that it takes are credit, wake-ups without work use the credit up.
//!
//! A post or a timer that must not wait for the end of a short sleep shortens it to a millisecond.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vipl_plugin_sdk::abi::{VIPL_LOG_ERROR, VIPL_LOG_WARN};
use vipl_plugin_sdk::futex;
use vipl_plugin_sdk::thread::{ask_for_short_turns, spawn_with_signals_blocked};
use vipl_plugin_sdk::{Host, Poll, Status};

use super::SHORT_SLEEP_MIN;
use crate::device::Device;
use crate::uplink::Checks;

const MS: u64 = 1_000_000;
/// Longest of the short sleeps while the application is active, in nanoseconds.
const SHORT_SLEEP_MAX: u64 = 16 * MS;
/// Wake-ups without work after which the application counts again as one that polls.
const CREDIT: u32 = 8;
/// Pause before this thread checks again whether an active application leaves work, in nanoseconds.
const PAUSE: u64 = 20_000;
/// VIs that one poll takes the ready bits of.
const MARKED_MAX: usize = 1024;
/// Longest sleep, in nanoseconds: a misbehaving peer on this host may keep the bell from being rung. Connections have
/// earlier deadlines.
const SLEEP_MAX: u64 = 5000 * MS;
/// Interval of checks of the interface, in nanoseconds.
const CHECK_EVERY: u64 = 250 * MS;

/// Starts the thread. Without it a device would connect, and then make no progress while the application computes.
pub(crate) fn start(device: &Arc<Device>) -> Result<(), Status> {
    let watched = device.clone();
    let run = move || WatchThread::new(&watched).run();
    let thread = spawn_with_signals_blocked("vipl-watch", run).map_err(|error| {
        let text = format!("{}: cannot start a thread: {error}", device.name);
        Host::get().log(VIPL_LOG_ERROR, &text);
        Status::Resource
    })?;
    *device.watch.thread.lock() = Some(thread);
    Ok(())
}

/// Ends the thread.
pub(crate) fn stop(device: &Device) {
    device.watch.stop.store(true, Ordering::SeqCst);
    device.watch.kick(None);
    device.bell.ring();
    let thread = device.watch.thread.lock().take();
    if let Some(thread) = thread {
        thread.join();
    }
}

/// State of the thread.
struct WatchThread<'a> {
    device: &'a Device,
    /// The next short sleep, in nanoseconds.
    short: u64,
    /// Frames were waiting at the doorbell at the last poll.
    posted: bool,
    checked: u64,
    checks: Checks,
    failed: bool,
    /// Wake-ups without work that are left before the next short sleep.
    credit: u32,
}

impl WatchThread<'_> {
    fn new(device: &Device) -> WatchThread<'_> {
        WatchThread {
            device,
            short: SHORT_SLEEP_MIN,
            posted: false,
            checked: 0,
            checks: Checks::default(),
            failed: false,
            credit: 0,
        }
    }

    fn run(&mut self) {
        super::enter();
        ask_for_short_turns();
        let watch = &self.device.watch;
        while !watch.stop.load(Ordering::SeqCst) {
            let kicks = watch.kicks.load(Ordering::SeqCst);
            let found = self.poll();
            if found == Poll::Progress {
                self.short = SHORT_SLEEP_MIN;
                self.credit = CREDIT;
                continue;
            }
            if self.credit > 0 {
                self.credit -= 1;
                if found == Poll::Busy || self.posted {
                    self.sleep_shortly(kicks, PAUSE);
                } else {
                    self.sleep(kicks);
                }
                continue;
            }
            let active = watch.active.swap(false, Ordering::Relaxed);
            if found == Poll::Busy || self.posted {
                self.short = if self.posted {
                    SHORT_SLEEP_MIN
                } else {
                    self.short
                };
                self.sleep_for_application(kicks);
            } else if self.device.bell.is_led() {
                // Also if the application was active: it has gone back to sleep.
                watch.trusting.store(true, Ordering::SeqCst);
                // The application may have woken before it could see that.
                if self.device.bell.is_led() {
                    self.sleep_shortly(kicks, SLEEP_MAX);
                }
                watch.trusting.store(false, Ordering::SeqCst);
                self.short = SHORT_SLEEP_MIN;
            } else if active {
                self.sleep_for_application(kicks);
            } else {
                self.sleep(kicks);
                self.short = SHORT_SLEEP_MIN;
            }
        }
    }

    /// The next of the short sleeps, each twice as long as the one before.
    fn sleep_for_application(&mut self, kicks: u32) {
        self.sleep_shortly(kicks, self.short);
        self.short = (self.short * 2).min(SHORT_SLEEP_MAX);
    }

    /// Serves all VIs that may have something to do.
    fn poll(&mut self) -> Poll {
        let device = self.device;
        let now = Host::get().now_ns();
        self.ring();
        let mut found = Poll::Nothing;
        // To lock a VI that the application uses, or to take its frames, would cost the application more than it helps.
        if !device.schedule.is_read(now) {
            device.receive_all();
        } else if device
            .uplink
            .as_ref()
            .is_some_and(|uplink| uplink.inlet.has_frame())
        {
            found = Poll::Busy;
        }
        device.lingering.pump(now);
        device.mark_due(now);
        self.check_interface(now);
        let mut indices = [0; MARKED_MAX];
        let marked = device
            .bell
            .take_marks(device.schedule.words(), &mut indices);
        // The next poll takes the rest.
        if marked + 63 >= MARKED_MAX {
            found = Poll::Progress;
        }
        for index in &indices[..marked] {
            let polled = if device.schedule.is_served(*index, now) {
                Poll::Busy
            } else {
                device.watch.serve(*index, || {
                    // SAFETY: the NIC is open until `stop` has returned; no operation runs on this thread.
                    unsafe { device.nic().poll(*index) }
                })
            };
            match polled {
                Poll::Nothing => {}
                Poll::Progress => found = Poll::Progress,
                Poll::Busy => {
                    // The application may stop before it has polled.
                    device.bell.mark(*index);
                    found = if found == Poll::Progress {
                        found
                    } else {
                        Poll::Busy
                    };
                }
            }
        }
        if device.watch.arrived.swap(false, Ordering::Relaxed) {
            Poll::Progress
        } else {
            found
        }
    }

    /// Sends the frames that were waiting at the last poll; others may still join more recent ones.
    fn ring(&mut self) {
        let Some(doorbell) = self.device.doorbell() else {
            return;
        };
        if self.posted {
            doorbell.ring();
        }
        self.posted = doorbell.waits();
    }

    fn check_interface(&mut self, now: u64) {
        let Some(uplink) = &self.device.uplink else {
            return;
        };
        if self.failed || now < self.checked + CHECK_EVERY {
            return;
        }
        self.checked = now;
        if let Some(what) = uplink.failure(&mut self.checks, now) {
            self.failed = true;
            let text = format!("{}: {what}", self.device.name);
            Host::get().log(VIPL_LOG_WARN, &text);
            // SAFETY: the NIC is open until `stop` has returned; no operation runs on this thread.
            unsafe { self.device.nic().catastrophe() };
        }
    }

    /// The next deadline, but not before the end of a short sleep.
    fn soonest(&self, now: u64) -> u64 {
        let device = self.device;
        let soonest = device.mark_due(now).min(device.lingering.deadline());
        soonest.max(now + SHORT_SLEEP_MIN)
    }

    /// Announces the latest end of a sleep of `time` nanoseconds. Returns its length, to the next deadline at most.
    fn announce(&self, time: u64) -> u64 {
        let watch = &self.device.watch;
        let now = Host::get().now_ns();
        let mut until = now + time;
        loop {
            watch.until.store(until, Ordering::SeqCst);
            // A thread that sets a deadline from here on compares it with `until`.
            let soonest = self.soonest(now);
            if soonest >= until {
                return until - now;
            }
            until = soonest;
        }
    }

    /// Sleeps on `kicks`, unless there has been another kick. A deadline shortens the sleep to the shortest, and does not
    /// end it: while the application is active there is a new deadline every few messages.
    fn sleep_shortly(&mut self, kicks: u32, time: u64) {
        let watch = &self.device.watch;
        watch.hurried.store(false, Ordering::Relaxed);
        let time = self.announce(time);
        futex::wait(&watch.kicks, kicks, time);
        watch.until.store(0, Ordering::SeqCst);
        if time > SHORT_SLEEP_MIN && watch.hurried.load(Ordering::Relaxed) {
            self.short = SHORT_SLEEP_MIN;
            let kicks = watch.kicks.load(Ordering::SeqCst);
            if !watch.stop.load(Ordering::SeqCst) {
                self.sleep_shortly(kicks, SHORT_SLEEP_MIN);
            }
        }
    }

    /// Sleeps on the bell: a frame, a peer on this host or a kick ends it.
    fn sleep(&mut self, kicks: u32) {
        let (device, watch) = (self.device, &self.device.watch);
        watch.on_bell.store(true, Ordering::SeqCst);
        let epoch = device.bell.arm();
        // Something may have arrived just before that.
        let found = self.poll();
        if found == Poll::Progress {
            self.credit = CREDIT;
        }
        let awake = found != Poll::Nothing || self.posted;
        let time = self.announce(SLEEP_MAX);
        let awake = awake
            || watch.kicks.load(Ordering::SeqCst) != kicks
            || watch.stop.load(Ordering::SeqCst);
        if !awake {
            device.bell.sleep(epoch, time, device.sockets());
        }
        device.bell.disarm();
        watch.on_bell.store(false, Ordering::SeqCst);
        watch.until.store(0, Ordering::SeqCst);
    }
}
