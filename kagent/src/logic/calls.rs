//! Calls that wait for a peer (WAIT, REQUEST, PEER, and the same from other hosts), the keys of their queues,
//! and the claims that they hold.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use kagent_proto::{Attributes, Budget, Detail, Point, Reason, Status};

use crate::logic::address::{ConnectionPoint, Discriminator, HostAddress};
use crate::logic::budgets::{Accounts, NAME_GRACE_MS};
use crate::logic::ids::{Caller, ConnectionId, ExchangeKey, LinkId, NicId};
use crate::logic::message::{Denial, Outcome};
use crate::logic::queues::{Timers, deadline};

/// The owner of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    /// A process, with a NIC.
    Process(Caller, NicId),
    /// Another host.
    Remote(ExchangeKey),
}

/// A waiting call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) owner: Owner,
    pub(crate) kind: CallKind,
    /// Deadline of the running timer.
    pub(crate) deadline: Option<u64>,
}

/// What a call waits for.
#[derive(Debug)]
pub(crate) enum CallKind {
    /// A server at this connection point; on a link, also for other hosts.
    Wait(ConnectionPoint, Option<LinkId>),
    /// A client request.
    Request(Initiator, RequestState),
    /// A peer request, in the queue with this key.
    Peer(Initiator, PeerKey),
    /// A client or peer request to another host.
    Asking(Initiator, ExchangeKey, Ask),
    /// A client request from another host.
    RemoteRequest(RemoteCall, RequestState),
    /// A peer request from another host, in the queue with this key.
    RemotePeer(RemoteCall, PeerKey),
    /// A search for the hosts on a link.
    Search(Search),
}

/// The side that names its peer: a client, or one of two peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Initiator {
    pub(crate) vi: u64,
    pub(crate) attributes: Attributes,
    pub(crate) segment_bytes: u32,
    pub(crate) local: ConnectionPoint,
    pub(crate) remote: ConnectionPoint,
}

/// A client or peer request from another host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteCall {
    pub(crate) exchange: ExchangeKey,
    pub(crate) endpoint: u16,
    pub(crate) vi: u32,
    pub(crate) attributes: Attributes,
    /// Its own discriminator.
    pub(crate) local: Discriminator,
    /// The requested discriminator.
    pub(crate) remote: Discriminator,
    /// Deadline of the remote host.
    pub(crate) until: Option<u64>,
}

impl RemoteCall {
    /// Key of the queue in which it waits for a server.
    pub(crate) fn queue_key(&self) -> QueueKey {
        QueueKey::Remote(self.exchange.link, self.remote)
    }

    /// Its connection point, as reported to the server.
    pub(crate) fn point(&self) -> Point {
        let host = self.exchange.host.bytes();
        let mut point = Point {
            host_len: host.len() as u16,
            discriminator_len: self.local.bytes().len() as u16,
            host: [0; kagent_proto::HOST_BYTES_MAX],
            discriminator: [0; kagent_proto::DISCRIMINATOR_BYTES_MAX],
        };
        point.host[..host.len()].copy_from_slice(host);
        point.discriminator[..self.local.bytes().len()].copy_from_slice(self.local.bytes());
        point
    }
}

/// Progress of a client request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestState {
    /// No server is waiting yet; the timer is the end of the grace period. The deadline of the whole request
    /// is kept.
    Queued {
        /// Deadline of the whole request.
        timeout: Option<u64>,
    },
    /// A server holds it and will accept or reject; the timer is the deadline.
    Held {
        /// The server's identifier of the request.
        connection: ConnectionId,
        /// End of the grace period, in case the server does not take the request.
        grace: Option<u64>,
    },
}

/// A call to another host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    /// A server, within the grace period.
    Request {
        /// In milliseconds.
        grace_ms: u64,
        /// Which host decides the final status at the deadline.
        final_status: FinalStatus,
    },
    /// A peer.
    Peer,
}

