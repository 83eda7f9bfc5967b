//! The server's side of the client/server model: waiting for a request (spec §3.8).
//!
//! A discriminator is waited on only while a call is here; each request goes to one wait, the oldest. On a
//! link it belongs to one user at a time (`claim.rs`).

#![forbid(unsafe_code)]

use kagent_proto::{Incoming, Op, Status, Wait};

use crate::agent::{Agent, Caller};
use crate::call::{CallKey, CallKind, Owner, RequestState};
use crate::claim::Claim;
use crate::denial::Outcome;
use crate::nic::{NicId, Spot};
use crate::place::Place;
use crate::timer::deadline;

impl<F: Clone> Agent<F> {
    /// `Op::WAIT`: gives out a request that is already looking for this place, or waits for one.
    pub(crate) fn wait(&mut self, caller: Caller, body: &Wait) -> Outcome {
        let spot = Spot::local(self.own_nic(caller, body.nic)?.address, &body.local);
        let link = self.link_of(body.nic);
        self.admit_call(caller)?;
        if let Some(link) = link {
            self.claim(spot.address.uid, Claim::server(link, spot.name))?;
        }
        let places = Place::of_wait(spot, link);
        let seekers = places
            .clone()
            .filter_map(|place| self.seekers.oldest(&place));
        if let Some(request) = seekers.min() {
            self.offer(request, caller, body.nic);
        } else if body.timeout_ms == 0 {
            return Err(Status::TIMEOUT.into());
        } else {
            let until = deadline(self.now, body.timeout_ms);
            let owner = Owner::Process(caller, body.nic);
            let key = self.keep_call(owner, CallKind::Wait(spot, link), until);
            for place in places {
                self.waits.push(place, key);
            }
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
