//! Where callers wait for each other: the keys of the queues.

#![forbid(unsafe_code)]

use crate::logic::values::address::{Name, Spot};
use crate::logic::values::ids::{LinkId, Mac};

/// Where clients look for servers. A server whose NIC is on a link is at two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// For processes of this host.
    Near(Spot),
    /// For other hosts on a link: whose the NIC is they do not know.
    Far(LinkId, Name),
}

impl Place {
    /// The places of a server.
    pub(crate) fn of_wait(spot: Spot, link: Option<LinkId>) -> impl Iterator<Item = Place> + Clone {
        let far = link.map(|link| Place::Far(link, spot.name));
        std::iter::once(Place::Near(spot)).chain(far)
    }
}

/// Where a peer stands: who it is and whom it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pair {
    /// Both on this host: own place, wanted place.
    Near(Spot, Spot),
    /// One here, one on another host.
    Far {
        /// Their link.
        link: LinkId,
        /// The other host.
        host: Mac,
        /// Name of the one here.
        here: Name,
        /// Name of the other.
        there: Name,
        /// The one who stands at this place is the other.
        guest: bool,
    },
}

impl Pair {
    /// Of a process here, `here`, that wants `there` on another host.
    pub(crate) fn here(link: LinkId, host: Mac, here: Name, there: Name) -> Pair {
        Pair::Far {
            link,
            host,
            here,
            there,
            guest: false,
        }
    }

    /// Where the partner stands.
    pub(crate) fn mirrored(self) -> Pair {
        match self {
            Pair::Near(own, wanted) => Pair::Near(wanted, own),
            Pair::Far {
                link,
                host,
                here,
                there,
                guest,
            } => Pair::Far {
                link,
                host,
                here,
                there,
                guest: !guest,
            },
        }
    }
}
