//! Deadlines. Expired ones are handled before any other input, so that the outcome of a race with a deadline
//! is well defined.

#![forbid(unsafe_code)]

use kagent_proto::Status;

use crate::logic::agent::Agent;
use crate::logic::calls::{Ask, CallKind, FinalStatus, RequestState};
use crate::logic::ids::{CallKey, ExchangeKey};
use crate::logic::message::Denial;
use crate::logic::objects::{DISCONNECT_TRIES, State};

impl<F: Clone> Agent<F> {
    /// The latest time to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<u64> {
        [
            self.timers.next(),
            self.exchange_timers.next(),
            self.halves.next(),
            self.claims.next(),
            self.link_rate.next(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: u64) {
        self.advance(now);
    }

    /// Advances the clock, never backwards, and handles what is due.
    pub(crate) fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(call) = self.timers.pop_due(self.now) {
            self.call_due(call);
        }
        while let Some(unmatched) = self.halves.pop_due(self.now, &mut self.accounts) {
            self.peer_gone(unmatched, false);
        }
        self.claims.free_due(self.now, &mut self.accounts);
        self.open_links_due();
        while let Some(exchange) = self.exchange_timers.pop_due(self.now) {
            self.exchange_due(exchange);
        }
    }

    /// The timer of a call expired.
    pub(crate) fn call_due(&mut self, key: CallKey) {
        let Some(call) = self.calls.get(&key) else {
            return;
        };
        let end: Denial = match &call.kind {
            CallKind::Request(initiator, RequestState::Queued { .. }) => {
                // If the grace period and the whole request end together, no server was waiting.
                self.no_match(&initiator.remote)
            }
            CallKind::RemoteRequest(_, RequestState::Queued { .. }) => Status::NO_MATCH.into(),
            CallKind::Asking(
                _,
                _,
                Ask::Request {
                    final_status: FinalStatus::Theirs,
                    ..
                },
            ) => return self.await_final_status(key),
            CallKind::Search(_) => return self.search_round(key),
            CallKind::Asking(_, exchange, _) => self.unanswered(*exchange),
            _ => Status::TIMEOUT.into(),
        };
        self.end_call(key, end);
    }

    /// The timer of an exchange expired.
    pub(crate) fn exchange_due(&mut self, key: ExchangeKey) {
        let Some(exchange) = self.exchanges.get_mut(&key) else {
            return;
        };
        exchange.due = None;
        let tries = exchange.tries;
        match exchange.state {
            State::Asking(call) => self.send_question(key, call),
            // A host that stops repeating its call is down.
            State::Called(_) => self.end_exchange(key),
            State::Readying(connection, _, _) => self.give_up_accepting(key, connection),
            State::Accepting(connection, accepted, until) => {
                if self.now >= until {
                    self.give_up_accepting(key, connection);
                } else {
                    self.send_acceptance(key, accepted, until);
                }
            }
            State::Disconnecting { .. } if tries > DISCONNECT_TRIES => self.end_exchange(key),
            State::Disconnecting { orderly } => self.send_disconnect(key, orderly),
            State::Refused(_) | State::Over => self.forget_exchange(key),
            State::Taking(_) | State::Open(_) => {}
        }
    }
}
