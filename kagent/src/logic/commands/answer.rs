//! What a process says of a request or a connection that it has: ACCEPT, REJECT, CONFIRM, DISCONNECT, and
//! CANCEL of a call that waits.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Accept, Status};
use vipl_wire::setup::Body;

use crate::logic::meeting::join::End;
use crate::logic::tables::call::{CallKind, Guest, Owner};
use crate::logic::tables::connection::ConnectionState;
use crate::logic::tables::exchange::State;
use crate::logic::values::ids::{Caller, ConnectionId, NicId};
use crate::logic::values::wire::attributes_agree;

impl<F: Clone> Agent<F> {
    /// `Op::ACCEPT`. After a conflict the request stays, for a second try with other attributes.
    pub(crate) fn accept(&mut self, caller: Caller, body: &Accept) -> Result<(), Status> {
        let offer = self.own_connection(caller, body.connection)?;
        let nic = offer.nic;
        let request = match offer.state {
            ConnectionState::Offered(request) => request,
            ConnectionState::Expired => {
                self.take_connection(body.connection);
                return Err(Status::TIMEOUT);
            }
            _ => return Err(Status::INVALID),
        };
        let call = self.calls.get(&request).ok_or(Status::INVALID)?;
        let seeker = match &call.kind {
            CallKind::Request(seeker, _) => *seeker,
            CallKind::Guest(guest, _) => return self.accept_guest(caller, body, nic, *guest),
            _ => return Err(Status::INVALID),
        };
        attributes_agree(&seeker.attributes, &body.attributes)?;
        // The offer first: a request that leaves a standing offer behind would expire it.
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
            vi: seeker.vi,
            attributes: seeker.attributes,
            segment_bytes: seeker.segment_bytes,
        };
        self.join([accepter, requester]);
        Ok(())
    }

    /// `Op::ACCEPT` of a guest's request.
    pub(crate) fn accept_guest(
        &mut self,
        caller: Caller,
        body: &Accept,
        nic: NicId,
        guest: Guest,
    ) -> Result<(), Status> {
        attributes_agree(&guest.attributes, &body.attributes)?;
        // The offer before its exchange goes on: the guest's call ends then, and would expire the offer.
        self.take_connection(body.connection);
        let own = (body.vi, &body.attributes);
        self.make_ready(caller, nic, body.connection, own, &guest);
        Ok(())
    }

    /// `Op::REJECT`. The server need not care whether the requester is still there.
    pub(crate) fn reject(&mut self, caller: Caller, name: ConnectionId) -> Result<(), Status> {
        match self.own_connection(caller, name)?.state {
            ConnectionState::Offered(_) | ConnectionState::Expired => self.abandon(name, true),
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
                self.answer_on(exchange, accepted, until);
                Ok(())
            }
            _ => Err(Status::INVALID),
        }
    }

    /// `Op::DISCONNECT`.
    pub(crate) fn disconnect(&mut self, caller: Caller, name: ConnectionId) -> Result<(), Status> {
        match self.own_connection(caller, name)?.state {
            ConnectionState::Offered(_) | ConnectionState::Expired => return Err(Status::INVALID),
            _ => self.abandon(name, true),
        }
        self.done(caller, Status::OK);
        Ok(())
    }

    /// `Op::CANCEL`. A call that has already ended crossed its reply with the cancel: nothing to do.
    pub(crate) fn cancel(&mut self, caller: Caller, call: u64) -> Result<(), Status> {
        let key = self
            .clients
            .get(&caller.client)
            .and_then(|c| c.calls.get(&call))
            .copied();
        if let Some(key) = key {
            self.end_call(key, Status::CANCELLED);
        }
        self.done(caller, Status::OK);
        Ok(())
    }
}
