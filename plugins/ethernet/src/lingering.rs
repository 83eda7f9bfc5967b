//! Lingering close: connections that have ended on this side and not yet at the peer.
//!
//! The CLOSE of a connection may be lost like any other frame, so it is repeated until the peer has confirmed it, or
//! for about two seconds. The VI does not wait: it may be connected again, or destroyed, meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vipl_netio::Address;
use vipl_sys::mutex::Mutex;
use vipl_wire::Closing;

use crate::carrier::Carrier;
use crate::schedule::NEVER;
use crate::uplink::Uplink;

/// Frames from a peer on this host that one call of [`Lingering::pump`] takes.
const POLL_FRAMES: usize = 64;

/// A connection that has ended on this side.
struct Ended {
    closing: Closing,
    carrier: Carrier,
}

/// The lingering connections of one NIC.
pub(crate) struct Lingering {
    list: Mutex<Vec<Ended>>,
    /// The list is not empty; read without the lock.
    any: AtomicBool,
    deadline: AtomicU64,
}

impl Default for Lingering {
    fn default() -> Lingering {
        Lingering {
            list: Mutex::default(),
            any: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
        }
    }
}

impl Lingering {
    /// Takes over the close of a connection. Returns when [`Lingering::pump`] must be called for it.
    pub(crate) fn add(&self, closing: Closing, carrier: Carrier) -> u64 {
        let deadline = closing.deadline();
        if !closing.is_done() {
            self.list.lock().push(Ended { closing, carrier });
            self.any.store(true, Ordering::SeqCst);
            self.deadline.fetch_min(deadline, Ordering::SeqCst);
        }
        deadline
    }

    /// Handles a frame for no open connection. False: it is for none of these, either.
    pub(crate) fn take(&self, uplink: &Uplink, from: Address, payload: &[u8], now: u64) -> bool {
        let mut known = false;
        if let Some(address) = vipl_wire::address(payload) {
            let mut list = self.list.lock();
            for ended in list.iter_mut().filter(|it| it.closing.vi() == address.vi) {
                known = true;
                let mut out = ended.carrier.transmitter(Some(now), false);
                ended.closing.received(payload, &mut out);
            }
        }
        // If this side has forgotten the connection, the peer repeats its CLOSE until it is answered.
        known || {
            let Some(header) = uplink.medium.answer(from) else {
                return false;
            };
            let mut carrier = Carrier::remote(&uplink.doorbell, header, uplink.mtu, None);
            let mut out = carrier.transmitter(Some(now), false);
            Closing::answer_stray(payload, &mut out)
        }
    }

    /// Repeats the CLOSEs that are due and drops the connections that are done. Returns when to call it again.
    pub(crate) fn pump(&self, now: u64) -> u64 {
        if !self.any.load(Ordering::SeqCst) {
            return NEVER;
        }
        let mut list = self.list.lock();
        let mut frame = Vec::new();
        for Ended { closing, carrier } in list.iter_mut() {
            for _ in 0..POLL_FRAMES {
                match carrier.take(&mut frame) {
                    Ok(true) => {
                        closing.received(&frame, &mut carrier.transmitter(Some(now), false));
                    }
                    _ => break,
                }
            }
            if closing.deadline() <= now {
                closing.timeout(now, &mut carrier.transmitter(Some(now), false));
            }
            carrier.finish(now);
        }
        list.retain(|ended| !ended.closing.is_done());
        let next = |ended: &Ended| {
            let due = ended.carrier.deadline().unwrap_or(NEVER);
            ended.closing.deadline().min(due)
        };
        let deadline = list.iter().map(next).min().unwrap_or(NEVER);
        self.deadline.store(deadline, Ordering::SeqCst);
        self.any.store(!list.is_empty(), Ordering::SeqCst);
        deadline
    }

    /// Whether no connection lingers.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::SeqCst)
    }

    /// When [`Lingering::pump`] must be called.
    pub(crate) fn deadline(&self) -> u64 {
        self.deadline.load(Ordering::SeqCst)
    }
}
