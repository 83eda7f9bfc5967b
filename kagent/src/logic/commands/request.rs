//! The client's side of the client/server model: asking for a connection (spec §3.11).
//!
//! ```text
//!   REQUEST ──▶ Looking ──── a server waits ────▶ Held ──▶ CONNECTED, REJECTED
//!                  │                                │
//!              end of grace                      deadline
//!                  ▼                                ▼
//!       NO_MATCH, NOT_REACHABLE                  TIMEOUT
//! ```
//!
//! With a grace of 0 a request looks once. The grace is for programs that start at the same time: the
//! server may need a moment to open its NIC and to wait (spec §17).

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Budget, PROVIDER_BYTES, Reason, Request, Status};

use crate::logic::tables::call::{Ask, CallKind, LastWord, Owner, RequestState, Seeker};
use crate::logic::tables::place::Place;
use crate::logic::values::address::{Address, Spot};
use crate::logic::values::denial::{Denial, Outcome};
use crate::logic::values::ids::Caller;
use crate::logic::values::timer::deadline;

/// Most addresses and users among which the cause of a `NO_MATCH` is looked for: programs ask in a loop.
const LOOKED_AT_MAX: usize = 64;

impl<F: Clone> Agent<F> {
    /// `Op::REQUEST`.
    pub(crate) fn request(&mut self, caller: Caller, body: &Request) -> Outcome {
        let seeker = self.seeker(caller, body)?;
        self.admit_call(caller)?;
        if let Some((link, host)) = self.far(body.nic, &seeker) {
            let grace_ms = body.grace_ms.min(body.timeout_ms);
            let last_word = match grace_ms == body.timeout_ms {
                true => LastWord::TheirsOnceHeld,
                false => LastWord::Ours,
            };
            let ask = Ask::Request {
                grace_ms,
                last_word,
            };
            return self.ask(caller, body, seeker, (link, host), ask);
        }
        let place = Place::Near(seeker.remote);
        let waiter = self.waits.oldest(&place);
        if waiter.is_none() && body.grace_ms == 0 {
            return Err(self.nobody_there(&seeker.remote));
        }
        let timeout = deadline(self.now, body.timeout_ms);
        let grace = deadline(self.now, body.grace_ms.min(body.timeout_ms));
        let kind = CallKind::Request(seeker, RequestState::Looking { timeout });
        let key = self.keep_call(Owner::Process(caller, body.nic), kind, grace);
        self.seekers.push(place, key);
        let wait = waiter.and_then(|wait| self.take_call(wait));
        if let Some(Owner::Process(server, nic)) = wait.map(|wait| wait.owner) {
            self.offer(key, server, nic);
        }
        Ok(())
    }

    /// The lasting part of a `Request` body, of a client or of a peer.
    pub(crate) fn seeker(&self, caller: Caller, body: &Request) -> Result<Seeker, Status> {
        let address = self.own_nic(caller, body.nic)?.address;
        Ok(Seeker {
            vi: body.vi,
            attributes: body.attributes,
            segment_bytes: body.segment_bytes,
            local: Spot::local(address, &body.local),
            remote: Spot::remote(address, &body.remote),
        })
    }

    /// How to say that nobody waits at a connection point, and the likely cause.
    pub(crate) fn nobody_there(&self, spot: &Spot) -> Denial {
        let (status, reason) = if self.addresses.contains_key(&spot.address) {
            (Status::NO_MATCH, Reason::NOBODY_WAITS)
        } else {
            (Status::NOT_REACHABLE, Reason::NO_SUCH_ADDRESS)
        };
        let waits = |address: Address| {
            let name = spot.name;
            let place = Place::Near(Spot { address, name });
            self.waits.oldest(&place).is_some()
        };
        let user = spot.address.uid;
        let first = Address::new(user, &[0; PROVIDER_BYTES], &[]);
        let own = self.addresses.range(first..).map(|(address, _)| *address);
        let mut own = own.take_while(|address| address.uid == user);
        let others = self.accounts.users_with(Budget::Processes);
        let others = others.filter(|other| *other != user);
        let mut others = others.map(|uid| Address {
            uid,
            ..spot.address
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
