//! Calls that wait for a peer: WAIT of a server, REQUEST of a client, and PEER.

#![forbid(unsafe_code)]

use kagent_proto::{
    Budget, Detail, PROVIDER_BYTES, Reason, Request, Status, WAITED_MAX, Wait, Waited,
};

use crate::logic::address::{Address, ConnectionPoint, Discriminator};
use crate::logic::agent::Agent;
use crate::logic::calls::{
    Ask, CallKind, Claim, FinalStatus, Initiator, Owner, PeerKey, QueueKey, RequestState,
};
use crate::logic::ids::Caller;
use crate::logic::meeting::End;
use crate::logic::message::{Denial, Outcome, attributes_agree};
use crate::logic::queues::deadline;

/// The server's side of the client/server model: waiting for a request (spec §3.8).
///
/// A server waits on a discriminator only while its call is pending; each request goes to the oldest wait. On
/// a link a discriminator belongs to one user at a time (`calls.rs`).
impl<F: Clone> Agent<F> {
    /// `Op::WAIT`: returns a matching queued request, or waits for one.
    pub(crate) fn wait(&mut self, caller: Caller, body: &Wait) -> Outcome {
        let point = ConnectionPoint::local(self.own_nic(caller, body.nic)?.address, &body.local);
        let link = self.link_of(body.nic);
        self.admit_call(caller)?;
        if let Some(link) = link {
            let claim = Claim::server(link, point.name);
            self.claims
                .claim(point.address.uid, claim, self.now, &mut self.accounts)?;
        }
        let queues = QueueKey::of_wait(point, link);
        let requests = queues
            .clone()
            .filter_map(|place| self.requests.oldest(&place));
        if let Some(request) = requests.min() {
            self.offer(request, caller, body.nic);
        } else if body.timeout_ms == 0 {
            return Err(Status::TIMEOUT.into());
        } else {
            let until = deadline(self.now, body.timeout_ms);
            let owner = Owner::Process(caller, body.nic);
            let key = self.keep_call(owner, CallKind::Wait(point, link), until);
            for place in queues {
                self.waits.push(place, key);
            }
        }
        Ok(())
    }
}

/// Maximum addresses and users that are checked for the cause of a `NO_MATCH`: applications retry in a loop.
const CHECKED_MAX: usize = 64;

/// The client's side of the client/server model: asking for a connection (spec §3.11).
///
/// ```text
///   REQUEST ──▶ Queued ───── a server waits ────▶ Held ──▶ CONNECTED, REJECTED
///                  │                                │
///              end of grace                      deadline
///                  ▼                                ▼
///       NO_MATCH, NOT_REACHABLE                  TIMEOUT
/// ```
///
/// With a grace period of 0 a request checks once. The grace period is for applications that start at the same
/// time: the server may need a moment to open its NIC and to wait (spec §17).
impl<F: Clone> Agent<F> {
    /// `Op::REQUEST`.
    pub(crate) fn request(&mut self, caller: Caller, body: &Request) -> Outcome {
        let initiator = self.initiator(caller, body)?;
        self.admit_call(caller)?;
        if let Some((link, host)) = self.remote_host(body.nic, &initiator) {
            let grace_ms = body.grace_ms.min(body.timeout_ms);
            let final_status = match grace_ms == body.timeout_ms {
                true => FinalStatus::TheirsOnceHeld,
                false => FinalStatus::Ours,
            };
            let ask = Ask::Request {
                grace_ms,
                final_status,
            };
            return self.ask(caller, body, initiator, (link, host), ask);
        }
        let place = QueueKey::Local(initiator.remote);
        let waiter = self.waits.oldest(&place);
        if waiter.is_none() && body.grace_ms == 0 {
            return Err(self.no_match(&initiator.remote));
        }
        let timeout = deadline(self.now, body.timeout_ms);
        let grace = deadline(self.now, body.grace_ms.min(body.timeout_ms));
        let kind = CallKind::Request(initiator, RequestState::Queued { timeout });
        let key = self.keep_call(Owner::Process(caller, body.nic), kind, grace);
        self.requests.push(place, key);
        let wait = waiter.and_then(|wait| self.take_call(wait));
        if let Some(Owner::Process(server, nic)) = wait.map(|wait| wait.owner) {
            self.offer(key, server, nic);
        }
        Ok(())
    }

    /// The part of a `Request` that is kept, for a client or a peer.
    pub(crate) fn initiator(&self, caller: Caller, body: &Request) -> Result<Initiator, Status> {
        let address = self.own_nic(caller, body.nic)?.address;
        Ok(Initiator {
            vi: body.vi,
            attributes: body.attributes,
            segment_bytes: body.segment_bytes,
            local: ConnectionPoint::local(address, &body.local),
            remote: ConnectionPoint::remote(address, &body.remote),
        })
    }

