//! The client's side of the client/server model: asking for a connection (spec §3.11).
//!
//! ```text
//!   REQUEST ──▶ Queued ───── a server waits ────▶ Held ──▶ CONNECTED, REJECTED
//!                  │                                │
//!              end of grace                      deadline
//!                  ▼                                ▼
//!       NO_MATCH, NOT_REACHABLE                  TIMEOUT
//! ```
//!
//! With a grace period of 0 a request looks once. The grace period is for applications that start at the same
//! time: the server may need a moment to open its NIC and to wait (spec §17).

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Budget, PROVIDER_BYTES, Reason, Request, Status};

use crate::logic::tables::call::{Ask, CallKind, FinalStatus, Initiator, Owner, RequestState};
use crate::logic::tables::queue_key::QueueKey;
use crate::logic::values::address::{Address, ConnectionPoint};
use crate::logic::values::denial::{Denial, Outcome};
use crate::logic::values::ids::Caller;
use crate::logic::values::timer::deadline;

/// Maximum addresses and users that are checked for the cause of a `NO_MATCH`: applications retry in a loop.
const LOOKED_AT_MAX: usize = 64;

impl<F: Clone> Agent<F> {
    /// `Op::REQUEST`.
    pub(crate) fn request(&mut self, caller: Caller, body: &Request) -> Outcome {
        let initiator = self.initiator(caller, body)?;
        self.admit_call(caller)?;
        if let Some((link, host)) = self.far(body.nic, &initiator) {
            let grace_ms = body.grace_ms.min(body.timeout_ms);
            let final_status = match grace_ms == body.timeout_ms {
                true => FinalStatus::TheirsOnceHeld,
                false => FinalStatus::Ours,
            };
            let ask = Ask::Request {
                grace_ms,
                final_status,
            };
            return self.ask(caller, body, initiator, (link, host), ask);
        }
        let place = QueueKey::Near(initiator.remote);
        let waiter = self.waits.oldest(&place);
        if waiter.is_none() && body.grace_ms == 0 {
            return Err(self.no_match(&initiator.remote));
        }
        let timeout = deadline(self.now, body.timeout_ms);
        let grace = deadline(self.now, body.grace_ms.min(body.timeout_ms));
        let kind = CallKind::Request(initiator, RequestState::Queued { timeout });
        let key = self.keep_call(Owner::Process(caller, body.nic), kind, grace);
        self.requests.push(place, key);
        let wait = waiter.and_then(|wait| self.take_call(wait));
        if let Some(Owner::Process(server, nic)) = wait.map(|wait| wait.owner) {
            self.offer(key, server, nic);
        }
        Ok(())
    }

    /// The part of a `Request` that is kept, of a client or of a peer.
    pub(crate) fn initiator(&self, caller: Caller, body: &Request) -> Result<Initiator, Status> {
        let address = self.own_nic(caller, body.nic)?.address;
        Ok(Initiator {
            vi: body.vi,
            attributes: body.attributes,
            segment_bytes: body.segment_bytes,
            local: ConnectionPoint::local(address, &body.local),
            remote: ConnectionPoint::remote(address, &body.remote),
        })
    }

    /// The result if no server waits at a connection point, with the likely cause.
    pub(crate) fn no_match(&self, point: &ConnectionPoint) -> Denial {
        let (status, reason) = if self.addresses.contains_key(&point.address) {
            (Status::NO_MATCH, Reason::NOBODY_WAITS)
        } else {
            (Status::NOT_REACHABLE, Reason::NO_SUCH_ADDRESS)
        };
        let waits = |address: Address| {
            let name = point.name;
            let place = QueueKey::Near(ConnectionPoint { address, name });
            self.waits.oldest(&place).is_some()
        };
        let user = point.address.uid;
        let first = Address::new(user, &[0; PROVIDER_BYTES], &[]);
        let own = self.addresses.range(first..).map(|(address, _)| *address);
        let mut own = own.take_while(|address| address.uid == user);
        let others = self.accounts.users_with(Budget::Processes);
        let others = others.filter(|other| *other != user);
        let mut others = others.map(|uid| Address {
            uid,
            ..point.address
        });
        let reason = if own.by_ref().take(LOOKED_AT_MAX).any(waits) {
            Reason::ELSEWHERE
        } else if others.by_ref().take(LOOKED_AT_MAX).any(waits) {
            Reason::OTHER_USER
        } else {
            reason
        };
        Denial::because(status, reason)
    }
}
