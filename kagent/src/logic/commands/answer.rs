//! Answers to a request or a connection: ACCEPT, REJECT, CONFIRM, DISCONNECT; and CANCEL of a waiting call.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::setup::Body;
use kagent_proto::{Accept, Status};

use crate::logic::meeting::join::End;
use crate::logic::tables::call::{CallKind, Owner, RemoteCall};
use crate::logic::tables::connection::ConnectionState;
use crate::logic::tables::exchange::State;
use crate::logic::values::ids::{Caller, ConnectionId, NicId};
use crate::logic::values::wire::attributes_agree;

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
        // The offer first: removing the request would otherwise mark it as expired.
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
        let requester = End {
            caller: asker,
            nic: asker_nic,
            connection: self.fresh_connection(),
            vi: initiator.vi,
            attributes: initiator.attributes,
            segment_bytes: initiator.segment_bytes,
        };
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
        // The offer first: changing the exchange ends the remote call, which would mark the offer as expired.
        self.take_connection(body.connection);
        let own = (body.vi, &body.attributes);
        self.make_ready(caller, nic, body.connection, own, &remote_call);
        Ok(())
    }

    /// `Op::REJECT`. It succeeds whether or not the requester is still there.
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
                self.set_connection(name, ConnectionState::Far(exchange));
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

    /// `Op::CANCEL`. If the call has already ended, its reply crossed the cancel and the process does not use it: a
    /// request that it contained goes to the next server. A process disconnects a connection that comes too late.
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
