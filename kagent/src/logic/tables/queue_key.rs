//! Keys of the queues in which calls wait for a partner.

#![forbid(unsafe_code)]

use crate::logic::values::address::{ConnectionPoint, Discriminator};
use crate::logic::values::host::HostAddress;
use crate::logic::values::ids::LinkId;

/// Where clients look for servers. A server whose NIC is on a link is in two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueueKey {
    /// For processes of this host.
    Near(ConnectionPoint),
    /// For other hosts on a link. They do not know the user of a NIC.
    Far(LinkId, Discriminator),
}

impl QueueKey {
    /// The keys of a server.
    pub(crate) fn of_wait(
        point: ConnectionPoint,
        link: Option<LinkId>,
    ) -> impl Iterator<Item = QueueKey> + Clone {
        let far = link.map(|link| QueueKey::Far(link, point.name));
        std::iter::once(QueueKey::Near(point)).chain(far)
    }
}

/// Key of a peer request: who it is and whom it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerKey {
    /// Both on this host: own and wanted connection point.
    Near(ConnectionPoint, ConnectionPoint),
    /// One here, one on another host.
    Far {
        /// Their link.
        link: LinkId,
        /// The other host.
        host: HostAddress,
        /// Discriminator of the local peer.
        here: Discriminator,
        /// Discriminator of the remote peer.
        there: Discriminator,
        /// The call with this key is the remote one.
        from_remote: bool,
    },
}

impl PeerKey {
    /// Key of a local peer `here` that asks for `there` on another host.
    pub(crate) fn here(
        link: LinkId,
        host: HostAddress,
        here: Discriminator,
        there: Discriminator,
    ) -> PeerKey {
        PeerKey::Far {
            link,
            host,
            here,
            there,
            from_remote: false,
        }
    }

    /// The key of its partner.
    pub(crate) fn mirrored(self) -> PeerKey {
        match self {
            PeerKey::Near(own, wanted) => PeerKey::Near(wanted, own),
            PeerKey::Far {
                link,
                host,
                here,
                there,
                from_remote,
            } => PeerKey::Far {
                link,
                host,
                here,
                there,
                from_remote: !from_remote,
            },
        }
    }
}
