//! Handing a request to a server.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Incoming, Op};

use crate::logic::tables::call::{CallKind, RequestState};
use crate::logic::tables::queue_key::QueueKey;
use crate::logic::values::ids::{CallKey, Caller, NicId};

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
        *state = RequestState::Held(connection);
        // From now on only the deadline of the whole request applies.
        self.timers.stop(call.deadline, request);
        call.deadline = timeout;
        self.timers.start(timeout, request);
        self.requests.remove(&place, request);
        self.note(|_| {
            let client = server.client.0;
            format!("call {}: client {client} has it as {connection}", request.0)
        });
        self.keep_offer(connection, server.client, nic, request);
        let incoming = Incoming {
            connection,
            attributes,
            remote: from,
            reserved: 0,
        };
        self.reply(server, Op::INCOMING, &incoming);
    }
}