    /// The result if no server waits at a connection point, with the likely cause.
    pub(crate) fn no_match(&self, point: &ConnectionPoint) -> Denial {
        let (status, reason) = if self.addresses.contains_key(&point.address) {
            (Status::NO_MATCH, Reason::NO_SERVER)
        } else {
            (Status::NOT_REACHABLE, Reason::NO_SUCH_ADDRESS)
        };
        let waits = |address: Address| {
            let name = point.name;
            let place = QueueKey::Local(ConnectionPoint { address, name });
            self.waits.oldest(&place).is_some()
        };
        let user = point.address.uid;
        let first = Address::new(user, &[0; PROVIDER_BYTES], &[]);
        let own = self.addresses.range(first..).map(|(address, _)| *address);
        let mut own = own.take_while(|address| address.uid == user);
        let others = self.accounts.users_with(Budget::Processes);
        let others = others.filter(|other| *other != user);
        let mut others = others.map(|uid| Address {
            uid,
            ..point.address
        });
        let reason = if own.by_ref().take(CHECKED_MAX).any(waits) {
            Reason::ELSEWHERE
        } else if others.by_ref().take(CHECKED_MAX).any(waits) {
            Reason::OTHER_USER
        } else {
            reason
        };
        let detail = Detail::new(reason);
        let waited = (reason == Reason::NO_SERVER)
            .then(|| Waited::new(detail, self.waited_near(point).map(Discriminator::bytes)))
            .flatten();
        Denial {
            waited: waited.map(Box::new),
            ..Denial::new(status, detail)
        }
    }

    /// The discriminators on which servers wait at the same address, which is that of the same user, on both sides of this one in
    /// the agent's order: by length, then by bytes.
    fn waited_near(&self, point: &ConnectionPoint) -> impl Iterator<Item = &Discriminator> {
        fn name_at(place: &QueueKey, address: Address) -> Option<&Discriminator> {
            match place {
                QueueKey::Local(found) if found.address == address => Some(&found.name),
                _ => None,
            }
        }
        let address = point.address;
        let (before, after) = self.waits.around(QueueKey::Local(*point));
        let each = WAITED_MAX / 2;
        let before = before
            .map_while(move |place| name_at(place, address))
            .take(each);
        before.chain(
            after
                .map_while(move |place| name_at(place, address))
                .take(each),
        )
    }
}

/// The peer-to-peer model: two requests that name each other (spec §9.3).
///
/// There is no accept step, so the agent compares the attributes. Peer requests and client requests use
/// different queues and never match each other.
impl<F: Clone> Agent<F> {
    /// `Op::PEER`.
    pub(crate) fn peer(&mut self, caller: Caller, body: &Request) -> Outcome {
        let own = self.initiator(caller, body)?;
        self.admit_call(caller)?;
        let far = self.remote_host(body.nic, &own);
        if let Some((link, host)) = far {
            let claim = Claim::peer(link, host, own.local.name, own.remote.name);
            let user = own.local.address.uid;
            self.claims
                .claim(user, claim, self.now, &mut self.accounts)?;
        }
        // Matched before it is queued: a request that mirrors itself needs a second, equal one.
        let pair = match far {
            None => PeerKey::Local(own.local, own.remote),
            Some((link, host)) if self.decides(link, host) => {
                PeerKey::here(link, host, own.local.name, own.remote.name)
            }
            Some(to) => return self.ask(caller, body, own, to, Ask::Peer),
        };
        let peer = self.peers.oldest(&pair.mirrored());
        let Some(peer) = peer.and_then(|key| self.take_call(key)) else {
            let until = deadline(self.now, body.timeout_ms);
            let owner = Owner::Process(caller, body.nic);
            let key = self.keep_call(owner, CallKind::Peer(own, pair), until);
            self.peers.push(pair, key);
            return Ok(());
        };
        let (other, peer_caller, peer_nic) = match (peer.kind, peer.owner) {
            (CallKind::RemotePeer(remote_call, _), _) => {
                return Ok(self.meet_remote(caller, body.nic, &own, &remote_call)?);
            }
            (CallKind::Peer(other, _), Owner::Process(caller, nic)) => (other, caller, nic),
            _ => return Err(Status::INVALID.into()),
        };
        if let Err(conflict) = attributes_agree(&other.attributes, &own.attributes) {
            self.done(peer_caller, conflict);
            return Err(conflict.into());
        }
        let first = End::of((peer_caller, peer_nic), self.fresh_connection(), &other);
        let second = End::of((caller, body.nic), self.fresh_connection(), &own);
        self.join([first, second]);
        Ok(())
    }
}
