//! Ownership of discriminators on links.
//!
//! Other hosts know neither users nor plug-ins, so a discriminator on a link is shared by all users of this
//! host. Within one user nothing is reserved (spec §9.1). Among users, the first one to wait on a
//! discriminator owns it: as long as one of its calls waits there, and for a grace period afterwards, since a
//! server that accepts one request at a time is not waiting in between. When a user has no endpoint left on a
//! link, its discriminators are free at once, so that another user can take over.
//!
//! A pair of peers is identified by both discriminators and the other host; a user owns the pair in the same
//! way.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use kagent_proto::{Budget, Detail, Reason, Status};

use crate::logic::limits::NAME_GRACE_MS;
use crate::logic::tables::accounts::Accounts;
use crate::logic::tables::call::{Ask, CallKind};
use crate::logic::tables::queue_key::PeerKey;
use crate::logic::values::address::Discriminator;
use crate::logic::values::denial::{Denial, Outcome};
use crate::logic::values::host::HostAddress;
use crate::logic::values::ids::LinkId;
use crate::logic::values::timer::{Timers, deadline};

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
                PeerKey::Far {
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

/// All claims.
#[derive(Debug)]
pub(crate) struct Claims {
    holders: BTreeMap<Claim, Holder>,
    by_user: BTreeSet<(u32, Claim)>,
    timers: Timers<Claim>,
}

impl Claims {
    pub(crate) fn new() -> Self {
        Claims {
            holders: BTreeMap::new(),
            by_user: BTreeSet::new(),
            timers: Timers::new(),
        }
    }

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
                return Err(Denial {
                    status: Status::RESOURCE,
                    detail: Some(detail),
                });
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
        let his = self.by_user.range(first..);
        let his: Vec<Claim> = his
            .take_while(|(owner, claim)| *owner == user && claim.link == link)
            .map(|(_, claim)| *claim)
            .collect();
        for claim in his {
            self.free(claim, accounts);
        }
    }
}
