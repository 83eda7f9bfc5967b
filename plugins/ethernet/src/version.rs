//! Version negotiation: hosts that speak another version of the protocol.
//!
//! A frame of another version is answered with a VERSIONS, at most once a second per host. A VERSIONS that arrives ends
//! no connection, since any host can send one. Either is logged once per host. Only the first [`KNOWN_MAX`] hosts are
//! served: that bounds what a host with many addresses can make this side remember, log and send.

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
    /// The log has been told that its frames, or that ours, are not understood.
    told: [bool; 2],
}

/// All of them, by their addresses.
#[derive(Default)]
pub(crate) struct VersionPeers(Mutex<HashMap<Address, Peer, Unkeyed>>);

/// Without random keys, which a sandbox may refuse; the table is bounded.
type Unkeyed = BuildHasherDefault<DefaultHasher>;

/// What is to be done about a frame.
#[derive(Debug, Default, PartialEq)]
struct Duty {
    tell: bool,
    answer: bool,
}

impl VersionPeers {
    /// Examines a frame that means nothing in this version, which arrived at the NIC `name`. True: it is part of
    /// version negotiation.
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
            if ours && self.duty(host, true, now).tell {
                let what = format!(
                    "does not understand frames of version {VERSION}: it speaks versions {lowest} to {highest}"
                );
                tell(name, host, &what);
            }
            return true;
        }
        let Some(answer) = VersionNegotiation::answer(payload) else {
            return false;
        };
        let duty = self.duty(host, false, now);
        if duty.tell {
            let refused = answer.refused;
            let what =
                format!("sends frames of version {refused}: this side speaks version {VERSION}");
            tell(name, host, &what);
        }
        if let (true, Some(header)) = (duty.answer, uplink.medium.answer(host)) {
            send(uplink, header, &answer, now);
        }
        true
    }

    fn duty(&self, host: Address, refused: bool, now: u64) -> Duty {
        let mut known = self.0.lock();
        if known.len() >= KNOWN_MAX && !known.contains_key(&host) {
            return Duty::default();
        }
        let peer = known.entry(host).or_default();
        let answer = !refused && peer.answer_at <= now;
        if answer {
            peer.answer_at = now + ANSWER_EVERY_NS;
        }
        let told = std::mem::replace(&mut peer.told[usize::from(refused)], true);
        Duty {
            tell: !told,
            answer,
        }
    }
}

fn tell(name: &str, host: Address, what: &str) {
    Host::get().log(VIPL_LOG_WARN, &format!("{name}: host {host} {what}"));
}

fn send(uplink: &Uplink, to: Header, answer: &VersionNegotiation, now: u64) {
    let mut carrier = Carrier::remote(&uplink.doorbell, to, uplink.mtu);
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
    fn each_host_is_told_of_once_and_answered_once_a_second() {
        let peers = VersionPeers::default();
        let of =
            |host, refused, now| peers.duty(Address::Ethernet([2, 0, 0, 0, 0, host]), refused, now);
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
