//! A request is handed to a server.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Incoming, Op};

use crate::logic::tables::call::{CallKind, RequestState};
use crate::logic::tables::place::Place;
use crate::logic::values::ids::{CallKey, Caller, NicId};

impl<F: Clone> Agent<F> {
    /// Hands a looking request to a server, as the reply to the server's wait. The request stays with
    /// the agent until the server answers or its time is over.
    pub(crate) fn offer(&mut self, request: CallKey, server: Caller, nic: NicId) {
        let connection = self.fresh_connection();
        let Some(call) = self.calls.get_mut(&request) else {
            return;
        };
        let (attributes, from, place, state) = match &mut call.kind {
            CallKind::Request(seeker, state) => (
                seeker.attributes,
                seeker.local.point(),
                Place::Near(seeker.remote),
                state,
            ),
            CallKind::Guest(guest, state) => {
                (guest.attributes, guest.point(), guest.place(), state)
            }
            _ => return,
        };
        let RequestState::Looking { timeout } = *state else {
            return;
        };
        *state = RequestState::Held(connection);
        // From now on only the deadline of the whole request counts.
        self.timers.stop(call.deadline, request);
        call.deadline = timeout;
        self.timers.start(timeout, request);
        self.seekers.remove(&place, request);
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
