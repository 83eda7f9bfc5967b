//! The other host has left an exchange.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::Status;
use vipl_wire::setup::Body;

use crate::logic::tables::exchange::State;
use crate::logic::values::ids::ExchangeKey;

impl<F: Clone> Agent<F> {
    /// DISCONNECT: the other side has left. Whatever there was, nothing is left of it here afterwards.
    pub(crate) fn disconnected(&mut self, key: ExchangeKey, orderly: bool) {
        let from = key.side;
        self.send_frame(key, Body::Gone { from });
        self.lost(key, orderly);
    }

    /// GONE: the other side knows nothing of this exchange any more.
    pub(crate) fn gone(&mut self, key: ExchangeKey) {
        match self.state(key) {
            // It has not heard of it yet; the next repetition tells it.
            Some(State::Asking(_) | State::Called(_) | State::Readying(..)) => {}
            _ => self.lost(key, false),
        }
    }

    fn lost(&mut self, key: ExchangeKey, orderly: bool) {
        let Some(state) = self.state(key) else {
            return;
        };
        if matches!(state, State::Refused(_) | State::Over) {
            return;
        }
        // First, so that what ends now has no exchange to leave. A guest's call ends here.
        self.end_exchange(key);
        match state {
            State::Asking(call) => self.end_call(call, Status::TIMEOUT),
            State::Taking(connection)
            | State::Readying(connection, ..)
            | State::Accepting(connection, ..)
            | State::Open(connection) => self.lose(connection, orderly),
            State::Called(_) | State::Leaving { .. } | State::Refused(_) | State::Over => {}
        }
    }
}
