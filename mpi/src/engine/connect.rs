//! The handshake. VIPL carries no data with a connection request, so every request is accepted by a VI, and what
//! libfabric's programs say at connecting travels in the first messages.
//!
//! ```text
//!   fi_connect ── VipConnectRequest ─────────▶ VipConnectWait, VipConnectAccept
//!              ── Hello ─────────────────────▶ FI_CONNREQ
//!   FI_CONNECTED ◀──────────────────── Accept ── fi_accept, FI_CONNECTED
//!   error FI_ECONNREFUSED ◀─────────── Reject ── fi_reject
//! ```

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Incoming {
    pub passive: Id,
}

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
        } else {
            shared.abandoned.push(self.id);
        }
    }
}
