//! Tokens of the poll set: the source of each event.

#![forbid(unsafe_code)]

use nix::sys::epoll::{EpollEvent, EpollFlags};

use crate::{ClientId, LinkId};

/// Number of a device process; never reused.
pub(crate) type DeviceId = u64;

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The socket that processes connect to.
    Listener,
    /// The signalfd.
    Signal,
    /// The socket of a process.
    Socket(ClientId),
    /// The pidfd of a process.
    Pidfd(ClientId),
    /// The setup socket of a link.
    Link(LinkId),
    /// The control socket of a device process.
    Device(DeviceId),
    /// The control socket of the helper of a user.
    Helper(u32),
}

/// The kind is in the lowest bits, the number above.
const KIND_BITS: u32 = 3;

impl Token {
    /// The event to add to the poll set.
    pub(crate) fn event(self, events: EpollFlags) -> EpollEvent {
        let (kind, number) = match self {
            Token::Listener => (0, 0),
            Token::Signal => (1, 0),
            Token::Socket(client) => (2, client.0),
            Token::Pidfd(client) => (3, client.0),
            Token::Link(link) => (4, u64::from(link)),
            Token::Device(device) => (5, device),
            Token::Helper(user) => (6, u64::from(user)),
        };
        EpollEvent::new(events, number << KIND_BITS | kind)
    }

    /// The token of a pending event.
    pub(crate) fn of(event: &EpollEvent) -> Self {
        let number = event.data() >> KIND_BITS;
        match event.data() & ((1 << KIND_BITS) - 1) {
            0 => Token::Listener,
            1 => Token::Signal,
            2 => Token::Socket(ClientId(number)),
            3 => Token::Pidfd(ClientId(number)),
            4 => Token::Link(number as LinkId),
            5 => Token::Device(number),
            _ => Token::Helper(number as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_carry_their_token() {
        for token in [
            Token::Listener,
            Token::Signal,
            Token::Socket(ClientId(1 << 60)),
            Token::Pidfd(ClientId(7)),
            Token::Link(LinkId::MAX),
            Token::Device(9),
            Token::Helper(u32::MAX),
        ] {
            assert_eq!(Token::of(&token.event(EpollFlags::EPOLLIN)), token);
        }
    }
}
