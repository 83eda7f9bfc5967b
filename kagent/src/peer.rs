//! The peer-to-peer model: two requests that name each other (spec §9.3).
//!
//! Nobody accepts here, so the agent compares the attributes itself. Peers and the client/server model
//! never meet: they are in different queues.

#![forbid(unsafe_code)]

use kagent_proto::{Request, Status};

use crate::agent::{Agent, Caller};
use crate::call::CallKind;
use crate::connection::{End, attributes_agree};
use crate::timer::deadline;

impl<F: Clone> Agent<F> {
    /// `Op::PEER`.
    pub(crate) fn peer(&mut self, caller: Caller, body: &Request) -> Result<(), Status> {
        let own = self.seeker(caller, body)?;
        self.admit_call(caller)?;
        // Looking before queueing: a request that mirrors itself needs a second one like it.
        let partner = self.peers.oldest(&(own.remote, own.local));
        let Some(partner) = partner.and_then(|key| self.take_call(key)) else {
            let until = deadline(self.now, body.timeout_ms);
            let key = self.keep_call(caller, body.nic, CallKind::Peer(own), until);
            self.peers.push((own.local, own.remote), key);
            return Ok(());
        };
        let CallKind::Peer(other) = partner.kind else {
            return Err(Status::INVALID);
        };
        let partner_caller = Caller {
            client: partner.client,
            id: partner.id,
        };
        if let Err(conflict) = attributes_agree(&other.attributes, &own.attributes) {
            self.done(partner_caller, conflict);
            return Err(conflict);
        }
        let first = End {
            caller: partner_caller,
            nic: partner.nic,
            connection: self.fresh_connection(),
            vi: other.vi,
            attributes: other.attributes,
            segment_bytes: other.segment_bytes,
        };
        let second = End {
            caller,
            nic: body.nic,
            connection: self.fresh_connection(),
            vi: own.vi,
            attributes: own.attributes,
            segment_bytes: own.segment_bytes,
        };
        self.join([first, second]);
        Ok(())
    }
}
