//! Hosts that speak another version of the protocol.
//!
//! A frame of another version is answered with a FOREIGN, at most once a second for each host, and a FOREIGN
//! that arrives ends nothing, since anybody can send one. Of each host the log gets one line for either. The
//! first hosts are remembered; of others, of which there cannot be many but by malice, nothing is said.

use std::collections::HashMap;
use std::sync::Mutex;

use vipl_plugin_sdk::Host;
use vipl_plugin_sdk::abi::VIPL_LOG_WARN;
use vipl_wire::{Foreign, Link, VERSION};

use crate::carrier::Carrier;
use crate::nic::Core;

/// Hosts that are remembered.
const KNOWN_MAX: usize = 64;
/// Time between two answers to one host, in nanoseconds.
const ANSWER_EVERY_NS: u64 = 1_000_000_000;

/// One of them.
#[derive(Default)]
struct Stranger {
    /// When the next answer may be given.
    answer_at: u64,
    /// The log has been told that its frames, or that ours, are not understood.
    told: [bool; 2],
}

/// Those of one NIC, by the addresses of their interfaces.
#[derive(Default)]
pub(crate) struct Strangers(Mutex<HashMap<[u8; 6], Stranger>>);

/// What is to be done about a frame.
#[derive(Debug, Default, PartialEq)]
struct Duty {
    tell: bool,
    answer: bool,
}

impl Strangers {
    /// Looks at a frame that means nothing to this version. True: it is the matter of this module.
    pub(crate) fn take(&self, core: &Core, frame: &[u8]) -> bool {
        let Some((host, payload)) = vipl_packet::split(frame) else {
            return false;
        };
        let now = Host::get().now_ns();
        if let Some(refusal) = Foreign::parse(payload) {
            let (lowest, highest) = (refusal.lowest, refusal.highest);
            let ours = refusal.refused == VERSION && !(lowest..=highest).contains(&VERSION);
            if ours && self.duty(host, true, now).tell {
                tell(
                    core,
                    host,
                    &format!(
                        "does not understand frames of version {VERSION}: it speaks versions {lowest} to {highest}"
                    ),
                );
            }
            return true;
        }
        let Some(answer) = Foreign::answer(payload) else {
            return false;
        };
        let duty = self.duty(host, false, now);
        if duty.tell {
            let refused = answer.refused;
            tell(
                core,
                host,
                &format!("sends frames of version {refused}: this side speaks version {VERSION}"),
            );
        }
        // A group has sent no frame.
        if duty.answer && host[0] & 1 == 0 {
            send(core, host, &answer, now);
        }
        true
    }

    fn duty(&self, host: [u8; 6], refused: bool, now: u64) -> Duty {
        let mut known = self.0.lock().unwrap_or_else(|broken| broken.into_inner());
        if known.len() >= KNOWN_MAX && !known.contains_key(&host) {
            return Duty::default();
        }
        let stranger = known.entry(host).or_default();
        let answer = !refused && stranger.answer_at <= now;
        if answer {
            stranger.answer_at = now + ANSWER_EVERY_NS;
        }
        let told = std::mem::replace(&mut stranger.told[usize::from(refused)], true);
        Duty {
            tell: !told,
            answer,
        }
    }
}

fn tell(core: &Core, host: [u8; 6], what: &str) {
    let host = host.map(|byte| format!("{byte:02x}")).join(":");
    Host::get().log(VIPL_LOG_WARN, &format!("{}: host {host} {what}", core.name));
}

fn send(core: &Core, to: [u8; 6], answer: &Foreign, now: u64) {
    let mut carrier = Carrier::away(to, core.address);
    let mut line = carrier.line(core, core.mtu, now);
    // A full device loses it: the next frame of that host gets another.
    let Some(mut frame) = line.frame() else {
        return;
    };
    frame.as_mut()[..Foreign::BYTES].copy_from_slice(&answer.emit());
    line.transmit(frame, Foreign::BYTES);
    if let Some(doorbell) = core.doorbell() {
        doorbell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_is_told_of_once_and_answered_once_a_second() {
        let strangers = Strangers::default();
        let of = |host, refused, now| strangers.duty([2, 0, 0, 0, 0, host], refused, now);
        let both = |tell, answer| Duty { tell, answer };
        assert_eq!(of(1, false, 5), both(true, true));
        assert_eq!(of(1, false, 6), both(false, false));
        assert_eq!(of(1, true, 6), both(true, false), "the other matter");
        assert_eq!(of(1, true, 7), both(false, false));
        assert_eq!(of(1, false, 5 + ANSWER_EVERY_NS), both(false, true));
        for host in 2..=KNOWN_MAX as u8 {
            assert_eq!(of(host, false, 5), both(true, true));
        }
        assert_eq!(of(200, false, 5), both(false, false), "one too many");
        assert_eq!(of(1, false, 5 + 2 * ANSWER_EVERY_NS), both(false, true));
    }
}
