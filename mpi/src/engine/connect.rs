//! The handshake. VIPL carries no data with a connection request, so every request is accepted by a VI, and what
//! libfabric's programs say at connecting travels in the first messages.
//!
//! ```text
//!   fi_connect ── VipConnectRequest ─────────▶ VipConnectWait, VipConnectAccept
//!              ── Hello ─────────────────────▶ FI_CONNREQ
//!   FI_CONNECTED ◀──────────────────── Accept ── fi_accept, FI_CONNECTED
//!   error FI_ECONNREFUSED ◀─────────── Reject ── fi_reject
//! ```

use vipl_sys::clock::Instant;

use super::Shared;
use super::endpoint::{Endpoint, State};
use super::operation::Sent;
use super::queues::{Event, Opaque};
use crate::address::Address;
use crate::attributes::Offer;
use crate::fi::{FI_CONNECTED, FI_CONNREQ, fid};
use crate::object::ConnectionRequest;
use crate::packet::{Handshake, Kind};
use crate::slab::Id;

/// A listener.
pub(crate) struct Passive {
    pub address: Address,
    pub events: Option<Id>,
    pub fid: Opaque<fid>,
    pub offer: Offer,
}

/// Where a connection request came in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub passive: Id,
    /// When the peer was given its VI, or its rejection: since then it is the peer's turn.
    pub since: Instant,
}

/// Attempts of [`crate::settings::Settings::connect_timeout`] before a call fails.
const ATTEMPTS: u32 = 2;

impl Shared {
    /// Whether to try an address. After attempts that have failed the next call does as well, once: `ofi_rxm` takes a refused
    /// connection for a reason to ask again, and a job whose ranks cannot reach each other would wait for ever.
    pub(crate) fn may_try(&mut self, peer: Address) -> bool {
        let failed = self.failures.get(&peer.to_bytes()).copied().unwrap_or(0);
        if failed >= ATTEMPTS {
            self.failures.remove(&peer.to_bytes());
        }
        failed < ATTEMPTS
    }

    /// A connection has come about.
    pub(crate) fn reached(&mut self, peer: Address) {
        self.failures.remove(&peer.to_bytes());
    }

    /// An attempt has failed, with this code of VipConnectRequest.
    pub(crate) fn not_reached(&mut self, peer: Address, code: i32) {
        if self.failures.len() < FAILURES {
            *self.failures.entry(peer.to_bytes()).or_default() += 1;
        }
        let device = self.settings.device.as_str();
        let local = ["via_lo", "/dev/via_lo", "loopback", "VINIC"]
            .iter()
            .any(|name| device.starts_with(name));
        let hint = match local {
            true => {
                "; this device does not leave its host: for several hosts set FI_VIPL_DEVICE, for example to ip:"
            }
            false => "",
        };
        let time = self.settings.connect_timeout.as_millis();
        crate::libfabric::say(&format!(
            "no connection to {} over {device} in {time} ms, FI_VIPL_CONNECT_TIMEOUT (VipConnectRequest: {code}){hint}",
            peer.to_ip()
        ));
    }
}

/// Addresses that are remembered.
const FAILURES: usize = 4096;

impl Endpoint {
    fn say(&mut self, kind: Kind, data: &[u8], shared: &Shared) {
        let handshake = Handshake {
            chunk: self.block.chunk() as u32,
            address: self.local,
            data: data.to_vec(),
        };
        self.post_control(kind, &handshake.to_bytes(), Sent::Nothing, shared);
    }

    /// The VI is connected: says who we are.
    pub(crate) fn hello(&mut self, data: &[u8], shared: &Shared) {
        if self.state == State::Asking {
            self.say(Kind::Hello, data, shared);
        }
    }

    /// The peer's part of the handshake. Returns whether it makes sense.
    pub(super) fn handshake(
        &mut self,
        kind: Kind,
        handshake: Handshake,
        shared: &mut Shared,
    ) -> bool {
        match (kind, self.state) {
            (Kind::Hello, State::Idle) => {
                let Some(incoming) = self.incoming else {
                    return false;
                };
                self.meet(&handshake);
                self.state = State::Asked;
                self.announce(incoming, handshake, shared);
            }
            (Kind::Accept, State::Asking) => {
                self.meet(&handshake);
                self.state = State::Connected;
                let event = self.event(FI_CONNECTED, 0, handshake.data);
                shared.event(self.events, event);
            }
            (Kind::Reject, State::Asking) => {
                self.state = State::Ended;
                let event = self.event(0, libc::ECONNREFUSED, handshake.data);
                shared.event(self.events, event);
            }
            _ => return false,
        }
        true
    }

    fn meet(&mut self, handshake: &Handshake) {
        self.peer = Some(handshake.address);
        self.peer_chunk = handshake.chunk as usize;
    }

    /// Tells the program of the request.
    fn announce(&mut self, incoming: Incoming, handshake: Handshake, shared: &mut Shared) {
        let Some(passive) = shared.passives.get(incoming.passive) else {
            // The listener has closed meanwhile.
            self.state = State::Idle;
            shared.abandoned.push(self.id);
            return;
        };
        let info = passive
            .offer
            .to_info(Some(passive.address), Some(handshake.address), true);
        // SAFETY: just made, and nobody else has it.
        unsafe { (*info).handle = ConnectionRequest::give(self.id) };
        let (events, event) = (
            passive.events,
            Event {
                kind: FI_CONNREQ,
                fid: passive.fid,
                info: Opaque(info),
                data: handshake.data,
                error: 0,
            },
        );
        shared.event(events, event);
    }

    /// The program accepts. An error if the peer has gone.
    pub(crate) fn accept(&mut self, data: &[u8], shared: &mut Shared) -> Result<(), i32> {
        match self.state {
            State::Asked => {}
            State::Ended => return Err(libc::ECONNABORTED),
            _ => return Err(libc::EINVAL),
        }
        self.state = State::Connected;
        self.say(Kind::Accept, data, shared);
        let event = self.event(FI_CONNECTED, 0, Vec::new());
        shared.event(self.events, event);
        self.pump(shared);
        Ok(())
    }

    /// The program rejects. The endpoint is nobody's now; it goes when the peer has disconnected.
    pub(crate) fn reject(&mut self, data: &[u8], shared: &mut Shared) {
        if self.state == State::Asked {
            self.say(Kind::Reject, data, shared);
            self.state = State::Idle;
            if let Some(incoming) = &mut self.incoming {
                incoming.since = Instant::now();
            }
        } else {
            shared.abandoned.push(self.id);
        }
    }
}
