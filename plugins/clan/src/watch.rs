//! The thread that waits for the device's interrupts: errors and ends of connections, which must be reported even if
//! the application does not poll. It also detects the end of the device.
//!
//! Nothing else needs it: the device writes completions into the application's memory, and waiting threads sleep on the
//! bell.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vipl_clan_proto::channel;
use vipl_clan_proto::nic::{VIS_MAX, failed};
use vipl_plugin_sdk::abi::{VIPL_LOG_ERROR, VIPL_LOG_WARN};
use vipl_plugin_sdk::{Host, NicHandle, Poll};
use vipl_sys::clock;
use vipl_sys::fd::{Kept, made};
use vipl_sys::thread::{Thread, spawn_with_signals_blocked};

use crate::card::Card;

/// VIs that are taken at a time.
const NAMED_MAX: usize = 1024;
/// When to poll again a VI that the application is using.
const AGAIN: Duration = Duration::from_millis(1);
/// How often to check whether the application has closed the descriptors of the thread.
const CHECK_EVERY: Duration = Duration::from_secs(4);

/// The thread.
pub(crate) struct Watch {
    stop: Kept,
    stopping: Arc<AtomicBool>,
    thread: Option<Thread>,
}

struct Watcher {
    nic: NicHandle,
    card: Arc<Card>,
    interrupts: Kept,
    stop: Kept,
    stopping: Arc<AtomicBool>,
    /// VIs to poll.
    open: BTreeSet<u32>,
    /// The failure of the interface has been reported.
    failed: bool,
}

impl Watch {
    pub(crate) fn start(nic: NicHandle, card: Arc<Card>, interrupts: OwnedFd) -> io::Result<Watch> {
        // SAFETY: no pointers; the descriptor is ours.
        let stop = unsafe { made(libc::eventfd(0, libc::EFD_CLOEXEC)) }?;
        let stopping = Arc::new(AtomicBool::new(false));
        let mut watcher = Watcher {
            nic,
            card,
            interrupts: Kept::new(interrupts),
            stop: Kept::new(stop.try_clone()?),
            stopping: stopping.clone(),
            open: BTreeSet::new(),
            failed: false,
        };
        let thread = spawn_with_signals_blocked("vipl-watch", move || watcher.run())?;
        Ok(Watch {
            stop: Kept::new(stop),
            stopping,
            thread: Some(thread),
        })
    }

    /// Ends the thread.
    pub(crate) fn stop(&mut self) {
        let one = 1u64;
        self.stopping.store(true, Ordering::SeqCst);
        if let Ok(stop) = self.stop.fd() {
            // SAFETY: eight valid bytes.
            unsafe { vipl_sys::uncancelled::write(stop, (&raw const one).cast(), 8) };
        }
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl Watcher {
    fn run(&mut self) {
        loop {
            let time = if self.open.is_empty() {
                CHECK_EVERY
            } else {
                AGAIN
            };
            let [stop, interrupt, end] = self.wait(time);
            if stop || self.stopping.load(Ordering::SeqCst) {
                return;
            }
            if end {
                break;
            }
            if interrupt {
                self.drain();
                self.check_interface();
            }
            self.look();
        }
        self.report_end();
    }

    /// Waits for the descriptors: stop, interrupts, the end of the device.
    fn wait(&self, time: Duration) -> [bool; 3] {
        let on = |fd: RawFd, events: i16| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let (Ok(stop), Ok(interrupts), Ok(device)) = (
            self.stop.fd(),
            self.interrupts.fd(),
            self.card.socket().fd(),
        ) else {
            let text = "clan: the program has closed descriptors of the NIC, which has failed";
            Host::get().log(VIPL_LOG_ERROR, text);
            return [false, false, true];
        };
        // Only the end of the device's socket matters here: other threads take the replies.
        let mut polls = [
            on(stop, libc::POLLIN),
            on(interrupts, libc::POLLIN),
            on(device, 0),
        ];
        clock::poll(&mut polls, Some(time));
        let gone = libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
        [
            polls[0].revents != 0,
            polls[1].revents & libc::POLLIN != 0,
            (polls[1].revents | polls[2].revents) & gone != 0,
        ]
    }

    /// Receives all interrupts.
    fn drain(&self) {
        let mut packet = [0; 8];
        let Ok(socket) = self.interrupts.fd() else {
            return;
        };
        while let Ok((1.., _)) = channel::receive(socket, &mut packet) {}
    }

    /// Polls the VIs that the device has named.
    fn look(&mut self) {
        let mut named = [0; NAMED_MAX];
        for _ in 0..VIS_MAX as usize / NAMED_MAX {
            let count = self.card.nic().notices.take(usize::MAX, &mut named);
            self.open.extend(&named[..count]);
            if count + 63 < NAMED_MAX {
                break;
            }
        }
        let nic = self.nic;
        // SAFETY: the NIC is open until `stop` has returned; no operation runs on this thread.
        self.open
            .retain(|index| unsafe { nic.poll(*index) } == Poll::Busy);
    }

    fn check_interface(&mut self) {
        let why = self.card.nic().failed.load(Ordering::Acquire);
        if self.failed || why == 0 {
            return;
        }
        self.failed = true;
        if why == failed::PORT {
            Host::get().log(VIPL_LOG_WARN, "clan: the interface has become a port");
        } else {
            Host::get().log(VIPL_LOG_WARN, "clan: the interface has been removed");
        }
        // SAFETY: as above.
        unsafe { self.nic.catastrophe() };
    }

    /// The device has exited: all VIs fail.
    fn report_end(&self) {
        let text = "clan: the device has ended; its connections are lost, and the next VipOpenNic \
                    starts another";
        Host::get().log(VIPL_LOG_ERROR, text);
        // SAFETY: as above.
        unsafe { self.nic.catastrophe() };
    }
}
