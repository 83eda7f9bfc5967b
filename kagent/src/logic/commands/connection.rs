//! Commands on a request or a connection: ACCEPT, REJECT, CONFIRM, DISCONNECT and ADOPT; and CANCEL of a waiting
//! call.

#![forbid(unsafe_code)]

use kagent_proto::setup::Body;
use kagent_proto::{Accept, Adopt, Adopted, Op, Status};

use crate::logic::agent::Agent;
use crate::logic::calls::{CallKind, Owner, RemoteCall};
use crate::logic::ids::{Caller, ConnectionId, NicId};
use crate::logic::meeting::End;
use crate::logic::message::{Outcome, attributes_agree};
use crate::logic::objects::{Connection, ConnectionState, Half, HalfState, State};

impl<F: Clone> Agent<F> {
    /// `Op::ACCEPT`. After a conflict the request remains, so that the server can retry with other
    /// attributes.
    pub(crate) fn accept(&mut self, caller: Caller, body: &Accept) -> Result<(), Status> {
        let offer = self.own_connection(caller, body.connection)?;
        let nic = offer.nic;
        let request = match offer.state {
            ConnectionState::Offered(request, _) => request,
            ConnectionState::Expired(_) => {
                self.take_connection(body.connection);
                return Err(Status::TIMEOUT);
            }
            _ => return Err(Status::INVALID),
        };
        let call = self.calls.get(&request).ok_or(Status::INVALID)?;
        let initiator = match &call.kind {
            CallKind::Request(initiator, _) => *initiator,
            CallKind::RemoteRequest(remote_call, _) => {
                return self.accept_remote(caller, body, nic, *remote_call);
            }
            _ => return Err(Status::INVALID),
        };
        attributes_agree(&initiator.attributes, &body.attributes)?;
        // The offer is removed first: removing the request would otherwise mark it as expired.
        self.take_connection(body.connection);
        let call = self.take_call(request).ok_or(Status::INVALID)?;
        let accepter = End {
            caller,
            nic,
            connection: body.connection,
            vi: body.vi,
            attributes: body.attributes,
            segment_bytes: body.segment_bytes,
        };
        let Owner::Process(asker, asker_nic) = call.owner else {
            return Err(Status::INVALID);
        };
        let requester = End::of((asker, asker_nic), self.fresh_connection(), &initiator);
        self.join([accepter, requester]);
        Ok(())
    }

    /// `Op::ACCEPT` of a remote request.
    pub(crate) fn accept_remote(
        &mut self,
        caller: Caller,
        body: &Accept,
        nic: NicId,
        remote_call: RemoteCall,
    ) -> Result<(), Status> {
        attributes_agree(&remote_call.attributes, &body.attributes)?;
        // The offer is removed first: changing the exchange ends the remote call, which would mark the offer
        // as expired.
        self.take_connection(body.connection);
        let own = (body.vi, &body.attributes);
        self.make_ready(caller, nic, body.connection, own, &remote_call);
        Ok(())
    }

    /// `Op::REJECT`. It succeeds even if the requester has given up.
    pub(crate) fn reject(&mut self, caller: Caller, name: ConnectionId) -> Result<(), Status> {
        match self.own_connection(caller, name)?.state {
            ConnectionState::Offered(..) | ConnectionState::Expired(_) => {
                self.close_connection(name, true)
            }
            _ => return Err(Status::INVALID),
        }
        self.done(caller, Status::OK);
        Ok(())
    }

    /// `Op::CONFIRM`: the VI is attached.
    pub(crate) fn confirm(&mut self, caller: Caller, name: ConnectionId) -> Result<(), Status> {
        let exchange = match self.own_connection(caller, name)?.state {
            ConnectionState::Attaching(exchange) => exchange,
            ConnectionState::Failed => {
                self.take_connection(name);
                return Err(Status::TIMEOUT);
            }
            _ => return Err(Status::INVALID),
        };
        match self.state(exchange) {
            Some(State::Taking(_)) => {
                self.set_exchange(exchange, State::Open(name), None);
                self.set_connection(name, ConnectionState::Remote(exchange));
                self.send_frame(exchange, Body::Ack);
                self.done(caller, Status::OK);
                Ok(())
            }
            Some(State::Readying(_, accepted, until)) => {
                let state = State::Accepting(name, accepted, until);
                self.set_exchange(exchange, state, Some(until));
                self.set_connection(name, ConnectionState::Confirming(exchange, caller.id));
                self.send_acceptance(exchange, accepted, until);
                Ok(())
            }
            _ => Err(Status::INVALID),
        }
    }

