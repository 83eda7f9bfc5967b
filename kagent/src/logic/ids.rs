//! Identifiers of the records in the tables, and connection keys.

#![forbid(unsafe_code)]

use kagent_proto::setup::Side;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::logic::address::HostAddress;

/// The runtime's identifier of a process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The recipient of a reply and the id of the call it answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    pub(crate) id: u64,
}

/// Identifier of a NIC.
pub(crate) type NicId = u64;

/// Identifier of a waiting call; grows with time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallKey(pub(crate) u64);

/// Identifier of one side of a connection.
pub(crate) type ConnectionId = u64;

/// Number of a link: that of its interface, or for UDP one that the runtime chooses.
pub type LinkId = u32;

/// Identifier of an endpoint.
pub(crate) type EndpointId = u64;

/// Identifier of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExchangeKey {
    pub(crate) link: LinkId,
    /// The remote host.
    pub(crate) host: HostAddress,
    pub(crate) number: u64,
    /// The side of this host.
    pub(crate) side: Side,
}

impl ExchangeKey {
    pub(crate) fn new(link: LinkId, host: HostAddress, number: u64, side: Side) -> Self {
        Self {
            link,
            host,
            number,
            side,
        }
    }
}

/// Identifier of a connection before both sides are adopted: the user and the key.
pub(crate) type HalfName = (u32, u64);

/// The source of connection keys: the key stream of ChaCha20, started from a secret seed.
///
/// Both ends of a connection learn its key. A user who has seen many keys must not be able to predict those of
/// others, which rules out small statistical generators. The seed is an argument, so that a test can repeat a
/// run.
#[derive(Debug)]
pub(crate) struct Keys(ChaCha20Rng);

impl Keys {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self(ChaCha20Rng::from_seed(seed))
    }

    /// The next key; never 0, so that 0 can mean "none" elsewhere.
    pub(crate) fn next_key(&mut self) -> u64 {
        loop {
            let key = self.0.next_u64();
            if key != 0 {
                return key;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_keys() {
        let (mut a, mut b) = (Keys::new([7; 32]), Keys::new([7; 32]));
        let keys: std::collections::BTreeSet<u64> = (0..1000).map(|_| a.next_key()).collect();
        assert_eq!(keys.len(), 1000);
        assert!(keys.contains(&b.next_key()));
        assert!(!keys.contains(&Keys::new([8; 32]).next_key()));
    }
}