/// Which host decides the status of a call at its deadline. If the grace period ends at the same time, only
/// the other host knows whether a server held the request (TIMEOUT) or none was waiting (NO_MATCH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalStatus {
    /// This host.
    Ours,
    /// The other host, once it reports that it holds the request.
    TheirsOnceHeld,
    /// The other host: it holds the request.
    Theirs,
}

/// A search in progress.
#[derive(Debug)]
pub(crate) struct Search {
    pub(crate) link: LinkId,
    pub(crate) number: u64,
    pub(crate) round: u32,
    pub(crate) found: BTreeSet<HostAddress>,
}

/// Key of the queue in which clients find servers. A server whose NIC is on a link is in two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QueueKey {
    /// For processes of this host.
    Local(ConnectionPoint),
    /// For other hosts on a link, which do not know the user of a NIC.
    Remote(LinkId, Discriminator),
}

impl QueueKey {
    /// The keys of a server.
    pub(crate) fn of_wait(
        point: ConnectionPoint,
        link: Option<LinkId>,
    ) -> impl Iterator<Item = QueueKey> + Clone {
        let far = link.map(|link| QueueKey::Remote(link, point.name));
        std::iter::once(QueueKey::Local(point)).chain(far)
    }
}

/// Key of a peer request: its own and the requested connection point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerKey {
    /// Both on this host: own and requested connection point.
    Local(ConnectionPoint, ConnectionPoint),
    /// One on this host, one on a remote host.
    Remote {
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
    /// Key of a local peer `here` that requests `there` on another host.
    pub(crate) fn here(
        link: LinkId,
        host: HostAddress,
        here: Discriminator,
        there: Discriminator,
    ) -> PeerKey {
        PeerKey::Remote {
            link,
            host,
            here,
            there,
            from_remote: false,
        }
    }

    /// The key of the matching request.
    pub(crate) fn mirrored(self) -> PeerKey {
        match self {
            PeerKey::Local(own, wanted) => PeerKey::Local(wanted, own),
            PeerKey::Remote {
                link,
                host,
                here,
                there,
                from_remote,
            } => PeerKey::Remote {
                link,
                host,
                here,
                there,
                from_remote: !from_remote,
            },
        }
    }
}

/// What one user can own on a link. The link is the first field so that [`Claims::free_all_of`] can scan a
/// range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    link: LinkId,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// Servers at this discriminator.
    Server(Discriminator),
    /// A pair of peers: the other host, the local and the remote discriminator.
    Peer(HostAddress, Discriminator, Discriminator),
}

impl Claim {
    pub(crate) fn server(link: LinkId, name: Discriminator) -> Self {
        let what = What::Server(name);
        Claim { link, what }
    }

    pub(crate) fn peer(
        link: LinkId,
        host: HostAddress,
        here: Discriminator,
        there: Discriminator,
    ) -> Self {
        let what = What::Peer(host, here, there);
        Claim { link, what }
    }

    /// The claim that a call holds while it waits.
    pub(crate) fn of(kind: &CallKind) -> Option<Self> {
        match kind {
            CallKind::Wait(point, Some(link)) => Some(Self::server(*link, point.name)),
            CallKind::Peer(
                _,
                PeerKey::Remote {
                    link,
                    host,
                    here,
                    there,
                    ..
                },
            ) => Some(Self::peer(*link, *host, *here, *there)),
            CallKind::Asking(initiator, exchange, Ask::Peer) => Some(Self::peer(
                exchange.link,
                exchange.host,
                initiator.local.name,
                initiator.remote.name,
            )),
            _ => None,
        }
    }
}

/// The owner of a claim.
#[derive(Debug)]
struct Holder {
    user: u32,
    /// Number of calls that wait on it.
    calls: usize,
    /// When it expires, if no call waits.
    until: Option<u64>,
}

