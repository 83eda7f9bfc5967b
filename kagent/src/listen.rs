//! The server's side of the client/server model: waiting for a request (spec §3.8).
//!
//! A discriminator is waited on only while a call is here; each request goes to one wait, the oldest.

#![forbid(unsafe_code)]

use kagent_proto::{Incoming, Op, Status, Wait};

use crate::agent::{Agent, Caller};
use crate::call::{CallKey, CallKind, RequestState, Seeker};
use crate::nic::{NicId, Spot};
use crate::timer::deadline;

impl<F: Clone> Agent<F> {
    /// `Op::WAIT`: gives out a request that is already looking for this place, or waits for one.
    pub(crate) fn wait(&mut self, caller: Caller, body: &Wait) -> Result<(), Status> {
        let spot = Spot::local(self.own_nic(caller, body.nic)?.address, &body.local);
        self.admit_call(caller)?;
        if let Some(request) = self.seekers.oldest(&spot) {
            self.offer(request, caller, body.nic);
        } else if body.timeout_ms == 0 {
            return Err(Status::TIMEOUT);
        } else {
            let until = deadline(self.now, body.timeout_ms);
            let key = self.keep_call(caller, body.nic, CallKind::Wait(spot), until);
            self.waits.push(spot, key);
        }
        Ok(())
    }

    /// Hands a looking request to a server, as the reply to the server's wait. The request stays with
    /// the agent until the server answers or its time is over.
    pub(crate) fn offer(&mut self, request: CallKey, server: Caller, nic: NicId) {
        let connection = self.fresh_connection();
        let Some(call) = self.calls.get_mut(&request) else {
            return;
        };
        let CallKind::Request(
            Seeker {
                attributes,
                local,
                remote,
                ..
            },
            state,
        ) = &mut call.kind
        else {
            return;
        };
        let RequestState::Looking { timeout } = *state else {
            return;
        };
        let (attributes, local, remote) = (*attributes, *local, *remote);
        *state = RequestState::Held(connection);
        // From now on only the deadline of the whole request counts.
        self.timers.stop(call.deadline, request);
        call.deadline = timeout;
        self.timers.start(timeout, request);
        self.seekers.remove(&remote, request);
        self.keep_offer(connection, server.client, nic, request);
        let incoming = Incoming {
            connection,
            attributes,
            remote: local.point(),
            reserved: 0,
        };
        self.reply(server, Op::INCOMING, &incoming);
    }
}
