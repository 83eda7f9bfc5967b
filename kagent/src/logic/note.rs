//! Text of the debug log for calls, exchanges and connections. Nothing is formatted unless the runtime asks
//! for it.

#![forbid(unsafe_code)]

use std::fmt;

use crate::logic::tables::call::{Call, CallKind, Owner};
use crate::logic::tables::exchange::State;
use crate::logic::values::address::{ConnectionPoint, Discriminator};
use crate::logic::values::ids::{ClientId, ExchangeKey};

/// Describes a call that starts to wait.
pub(crate) fn describe(call: &Call, user_of: impl Fn(ClientId) -> u32) -> String {
    let who = match call.owner {
        Owner::Process(caller, _) => {
            let user = user_of(caller.client);
            format!("client {} of user {user}", caller.client.0)
        }
        Owner::Remote(exchange) => format!("{}", Shown(exchange)),
    };
    let what = match &call.kind {
        CallKind::Wait(point, None) => format!("waits at {}", Shown(*point)),
        CallKind::Wait(point, Some(link)) => {
            format!("waits at {} and on interface {link}", Shown(*point))
        }
        CallKind::Request(initiator, _) => format!("requests {}", Shown(initiator.remote)),
        CallKind::Peer(initiator, _) => format!(
            "is peer {} of {}",
            Shown(initiator.local),
            Shown(initiator.remote)
        ),
        CallKind::Asking(initiator, exchange, _) => {
            format!(
                "asks for {} by {}",
                Shown(initiator.remote),
                Shown(*exchange)
            )
        }
        CallKind::RemoteRequest(remote_call, _) => {
            format!("requests {}", Shown(remote_call.remote))
        }
        CallKind::RemotePeer(remote_call, _) => {
            format!(
                "is peer {} of {}",
                Shown(remote_call.local),
                Shown(remote_call.remote)
            )
        }
        CallKind::Search(_) => "asks who is on the link".to_owned(),
    };
    format!("{who} {what}")
}

/// Formats a value for people.
pub(crate) struct Shown<T>(pub(crate) T);

impl fmt::Display for Shown<Discriminator> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(self.0.bytes()) {
            Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                write!(to, "\"{text}\"")
            }
            _ => hexadecimal(self.0.bytes(), to),
        }
    }
}

impl fmt::Display for Shown<ConnectionPoint> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} at ", Shown(self.0.name))?;
        hexadecimal(self.0.address.host(), to)
    }
}

/// Shows the side, the other host and half of the number: whoever knows the whole number could end the
/// exchange.
impl fmt::Display for Shown<ExchangeKey> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, side) = (self.0.number >> 32, self.0.side);
        let host = self.0.host;
        write!(to, "exchange {number:08x} with {host} ({side:?})")
    }
}

impl fmt::Display for Shown<State> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            State::Asking(call) => write!(to, "asking (call {})", call.0),
            State::Called(call) => write!(to, "called (call {})", call.0),
            State::Taking(name) => write!(to, "taking (connection {name})"),
            State::Readying(name, ..) => write!(to, "readying (connection {name})"),
            State::Accepting(name, ..) => write!(to, "accepting (connection {name})"),
            State::Open(name) => write!(to, "open (connection {name})"),
            State::Disconnecting { orderly: true } => write!(to, "disconnecting"),
            State::Disconnecting { orderly: false } => {
                write!(to, "disconnecting, its process died")
            }
            State::Refused(why) => write!(to, "refused ({why:?})"),
            State::Over => write!(to, "over"),
        }
    }
}

fn hexadecimal(bytes: &[u8], to: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (place, byte) in bytes.iter().enumerate() {
        let colon = if place == 0 { "" } else { ":" };
        write!(to, "{colon}{byte:02x}")?;
    }
    Ok(())
}
