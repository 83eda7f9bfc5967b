//! The server's side of the client/server model: waiting for a request (spec §3.8).
//!
//! A discriminator is waited on only while a call is here; each request goes to one wait, the oldest. On a
//! link it belongs to one user at a time (`claim.rs`).

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Status, Wait};

use crate::logic::tables::call::{CallKind, Owner};
use crate::logic::tables::claim::Claim;
use crate::logic::tables::place::Place;
use crate::logic::values::address::Spot;
use crate::logic::values::denial::Outcome;
use crate::logic::values::ids::Caller;
use crate::logic::values::timer::deadline;

impl<F: Clone> Agent<F> {
    /// `Op::WAIT`: gives out a request that is already looking for this place, or waits for one.
    pub(crate) fn wait(&mut self, caller: Caller, body: &Wait) -> Outcome {
        let spot = Spot::local(self.own_nic(caller, body.nic)?.address, &body.local);
        let link = self.link_of(body.nic);
        self.admit_call(caller)?;
        if let Some(link) = link {
            let claim = Claim::server(link, spot.name);
            self.claims
                .claim(spot.address.uid, claim, self.now, &mut self.accounts)?;
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
}
