//! Whose a discriminator on a link is.
//!
//! Other hosts know neither users nor plug-ins, so a discriminator on a link is the same for all users of
//! this host. Among the processes of one user there is no reservation (spec §9.1). Among users it belongs to
//! the first one that waits on it: as long as a call of that user waits there, and for a grace afterwards,
//! since a server that accepts one request at a time is not waiting in between. A user that has no endpoint
//! left on the link has no discriminators there either, so the server of another user can follow at once.
//!
//! Peers are named by both of their discriminators and the other host; that pair belongs to a user in the
//! same way.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use kagent_proto::{Budget, Detail, Reason, Status};

use crate::logic::limits::NAME_GRACE_MS;
use crate::logic::tables::accounts::Accounts;
use crate::logic::tables::call::{Ask, CallKind};
use crate::logic::tables::place::Pair;
use crate::logic::values::address::Name;
use crate::logic::values::denial::{Denial, Outcome};
use crate::logic::values::ids::{LinkId, Mac};
use crate::logic::values::timer::{Timers, deadline};

/// Something on a link that one user at a time can have. The link comes first, for [`Claims::drop_user`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    link: LinkId,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// Servers at this discriminator.
    Server(Name),
    /// A peer here of a peer there: the other host, the name here, the name there.
    Peer(Mac, Name, Name),
}

impl Claim {
    pub(crate) fn server(link: LinkId, name: Name) -> Self {
        let what = What::Server(name);
        Claim { link, what }
    }

    pub(crate) fn peer(link: LinkId, host: Mac, here: Name, there: Name) -> Self {
        let what = What::Peer(host, here, there);
        Claim { link, what }
    }

    /// What a call claims while it waits.
    pub(crate) fn of(kind: &CallKind) -> Option<Self> {
        match kind {
            CallKind::Wait(spot, Some(link)) => Some(Self::server(*link, spot.name)),
            CallKind::Peer(
                _,
                Pair::Far {
                    link,
                    host,
                    here,
                    there,
                    ..
                },
            ) => Some(Self::peer(*link, *host, *here, *there)),
            CallKind::Asking(seeker, exchange, Ask::Peer) => Some(Self::peer(
                exchange.link,
                exchange.host,
                seeker.local.name,
                seeker.remote.name,
            )),
            _ => None,
        }
    }
}

/// Who has it.
#[derive(Debug)]
struct Holder {
    user: u32,
    /// Calls that wait there.
    calls: usize,
    /// When it becomes free, if no call waits there.
    until: Option<u64>,
}

/// All discriminators that belong to somebody.
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

    /// When the next one becomes free.
    pub(crate) fn next(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Whose they are, and how many calls wait on each, for tests.
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

    /// A user wants to wait at a place on a link. It is his from now on, for the grace at least.
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

    /// A call waits at a place that its user has claimed.
    pub(crate) fn hold(&mut self, claim: Claim) {
        if let Some(holder) = self.holders.get_mut(&claim) {
            self.timers.stop(holder.until.take(), claim);
            holder.calls += 1;
        }
    }

    /// And waits no more.
    pub(crate) fn let_go(&mut self, claim: Claim, now: u64) {
        if let Some(holder) = self.holders.get_mut(&claim) {
            holder.calls -= 1;
            self.begin_grace(claim, now);
        }
    }

    /// The time after which it is free begins anew, unless a call waits there.
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

    /// Frees those whose grace is over.
    pub(crate) fn free_due(&mut self, now: u64, accounts: &mut Accounts) {
        while let Some(claim) = self.timers.pop_due(now) {
            self.free(claim, accounts);
        }
    }

    /// A user has no endpoint left on a link.
    pub(crate) fn free_all_of(&mut self, user: u32, link: LinkId, accounts: &mut Accounts) {
        let first = (user, Claim::server(link, Name::new(&[])));
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