    /// `Op::DISCONNECT`.
    pub(crate) fn disconnect(&mut self, caller: Caller, name: ConnectionId) -> Result<(), Status> {
        match self.own_connection(caller, name)?.state {
            ConnectionState::Offered(..) | ConnectionState::Expired(_) => {
                return Err(Status::INVALID);
            }
            _ => self.close_connection(name, true),
        }
        self.done(caller, Status::OK);
        Ok(())
    }

    /// `Op::CANCEL`. If the call has already ended, its reply crossed the cancel, and the process discards
    /// it: a request in it goes to the next server. The process disconnects a connection that arrives too
    /// late.
    pub(crate) fn cancel(&mut self, caller: Caller, call: u64) -> Result<(), Status> {
        let client = self.clients.get(&caller.client).ok_or(Status::INVALID)?;
        let (key, offer) = (client.calls.get(&call), client.offers.get(&call));
        match (key.copied(), offer.copied()) {
            (Some(key), _) => self.end_call(key, Status::CANCELLED),
            (None, Some(offer)) => self.take_back(offer),
            (None, None) => {}
        }
        self.done(caller, Status::OK);
        Ok(())
    }
}

/// Re-adopts connections established by a previous agent.
///
/// When an agent dies, its connections continue, since no data passes through it. Each process then reports
/// its sides to the next agent, which has no record of them. The two sides report independently and in any
/// order. They are matched by the connection's secret key.
///
/// ```text
///   ADOPT, side 0 ──▶ waits ──── ADOPT, side 1 ───▶ both Open, as if this agent had joined them
///                       │ │
///             DISCONNECT, │ time is over            the peer died while there was no agent
///             death       └──────────────▶ PeerGone  and cannot come: PEER_GONE, not orderly
///                       ▼
///                    parted ── ADOPT, side 1 ─────▶ PeerGone, and PEER_GONE at once
/// ```
impl<F: Clone> Agent<F> {
    /// `Op::ADOPT`.
    pub(crate) fn adopt(&mut self, caller: Caller, body: &Adopt) -> Outcome {
        self.own_nic(caller, body.nic)?;
        self.admit_connection(caller)?;
        let name = (self.user_of(caller.client), body.key);
        let other = match self.halves.get(&name) {
            Some(half) if half.side != body.side => Some(half.state),
            Some(Half {
                state: HalfState::Waiting(..),
                ..
            }) => return Err(Status::INVALID.into()),
            _ => None,
        };
        if let Some(HalfState::Waiting(_, attributes)) = &other {
            attributes_agree(attributes, &body.attributes).map_err(|_| Status::INVALID)?;
        }
        let own = self.fresh_connection();
        let state = match other {
            None => ConnectionState::Half(name),
            Some(HalfState::Waiting(peer, _)) => ConnectionState::Open(peer),
            Some(HalfState::Parted(_)) => ConnectionState::PeerGone,
        };
        let (client, nic) = (caller.client, body.nic);
        self.keep_connection(own, Connection { client, nic, state });
        // The reply with the identifier precedes anything that refers to it.
        self.reply(caller, Op::ADOPTED, &Adopted { connection: own });
        match other {
            None => {
                self.halves.take(name, &mut self.accounts);
                let state = HalfState::Waiting(own, body.attributes);
                self.halves.insert(name, body.side, state, self.now);
            }
            Some(HalfState::Waiting(peer, _)) => {
                self.halves.take(name, &mut self.accounts);
                if let Some(peer) = self.connections.get_mut(&peer) {
                    peer.state = ConnectionState::Open(own);
                }
            }
            Some(HalfState::Parted(orderly)) => {
                self.halves.take(name, &mut self.accounts);
                self.peer_gone(own, orderly);
            }
        }
        Ok(())
    }
}
