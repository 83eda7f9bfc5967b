//! Re-adopts connections established by a previous agent.
//!
//! When an agent dies its connections continue, since no data passes through it. Each process then reports
//! its sides to the next agent, which knows nothing of them. The two sides report independently and in any
//! order. They are matched by the connection's secret key.
//!
//! ```text
//!   ADOPT, side 0 ──▶ waits ──── ADOPT, side 1 ───▶ both Open, as if this agent had joined them
//!                       │ │
//!             DISCONNECT, │ time is over            the partner died while there was no agent
//!             death       └──────────────▶ Lone     and cannot come: PARTNER_GONE, not orderly
//!                       ▼
//!                    parted ── ADOPT, side 1 ─────▶ Lone, and PARTNER_GONE at once
//! ```

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Adopt, Adopted, Op, Status};

use crate::logic::tables::connection::{Connection, ConnectionState};
use crate::logic::tables::half::{Half, HalfState};
use crate::logic::values::denial::Outcome;
use crate::logic::values::ids::Caller;
use crate::logic::values::wire::attributes_agree;

impl<F: Clone> Agent<F> {
    /// `Op::ADOPT`.
    pub(crate) fn adopt(&mut self, caller: Caller, body: &Adopt) -> Outcome {
        self.own_nic(caller, body.nic)?;
        self.admit_connection(caller)?;
        let name = (self.user_of(caller.client), body.key);
        let other = match self.halves.get(&name) {
            Some(half) if half.side != body.side => Some(half.state),
            Some(Half {
                state: HalfState::Waiting(..),
                ..
            }) => return Err(Status::INVALID.into()),
            _ => None,
        };
        if let Some(HalfState::Waiting(_, attributes)) = &other {
            attributes_agree(attributes, &body.attributes).map_err(|_| Status::INVALID)?;
        }
        let own = self.fresh_connection();
        let state = match other {
            None => ConnectionState::Half(name),
            Some(HalfState::Waiting(partner, _)) => ConnectionState::Open(partner),
            Some(HalfState::Parted(_)) => ConnectionState::Lone,
        };
        let (client, nic) = (caller.client, body.nic);
        self.keep_connection(own, Connection { client, nic, state });
        // The identifier before anything that refers to it.
        self.reply(caller, Op::ADOPTED, &Adopted { connection: own });
        match other {
            None => {
                self.halves.take(name, &mut self.accounts);
                let state = HalfState::Waiting(own, body.attributes);
                self.halves.insert(name, body.side, state, self.now);
            }
            Some(HalfState::Waiting(partner, _)) => {
                self.halves.take(name, &mut self.accounts);
                if let Some(partner) = self.connections.get_mut(&partner) {
                    partner.state = ConnectionState::Open(own);
                }
            }
            Some(HalfState::Parted(orderly)) => {
                self.halves.take(name, &mut self.accounts);
                self.partner_gone(own, orderly);
            }
        }
        Ok(())
    }
}
