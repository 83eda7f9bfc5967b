//! How two hosts part: DISCONNECT, repeated until a GONE comes or nobody seems to be there.

#![forbid(unsafe_code)]

use kagent_proto::Status;
use vipl_wire::setup::Body;

use crate::agent::Agent;
use crate::exchange::{ExchangeKey, State};

impl<F: Clone> Agent<F> {
    /// This side leaves, whatever the exchange has come to.
    pub(crate) fn leave(&mut self, key: ExchangeKey, orderly: bool) {
        self.set_exchange(key, State::Leaving { orderly }, None);
        self.leave_on(key, orderly);
    }

    /// Says so, the first time or again.
    pub(crate) fn leave_on(&mut self, key: ExchangeKey, orderly: bool) {
        let from = key.side;
        self.send_repeated(key, Body::Disconnect { from, orderly });
    }

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
