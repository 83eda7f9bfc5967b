//! Handing a request to a server.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Incoming, Op};

use crate::logic::tables::call::{CallKind, Owner, RequestState};
use crate::logic::tables::connection::ConnectionState;
use crate::logic::tables::queue_key::QueueKey;
use crate::logic::values::ids::{CallKey, Caller, ConnectionId, NicId};

impl<F: Clone> Agent<F> {
    /// Hands a queued request to a server, as the reply to its wait. The request stays with the agent until
    /// the server answers or the deadline passes.
    pub(crate) fn offer(&mut self, request: CallKey, server: Caller, nic: NicId) {
        let connection = self.fresh_connection();
        let Some(call) = self.calls.get_mut(&request) else {
            return;
        };
        let (attributes, from, place, state) = match &mut call.kind {
            CallKind::Request(initiator, state) => (
                initiator.attributes,
                initiator.local.point(),
                QueueKey::Near(initiator.remote),
                state,
            ),
            CallKind::RemoteRequest(remote_call, state) => (
                remote_call.attributes,
                remote_call.point(),
                remote_call.queue_key(),
                state,
            ),
            _ => return,
        };
        let RequestState::Queued { timeout } = *state else {
            return;
        };
        let grace = call.deadline;
        *state = RequestState::Held { connection, grace };
        // From now on only the deadline of the whole request applies.
        self.timers.stop(call.deadline, request);
        call.deadline = timeout;
        self.timers.start(timeout, request);
        self.requests.remove(&place, request);
        self.note(|_| {
            let client = server.client.0;
            format!("call {}: client {client} has it as {connection}", request.0)
        });
        self.keep_offer(connection, server, nic, request);
        let incoming = Incoming {
            connection,
            attributes,
            remote: from,
            reserved: 0,
        };
        self.reply(server, Op::INCOMING, &incoming);
    }

    /// The server did not take a request that it was given. Another one gets it; without one it waits for the rest of
    /// its grace period, which may be over.
    pub(crate) fn take_back(&mut self, offer: ConnectionId) {
        let Some(ConnectionState::Offered(request, _)) =
            self.take_connection(offer).map(|offer| offer.state)
        else {
            return;
        };
        let Some(call) = self.calls.get_mut(&request) else {
            return;
        };
        let timeout = call.deadline;
        let (place, state) = match &mut call.kind {
            CallKind::Request(initiator, state) => (QueueKey::Near(initiator.remote), state),
            CallKind::RemoteRequest(remote_call, state) => (remote_call.queue_key(), state),
            _ => return,
        };
        let RequestState::Held { grace, .. } = *state else {
            return;
        };
        *state = RequestState::Queued { timeout };
        self.timers.stop(timeout, request);
        call.deadline = grace;
        self.timers.start(grace, request);
        self.requests.push(place, request);
        self.note(|_| format!("call {}: its server has not taken it", request.0));
        let wait = self.waits.oldest(&place);
        let wait = wait.and_then(|wait| self.take_call(wait));
        if let Some(Owner::Process(server, nic)) = wait.map(|wait| wait.owner) {
            self.offer(request, server, nic);
        }
    }
}
