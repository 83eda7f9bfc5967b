//! Deadlines. Whatever is due is done before any other input is looked at, so there is never a doubt about
//! who won a race against the clock.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::Status;

use crate::logic::tables::call::{Ask, CallKind, LastWord, RequestState};
use crate::logic::tables::exchange::{LEAVING_TRIES, State};
use crate::logic::values::denial::Denial;
use crate::logic::values::ids::{CallKey, ExchangeKey};

impl<F: Clone> Agent<F> {
    /// When [`handle_timeout`](Self::handle_timeout) wants to be called at the latest.
    pub fn poll_timeout(&self) -> Option<u64> {
        [
            self.timers.next(),
            self.exchange_timers.next(),
            self.halves.next(),
            self.claims.next(),
            self.paces.next(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: u64) {
        self.advance(now);
    }

    /// Moves the clock, never backwards, and ends what is due.
    pub(crate) fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(call) = self.timers.pop_due(self.now) {
            self.call_due(call);
        }
        while let Some(lone) = self.halves.pop_due(self.now, &mut self.accounts) {
            self.partner_gone(lone, false);
        }
        self.claims.free_due(self.now, &mut self.accounts);
        self.open_links_due();
        while let Some(exchange) = self.exchange_timers.pop_due(self.now) {
            self.exchange_due(exchange);
        }
    }

    /// The timer of a call went off.
    pub(crate) fn call_due(&mut self, key: CallKey) {
        let Some(call) = self.calls.get(&key) else {
            return;
        };
        let end: Denial = match &call.kind {
            CallKind::Request(seeker, RequestState::Looking { .. }) => {
                // When the grace and the whole request end together it still was nobody's waiting.
                self.nobody_there(&seeker.remote)
            }
            CallKind::Guest(_, RequestState::Looking { .. }) => Status::NO_MATCH.into(),
            CallKind::Asking(
                _,
                _,
                Ask::Request {
                    last_word: LastWord::Theirs,
                    ..
                },
            ) => return self.await_last_word(key),
            CallKind::Search(_) => return self.search_on(key),
            _ => Status::TIMEOUT.into(),
        };
        self.end_call(key, end);
    }

    /// The timer of an exchange went off; it runs no more.
    pub(crate) fn exchange_due(&mut self, key: ExchangeKey) {
        let Some(exchange) = self.exchanges.get_mut(&key) else {
            return;
        };
        exchange.due = None;
        let tries = exchange.tries;
        match exchange.state {
            State::Asking(call) => self.ask_on(key, call),
            // A host that does not repeat its call is not there any more.
            State::Called(_) => self.end_exchange(key),
            State::Readying(connection, _, _) => self.give_up_accepting(key, connection),
            State::Accepting(connection, accepted, until) => {
                if self.now >= until {
                    self.give_up_accepting(key, connection);
                } else {
                    self.answer_on(key, accepted, until);
                }
            }
            State::Leaving { .. } if tries > LEAVING_TRIES => self.end_exchange(key),
            State::Leaving { orderly } => self.leave_on(key, orderly),
            State::Refused(_) | State::Over => self.forget_exchange(key),
            State::Taking(_) | State::Open(_) => {}
        }
    }
}