/// Ownership of discriminators on links.
///
/// Other hosts know neither users nor plug-ins, so all users of this host share the discriminators on a link.
/// Within one user nothing is reserved (spec §9.1). Among users, the first one to wait on a discriminator owns
/// it: while one of its calls waits there, and for a grace period afterwards, since a server that accepts one
/// request at a time does not wait in between. When a user has no endpoint left on a link, its discriminators
/// are free at once, so that another user can take over.
///
/// A pair of peers is identified by both discriminators and the other host; a user owns the pair in the same
/// way.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    holders: BTreeMap<Claim, Holder>,
    by_user: BTreeSet<(u32, Claim)>,
    timers: Timers<Claim>,
}

impl Claims {
    pub(crate) fn len(&self) -> usize {
        self.holders.len()
    }

    /// The next expiry.
    pub(crate) fn next(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Claims with their owners and numbers of waiting calls, for tests.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Claim, u32, usize)> {
        let holders = self.holders.iter();
        holders.map(|(claim, holder)| (*claim, holder.user, holder.calls))
    }

    fn take(&mut self, claim: Claim) -> Option<u32> {
        let holder = self.holders.remove(&claim)?;
        self.timers.stop(holder.until, claim);
        self.by_user.remove(&(holder.user, claim));
        Some(holder.user)
    }

    /// Takes a claim for a user, for the grace period at least. Fails if another user owns it.
    pub(crate) fn claim(
        &mut self,
        user: u32,
        claim: Claim,
        now: u64,
        accounts: &mut Accounts,
    ) -> Outcome {
        if let Some(holder) = self.holders.get(&claim) {
            if holder.user != user {
                let detail = Detail {
                    user: holder.user,
                    limit: NAME_GRACE_MS,
                    ..Detail::new(Reason::NAME_TAKEN)
                };
                return Err(Denial::new(Status::RESOURCE, detail));
            }
        } else {
            accounts.admit(user, Budget::Names, 1)?;
            accounts.charge(user, Budget::Names, 1);
            let holder = Holder {
                user,
                calls: 0,
                until: None,
            };
            self.holders.insert(claim, holder);
            self.by_user.insert((user, claim));
        }
        self.begin_grace(claim, now);
        Ok(())
    }

    /// A call starts to wait on a claim of its user.
    pub(crate) fn hold(&mut self, claim: Claim) {
        if let Some(holder) = self.holders.get_mut(&claim) {
            self.timers.stop(holder.until.take(), claim);
            holder.calls += 1;
        }
    }

    /// A call stopped waiting.
    pub(crate) fn release(&mut self, claim: Claim, now: u64) {
        if let Some(holder) = self.holders.get_mut(&claim) {
            holder.calls -= 1;
            self.begin_grace(claim, now);
        }
    }

    /// Restarts the grace period, unless a call waits.
    fn begin_grace(&mut self, claim: Claim, now: u64) {
        let until = deadline(now, NAME_GRACE_MS);
        if let Some(holder) = self.holders.get_mut(&claim)
            && holder.calls == 0
        {
            self.timers.stop(holder.until, claim);
            holder.until = until;
            self.timers.start(until, claim);
        }
    }

    fn free(&mut self, claim: Claim, accounts: &mut Accounts) {
        if let Some(user) = self.take(claim) {
            accounts.release(user, Budget::Names, 1);
        }
    }

    /// Frees expired claims.
    pub(crate) fn free_due(&mut self, now: u64, accounts: &mut Accounts) {
        while let Some(claim) = self.timers.pop_due(now) {
            self.free(claim, accounts);
        }
    }

    /// Frees the claims of a user who has no endpoint left on a link.
    pub(crate) fn free_all_of(&mut self, user: u32, link: LinkId, accounts: &mut Accounts) {
        let first = (user, Claim::server(link, Discriminator::new(&[])));
        let owned = self.by_user.range(first..);
        let owned: Vec<Claim> = owned
            .take_while(|(owner, claim)| *owner == user && claim.link == link)
            .map(|(_, claim)| *claim)
            .collect();
        for claim in owned {
            self.free(claim, accounts);
        }
    }
}
