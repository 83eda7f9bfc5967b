//! Connections that have ended on this side and not yet at the partner.
//!
//! The last word of a connection may get lost like any other frame, so it is repeated until the partner
//! has confirmed it, or for about two seconds. The VI does not wait for that: it may be connected anew, or
//! destroyed, while its old connection says farewell from here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use vipl_plugin_sdk::Host;
use vipl_wire::Closing;

use crate::carrier::Carrier;
use crate::nic::{Core, NEVER};

/// How long VipCloseNic waits for confirmations: six repetitions.
const FINISH_TIME: Duration = Duration::from_millis(320);
/// Pause between two looks meanwhile.
const PAUSE: Duration = Duration::from_micros(200);
/// Frames from a partner on this host that one look takes.
const LOOK_FRAMES: usize = 64;

/// One of them.
struct Farewell {
    closing: Closing,
    carrier: Carrier,
    mtu: usize,
}

/// Those of one NIC.
pub(crate) struct Farewells {
    list: Mutex<Vec<Farewell>>,
    /// There are some; read without the lock.
    any: AtomicBool,
    deadline: AtomicU64,
}

impl Default for Farewells {
    fn default() -> Farewells {
        Farewells {
            list: Mutex::default(),
            any: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
        }
    }
}

impl Farewells {
    fn lock(&self) -> MutexGuard<'_, Vec<Farewell>> {
        self.list
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
    }

    /// Takes over what is left of a connection.
    pub(crate) fn add(&self, core: &Core, closing: Closing, carrier: Carrier, mtu: usize) {
        if closing.is_done() {
            return;
        }
        let deadline = closing.deadline();
        self.lock().push(Farewell {
            closing,
            carrier,
            mtu,
        });
        self.any.store(true, Ordering::SeqCst);
        self.deadline.fetch_min(deadline, Ordering::SeqCst);
        core.watch.expect(&core.bell, deadline);
    }

    /// A frame that no connection wants. False: nobody knows it here either.
    pub(crate) fn take(&self, core: &Core, frame: &[u8]) -> bool {
        let Some((sender, payload)) = vipl_packet::split(frame) else {
            return false;
        };
        let now = Host::get().now_ns();
        let mut known = false;
        if let Some(address) = vipl_wire::address(payload) {
            let mut list = self.lock();
            for farewell in list
                .iter_mut()
                .filter(|known| known.closing.vi() == address.vi)
            {
                known = true;
                let mut line = farewell.carrier.line(core, farewell.mtu, now);
                farewell.closing.received(payload, &mut line);
            }
        }
        // The partner repeats its own farewell to one who has forgotten it.
        known || {
            let mut carrier = Carrier::away(sender, core.address);
            Closing::answer_stray(payload, &mut carrier.line(core, core.mtu, now))
        }
    }

    /// Repeats what is due, and forgets what is done. Gives the time of the next.
    pub(crate) fn pump(&self, core: &Core, now: u64) -> u64 {
        if !self.any.load(Ordering::SeqCst) {
            return NEVER;
        }
        let mut list = self.lock();
        let mut frame = Vec::new();
        for Farewell {
            closing,
            carrier,
            mtu,
        } in list.iter_mut()
        {
            for _ in 0..LOOK_FRAMES {
                match carrier.take(&mut frame) {
                    Ok(true) => closing.received(&frame, &mut carrier.line(core, *mtu, now)),
                    _ => break,
                }
            }
            if closing.deadline() <= now {
                closing.timeout(now, &mut carrier.line(core, *mtu, now));
            }
            carrier.finish(core.doorbell(), now);
        }
        list.retain(|farewell| !farewell.closing.is_done());
        let next = |farewell: &Farewell| {
            let late = farewell.carrier.deadline().unwrap_or(NEVER);
            farewell.closing.deadline().min(late)
        };
        let deadline = list.iter().map(next).min().unwrap_or(NEVER);
        self.deadline.store(deadline, Ordering::SeqCst);
        self.any.store(!list.is_empty(), Ordering::SeqCst);
        deadline
    }

    /// The NIC closes: a moment for the partners to confirm.
    pub(crate) fn finish(&self, core: &Core) {
        let end = Instant::now() + FINISH_TIME;
        loop {
            core.receive_all();
            self.pump(core, Host::get().now_ns());
            if let Some(doorbell) = core.doorbell() {
                doorbell.ring();
            }
            if !self.any.load(Ordering::SeqCst) || Instant::now() >= end {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// When `pump` wants to be called.
    pub(crate) fn deadline(&self) -> u64 {
        self.deadline.load(Ordering::SeqCst)
    }
}
