//! The server's side of the client/server model: waiting for a request (spec §3.8).
//!
//! A server waits on a discriminator only while its call is here; each request goes to the oldest wait. On a
//! link a discriminator belongs to one user at a time (`claim.rs`).

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Status, Wait};

use crate::logic::tables::call::{CallKind, Owner};
use crate::logic::tables::claim::Claim;
use crate::logic::tables::queue_key::QueueKey;
use crate::logic::values::address::ConnectionPoint;
use crate::logic::values::denial::Outcome;
use crate::logic::values::ids::Caller;
use crate::logic::values::timer::deadline;

impl<F: Clone> Agent<F> {
    /// `Op::WAIT`: returns a matching queued request, or waits for one.
    pub(crate) fn wait(&mut self, caller: Caller, body: &Wait) -> Outcome {
        let point = ConnectionPoint::local(self.own_nic(caller, body.nic)?.address, &body.local);
        let link = self.link_of(body.nic);
        self.admit_call(caller)?;
        if let Some(link) = link {
            let claim = Claim::server(link, point.name);
            self.claims
                .claim(point.address.uid, claim, self.now, &mut self.accounts)?;
        }
        let keys_of_wait = QueueKey::of_wait(point, link);
        let requests = keys_of_wait
            .clone()
            .filter_map(|place| self.requests.oldest(&place));
        if let Some(request) = requests.min() {
            self.offer(request, caller, body.nic);
        } else if body.timeout_ms == 0 {
            return Err(Status::TIMEOUT.into());
        } else {
            let until = deadline(self.now, body.timeout_ms);
            let owner = Owner::Process(caller, body.nic);
            let key = self.keep_call(owner, CallKind::Wait(point, link), until);
            for place in keys_of_wait {
                self.waits.push(place, key);
            }
        }
        Ok(())
    }
}
