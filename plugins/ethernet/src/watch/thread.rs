//! The watch thread, one per NIC handle: progress while the application does not call into the library.
//!
//! It delivers incoming messages, sends acknowledgements, runs timers and transmits posted frames while the
//! application computes, or polls nothing but its own memory. It backs off while the application serves the NIC:
//!
//! | the application | this thread |
//! | --- | --- |
//! | polls | naps, 1 to 16 ms, and looks in between, but not at what the application has served a moment ago |
//! | makes a call now and then, and leaves frames to this thread | sleeps on the socket, and takes what the application does not take at once |
//! | sleeps on the socket itself | sleeps until a deadline; the application ends that when it wakes |
//! | does neither | sleeps on the socket |
//!
//! The second row is an application that polls its own memory for RDMA Writes between calls. It is told from the first
//! by what this thread finds: frames that it takes give it credit, wake-ups without work use the credit up.
//!
//! A post or a timer that must not wait for the end of a nap shortens it to a millisecond.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vipl_plugin_sdk::abi::{VIPL_LOG_ERROR, VIPL_LOG_WARN};
use vipl_plugin_sdk::futex;
use vipl_plugin_sdk::thread::{ask_for_short_turns, spawn_with_signals_blocked};
use vipl_plugin_sdk::{Host, Poll, Status};

use super::NAP_MIN;
use crate::VIS_MAX;
use crate::device::Device;
use crate::uplink::Checks;

const MS: u64 = 1_000_000;
/// Longest nap while the application is active, in nanoseconds.
const NAP_MAX: u64 = 16 * MS;
/// Wake-ups without work after which the application is again taken for one that polls.
const CREDIT: u32 = 8;
/// Pause before the work of an application that is active just now is looked at again, in nanoseconds.
const PAUSE: u64 = 20_000;
/// Longest sleep: a misbehaving peer may keep the bell from being rung.
const SLEEP_MAX: u64 = 500 * MS;
/// How often the interface is checked for removal.
const CHECK_EVERY: u64 = 250 * MS;

/// Starts the thread. A device without it would connect and then move nothing for an application that computes.
pub(crate) fn start(device: &Arc<Device>) -> Result<(), Status> {
    let watched = device.clone();
    let run = move || WatchThread::new(&watched).run();
    let thread = spawn_with_signals_blocked("vipl-watch", run).map_err(|error| {
        let text = format!("{}: cannot start a thread: {error}", device.name);
        Host::get().log(VIPL_LOG_ERROR, &text);
        Status::Resource
    })?;
    *device.watch.thread() = Some(thread);
    Ok(())
}

/// Ends the thread.
pub(crate) fn stop(device: &Device) {
    device.watch.stop.store(true, Ordering::SeqCst);
    device.watch.kick(None);
    device.bell.ring();
    let thread = device.watch.thread().take();
    if let Some(thread) = thread {
        thread.join();
    }
}

/// State of the thread.
struct WatchThread<'a> {
    device: &'a Device,
    nap: u64,
    /// Frames were waiting at the doorbell at the last look.
    posted: bool,
    checked: u64,
    checks: Checks,
    failed: bool,
    /// Wake-ups without work that are left before the thread naps.
    credit: u32,
}

impl WatchThread<'_> {
    fn new(device: &Device) -> WatchThread<'_> {
        WatchThread {
            device,
            nap: NAP_MIN,
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
            } else if self.device.bell.is_led() {
                watch.trusting.store(true, Ordering::SeqCst);
                // The application may have woken before it could see that.
                if self.device.bell.is_led() {
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

    /// Serves all VIs that may have something to do.
    fn look(&mut self) -> Poll {
        let device = self.device;
        let now = Host::get().now_ns();
        self.ring();
        let mut found = Poll::Nothing;
        // Locking a VI that the application uses, or taking frames from it, would cost the application more than it
        // helps.
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
        let mut indices = [0; VIS_MAX as usize];
        let marked = device.bell.take_marks(&mut indices);
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
                    // The application may stop without having looked.
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

    /// Sends what was waiting at the last look; more recent frames may still be joined by others.
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
        if let Some(what) = uplink.gone(&mut self.checks, now) {
            self.failed = true;
            let text = format!("{}: {what}", self.device.name);
            Host::get().log(VIPL_LOG_WARN, &text);
            // SAFETY: the NIC is open until `stop` has returned; no operation runs on this thread.
            unsafe { self.device.nic().catastrophe() };
        }
    }

    /// The next deadline, but not before the end of a nap.
    fn soonest(&self, now: u64) -> u64 {
        let device = self.device;
        let soonest = device.mark_due(now).min(device.lingering.deadline());
        soonest.max(now + NAP_MIN)
    }

    /// Announces until when this thread sleeps at the latest. Returns for how long.
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

    /// Naps, unless there has been another kick. A deadline shortens a long nap to the shortest, and does not end it:
    /// while the application is active there is a new one every few messages.
    fn nap(&mut self, kicks: u32, time: u64) {
        let watch = &self.device.watch;
        watch.hurried.store(false, Ordering::Relaxed);
        let time = self.announce(time);
        futex::wait(&watch.kicks, kicks, time);
        watch.until.store(0, Ordering::SeqCst);
        if time > NAP_MIN && watch.hurried.load(Ordering::Relaxed) {
            self.nap = NAP_MIN;
            let kicks = watch.kicks.load(Ordering::SeqCst);
            if !watch.stop.load(Ordering::SeqCst) {
                self.nap(kicks, NAP_MIN);
            }
        }
    }

    /// Sleeps on the bell: a frame, a peer on this host or a kick ends it.
    fn sleep(&mut self, kicks: u32) {
        let (device, watch) = (self.device, &self.device.watch);
        watch.on_bell.store(true, Ordering::SeqCst);
        let epoch = device.bell.arm();
        // Something may have arrived just before that.
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
            device.bell.sleep(epoch, time, device.socket());
        }
        device.bell.disarm();
        watch.on_bell.store(false, Ordering::SeqCst);
        watch.until.store(0, Ordering::SeqCst);
    }
}
