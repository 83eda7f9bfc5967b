//! Version negotiation: hosts that speak another version of the protocol.
//!
//! A frame of another version is answered with a VERSIONS, at most once a second per host. A VERSIONS that arrives ends
//! no connection, since any host can send one. Either is logged once per host. Only the first [`KNOWN_MAX`] hosts are
//! served, so a host with many addresses cannot fill this side's memory, log and link.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use vipl_netio::{Address, Header};
use vipl_plugin_sdk::Host;
use vipl_plugin_sdk::abi::VIPL_LOG_WARN;
use vipl_sys::mutex::Mutex;
use vipl_wire::{Transmit, VERSION, VersionNegotiation};

use crate::carrier::Carrier;
use crate::uplink::Uplink;

/// Hosts that are remembered.
const KNOWN_MAX: usize = 64;
/// Time between two answers to one host, in nanoseconds.
const ANSWER_EVERY_NS: u64 = 1_000_000_000;

/// A host that speaks another version.
#[derive(Default)]
struct Peer {
    /// When the next answer may be sent.
    answer_at: u64,
    /// The log has a line that its frames, or that ours, are not understood.
    reported: [bool; 2],
}

/// The hosts that speak another version, by their addresses.
#[derive(Default)]
pub(crate) struct VersionPeers(Mutex<HashMap<Address, Peer, Unkeyed>>);

/// Without random keys, which a sandbox may refuse; the table is bounded.
type Unkeyed = BuildHasherDefault<DefaultHasher>;

/// What a frame causes.
#[derive(Debug, Default, PartialEq)]
struct Reaction {
    report: bool,
    answer: bool,
}

impl VersionPeers {
    /// Handles a frame of no meaning in this version, which arrived at the NIC `name`. False: it is no part of version
    /// negotiation.
    pub(crate) fn take(
        &self,
        uplink: &Uplink,
        name: &str,
        (host, payload): (Address, &[u8]),
        now: u64,
    ) -> bool {
        if let Some(refusal) = VersionNegotiation::parse(payload) {
            let (lowest, highest) = (refusal.lowest, refusal.highest);
            let ours = refusal.refused == VERSION && !(lowest..=highest).contains(&VERSION);
            if ours && self.reaction(host, true, now).report {
                let what = format!(
                    "does not understand frames of version {VERSION}: it speaks versions {lowest} to {highest}"
                );
                report(name, host, &what);
            }
            return true;
        }
        let Some(answer) = VersionNegotiation::answer(payload) else {
            return false;
        };
        let reaction = self.reaction(host, false, now);
        if reaction.report {
            let refused = answer.refused;
            let what =
                format!("sends frames of version {refused}: this side speaks version {VERSION}");
            report(name, host, &what);
        }
        if let (true, Some(header)) = (reaction.answer, uplink.medium.answer(host)) {
            send(uplink, header, &answer, now);
        }
        true
    }

    fn reaction(&self, host: Address, refused: bool, now: u64) -> Reaction {
        let mut known = self.0.lock();
        if known.len() >= KNOWN_MAX && !known.contains_key(&host) {
            return Reaction::default();
        }
        let peer = known.entry(host).or_default();
        let answer = !refused && peer.answer_at <= now;
        if answer {
            peer.answer_at = now + ANSWER_EVERY_NS;
        }
        let reported = std::mem::replace(&mut peer.reported[usize::from(refused)], true);
        Reaction {
            report: !reported,
            answer,
        }
    }
}

fn report(name: &str, host: Address, what: &str) {
    Host::get().log(VIPL_LOG_WARN, &format!("{name}: host {host} {what}"));
}

fn send(uplink: &Uplink, to: Header, answer: &VersionNegotiation, now: u64) {
    let mut carrier = Carrier::remote(&uplink.doorbell, to, uplink.mtu, None);
    let mut out = carrier.transmitter(Some(now), false);
    // If the device is full the answer is lost; the next frame of that host gets another.
    let Some(mut frame) = out.frame() else {
        return;
    };
    frame.as_mut()[..VersionNegotiation::BYTES].copy_from_slice(&answer.emit());
    out.transmit(frame, VersionNegotiation::BYTES);
    drop(out);
    uplink.doorbell.ring();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_is_reported_once_and_answered_once_a_second() {
        let peers = VersionPeers::default();
        let of = |host, refused, now| {
            peers.reaction(Address::Ethernet([2, 0, 0, 0, 0, host]), refused, now)
        };
        let both = |report, answer| Reaction { report, answer };
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
