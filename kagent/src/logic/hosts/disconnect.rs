//! The other host ended an exchange.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::Status;
use kagent_proto::setup::Body;

use crate::logic::tables::exchange::State;
use crate::logic::values::ids::ExchangeKey;

impl<F: Clone> Agent<F> {
    /// Handles DISCONNECT: whatever existed, nothing is left of it here afterwards.
    pub(crate) fn disconnected(&mut self, key: ExchangeKey, orderly: bool) {
        let from = key.side;
        self.send_frame(key, Body::Gone { from });
        self.lost(key, orderly);
    }

    /// Handles GONE: the other side does not know this exchange any more.
    pub(crate) fn gone(&mut self, key: ExchangeKey) {
        match self.state(key) {
            // It has not seen our frame yet; the next repetition tells it.
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
        // First, so that what ends below has no exchange to disconnect. This also ends the remote call.
        self.end_exchange(key);
        match state {
            State::Asking(call) => self.end_call(call, Status::TIMEOUT),
            State::Taking(connection)
            | State::Readying(connection, ..)
            | State::Accepting(connection, ..)
            | State::Open(connection) => self.connection_lost(connection, orderly),
            State::Called(_) | State::Disconnecting { .. } | State::Refused(_) | State::Over => {}
        }
    }
}
