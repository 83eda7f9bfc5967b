//! The peer-to-peer model: two requests that name each other (spec §9.3).
//!
//! There is no accept step, so the agent compares the attributes. Peer requests and the client/server model
//! use different queues and never match each other.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Request, Status};

use crate::logic::meeting::join::End;
use crate::logic::tables::call::{Ask, CallKind, Owner};
use crate::logic::tables::claim::Claim;
use crate::logic::tables::queue_key::PeerKey;
use crate::logic::values::denial::Outcome;
use crate::logic::values::ids::Caller;
use crate::logic::values::timer::deadline;
use crate::logic::values::wire::attributes_agree;

impl<F: Clone> Agent<F> {
    /// `Op::PEER`.
    pub(crate) fn peer(&mut self, caller: Caller, body: &Request) -> Outcome {
        let own = self.initiator(caller, body)?;
        self.admit_call(caller)?;
        let far = self.far(body.nic, &own);
        if let Some((link, host)) = far {
            let claim = Claim::peer(link, host, own.local.name, own.remote.name);
            let user = own.local.address.uid;
            self.claims
                .claim(user, claim, self.now, &mut self.accounts)?;
        }
        // Searched before it is queued: a request that mirrors itself needs a second one like it.
        let pair = match far {
            None => PeerKey::Near(own.local, own.remote),
            Some((link, host)) if self.decides(link, host) => {
                PeerKey::here(link, host, own.local.name, own.remote.name)
            }
            Some(to) => return self.ask(caller, body, own, to, Ask::Peer),
        };
        let partner = self.peers.oldest(&pair.mirrored());
        let Some(partner) = partner.and_then(|key| self.take_call(key)) else {
            let until = deadline(self.now, body.timeout_ms);
            let owner = Owner::Process(caller, body.nic);
            let key = self.keep_call(owner, CallKind::Peer(own, pair), until);
            self.peers.push(pair, key);
            return Ok(());
        };
        let (other, partner_caller, partner_nic) = match (partner.kind, partner.owner) {
            (CallKind::RemotePeer(remote_call, _), _) => {
                return Ok(self.meet_remote(caller, body.nic, &own, &remote_call)?);
            }
            (CallKind::Peer(other, _), Owner::Process(caller, nic)) => (other, caller, nic),
            _ => return Err(Status::INVALID.into()),
        };
        if let Err(conflict) = attributes_agree(&other.attributes, &own.attributes) {
            self.done(partner_caller, conflict);
            return Err(conflict.into());
        }
        let first = End {
            caller: partner_caller,
            nic: partner_nic,
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
