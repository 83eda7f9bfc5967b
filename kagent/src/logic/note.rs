//! Calls, exchanges and connections as lines of the debug log. Nothing is formatted unless the runtime wants
//! it.

#![forbid(unsafe_code)]

use std::fmt;

use crate::logic::tables::call::{Call, CallKind, Owner};
use crate::logic::tables::exchange::State;
use crate::logic::values::address::{Name, Spot};
use crate::logic::values::ids::{ClientId, ExchangeKey, Mac};

/// A call has begun to wait.
pub(crate) fn describe(call: &Call, user_of: impl Fn(ClientId) -> u32) -> String {
    let who = match call.owner {
        Owner::Process(caller, _) => {
            let user = user_of(caller.client);
            format!("client {} of user {user}", caller.client.0)
        }
        Owner::Guest(exchange) => format!("{}", Shown(exchange)),
    };
    let what = match &call.kind {
        CallKind::Wait(spot, None) => format!("waits at {}", Shown(*spot)),
        CallKind::Wait(spot, Some(link)) => {
            format!("waits at {} and on interface {link}", Shown(*spot))
        }
        CallKind::Request(seeker, _) => format!("requests {}", Shown(seeker.remote)),
        CallKind::Peer(seeker, _) => format!(
            "is peer {} of {}",
            Shown(seeker.local),
            Shown(seeker.remote)
        ),
        CallKind::Asking(seeker, exchange, _) => {
            format!("asks for {} by {}", Shown(seeker.remote), Shown(*exchange))
        }
        CallKind::Guest(guest, _) => format!("requests {}", Shown(guest.remote)),
        CallKind::GuestPeer(guest, _) => {
            format!("is peer {} of {}", Shown(guest.local), Shown(guest.remote))
        }
        CallKind::Search(_) => "asks who is on the link".to_owned(),
    };
    format!("{who} {what}")
}

/// A value in the form in which people read it.
pub(crate) struct Shown<T>(pub(crate) T);

impl fmt::Display for Shown<Mac> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(&self.0, to)
    }
}

impl fmt::Display for Shown<Name> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(self.0.bytes()) {
            Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                write!(to, "\"{text}\"")
            }
            _ => hexadecimal(self.0.bytes(), to),
        }
    }
}

impl fmt::Display for Shown<Spot> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} at ", Shown(self.0.name))?;
        hexadecimal(self.0.address.host(), to)
    }
}

/// By its side, its number and the other host; only who knows the number can end it, so part of it is shown.
impl fmt::Display for Shown<ExchangeKey> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, side) = (self.0.number >> 32, self.0.side);
        let host = Shown(self.0.host);
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
            State::Leaving { orderly: true } => write!(to, "leaving"),
            State::Leaving { orderly: false } => write!(to, "leaving, its process died"),
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
