//! An endpoint's part in establishing the connection.

use vipl_sys::clock::Instant;

use super::{Endpoint, State};
use crate::address::Address;
use crate::engine::operation::Sent;
use crate::engine::queues::{Event, Opaque};
use crate::engine::{Incoming, Shared};
use crate::fi::{FI_CONNECTED, FI_CONNREQ, FI_EOPBADSTATE};
use crate::object::ConnectionRequest;
use crate::packet::{Handshake, Kind};
use crate::slab::Id;

impl Endpoint {
    /// The program connects. The caller asks the peer, with the VI of this endpoint.
    ///
    /// # Errors
    /// FI_EOPBADSTATE: it is connected, or was.
    pub(crate) fn ask(&mut self, peer: Address) -> Result<(), i32> {
        if self.state != State::Idle {
            return Err(FI_EOPBADSTATE);
        }
        self.state = State::Asking;
        self.peer = Some(peer);
        Ok(())
    }

    /// Whether the program still wants the connection that it asked for.
    pub(crate) fn is_asking(&self) -> bool {
        self.state == State::Asking
    }

    /// The program no longer wants it.
    pub(crate) fn stop_asking(&mut self) {
        if self.state == State::Asking {
            self.state = State::Ended;
        }
    }

    /// The peer was not reached.
    pub(crate) fn unreachable(&mut self, error: i32, shared: &mut Shared) {
        if self.state == State::Asking {
            self.state = State::Ended;
            self.flush(shared);
            self.reports.event(0, error, Vec::new(), shared);
        }
    }

    /// The VI is connected: introduces this endpoint to the peer.
    pub(crate) fn hello(&mut self, data: &[u8]) {
        if self.state == State::Asking {
            self.send_handshake(Kind::Hello, data);
        }
    }

    /// The request is for an endpoint for messages with tags, which accepts all.
    fn join(&mut self, owner: Id, shared: &mut Shared) {
        self.incoming = None;
        self.own(owner, shared);
        self.state = State::Connected;
        self.reached = true;
        self.send_handshake(Kind::Accept, &[]);
        if let (Some(rdm), Some(peer)) = (shared.rdms.get(owner), self.peer) {
            rdm.joined(self.id, peer);
        }
    }

    fn send_handshake(&mut self, kind: Kind, data: &[u8]) {
        let handshake = Handshake {
            chunk: self.vi.chunk() as u32,
            tagged: self.tagged.is_some(),
            address: self.local,
            data: data.to_vec(),
        };
        self.vi
            .send_control(kind, &handshake.to_bytes(), Sent::Nothing);
    }

    /// The peer's part of the handshake; false if it violates the protocol.
    pub(super) fn handshake(
        &mut self,
        kind: Kind,
        handshake: Handshake,
        shared: &mut Shared,
    ) -> bool {
        match (kind, self.state, self.incoming) {
            (Kind::Hello, State::Idle, Some(incoming)) => {
                self.meet(&handshake);
                let passive = shared.passives.get(incoming.passive);
                let owner = passive.and_then(|passive| passive.tagged);
                if handshake.tagged != owner.is_some() {
                    self.state = State::Asked;
                    self.reject(&[], shared);
                    return true;
                }
                if let Some(owner) = owner {
                    self.join(owner, shared);
                    return true;
                }
                self.state = State::Asked;
                self.announce(incoming, handshake, shared);
            }
            (Kind::Accept, State::Asking, _) => {
                self.meet(&handshake);
                self.state = State::Connected;
                self.reached = true;
                self.reports.event(FI_CONNECTED, 0, handshake.data, shared);
            }
            (Kind::Reject, State::Asking, _) => {
                self.state = State::Ended;
                let data = handshake.data;
                self.reports.event(0, libc::ECONNREFUSED, data, shared);
            }
            _ => return false,
        }
        true
    }

    fn meet(&mut self, handshake: &Handshake) {
        self.peer = Some(handshake.address);
        self.vi.set_peer_chunk(handshake.chunk as usize);
    }

    /// Reports the request to the program.
    fn announce(&mut self, incoming: Incoming, handshake: Handshake, shared: &mut Shared) {
        let Some(passive) = shared.passives.get(incoming.passive) else {
            // The listener has closed meanwhile.
            self.state = State::Idle;
            shared.abandon(self.id);
            return;
        };
        let info = passive
            .offer
            .to_info(Some(passive.address), Some(handshake.address), true);
        // SAFETY: just made, and not shared yet.
        unsafe { (*info).handle = ConnectionRequest::give(self.id) };
        let event = Event {
            kind: FI_CONNREQ,
            fid: passive.fid,
            info: Opaque(info),
            data: handshake.data,
            error: 0,
        };
        let events = passive.events;
        shared.event(events, event);
    }

    /// The program takes the connection request, to accept it later.
    pub(crate) fn take_request(&mut self) {
        self.incoming = None;
    }

    /// The program accepts.
    ///
    /// # Errors
    /// ECONNABORTED: the peer has disconnected; EINVAL: this is no connection request.
    pub(crate) fn accept(&mut self, data: &[u8], shared: &mut Shared) -> Result<(), i32> {
        match self.state {
            State::Asked => {}
            State::Ended => return Err(libc::ECONNABORTED),
            _ => return Err(libc::EINVAL),
        }
        self.state = State::Connected;
        self.reached = true;
        self.send_handshake(Kind::Accept, data);
        self.reports.event(FI_CONNECTED, 0, Vec::new(), shared);
        self.pump(shared);
        Ok(())
    }

    /// The program rejects. No object refers to the endpoint then; it is destroyed when the peer has disconnected.
    pub(crate) fn reject(&mut self, data: &[u8], shared: &mut Shared) {
        if self.state == State::Asked {
            self.send_handshake(Kind::Reject, data);
            self.state = State::Idle;
            if let Some(incoming) = &mut self.incoming {
                incoming.since = Instant::now();
            }
        } else {
            shared.abandon(self.id);
        }
    }
}
