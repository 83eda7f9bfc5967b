//! Calls of other hosts: the answerer's side of an exchange. A guest stands in the same queues as processes
//! do, and a server that waits for a request gets one or the other, the oldest first.

#![forbid(unsafe_code)]

use kagent_proto::{Accept, Attributes, Point, Status};
use vipl_wire::setup::{self, Accepted, Answer, Body, Refusal, Side};

use crate::agent::{Agent, Caller};
use crate::ask::{from_wire, to_wire};
use crate::call::{CallKey, CallKind, Owner, RequestState, Seeker};
use crate::confirm::FarEnd;
use crate::connection::{ConnectionId, attributes_agree};
use crate::exchange::{ExchangeKey, STALE, State};
use crate::limits::EXCHANGES_PER_LINK_MAX;
use crate::nic::{Name, NicId};
use crate::place::{Pair, Place};
use crate::timer::{NS_PER_MS, deadline};

/// How much longer than the guest itself waits its acceptance is repeated: it says so when it has given up.
const LATE_MS: u64 = 1000;
/// How long an acceptance is repeated at most.
const ACCEPTING_MS: u64 = 30_000;

/// A client or a peer on another host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest {
    pub(crate) exchange: ExchangeKey,
    pub(crate) endpoint: u16,
    pub(crate) vi: u32,
    pub(crate) attributes: Attributes,
    /// Its own name.
    pub(crate) local: Name,
    /// Whom it wants here.
    pub(crate) remote: Name,
    /// When it gives up.
    pub(crate) until: Option<u64>,
}

impl Guest {
    /// Where it looks for a server.
    pub(crate) fn place(&self) -> Place {
        Place::Far(self.exchange.link, self.remote)
    }

    /// Its connection point, as the server sees it.
    pub(crate) fn point(&self) -> Point {
        let mut point = Point {
            host_len: self.exchange.host.len() as u16,
            discriminator_len: self.local.bytes().len() as u16,
            host: [0; kagent_proto::HOST_BYTES_MAX],
            discriminator: [0; kagent_proto::DISCRIMINATOR_BYTES_MAX],
        };
        point.host[..self.exchange.host.len()].copy_from_slice(&self.exchange.host);
        point.discriminator[..self.local.bytes().len()].copy_from_slice(self.local.bytes());
        point
    }
}

fn refusal(status: Status) -> Refusal {
    match status {
        Status::NO_MATCH | Status::NOT_REACHABLE => Refusal::NoMatch,
        Status::REJECTED => Refusal::Rejected,
        Status::TIMEOUT | Status::CANCELLED => Refusal::Timeout,
        Status::CONFLICT_RELIABILITY => Refusal::Reliability,
        Status::CONFLICT_MTU => Refusal::TransferSize,
        Status::CONFLICT_QOS => Refusal::Quality,
        _ => Refusal::Resource,
    }
}

impl<F: Clone> Agent<F> {
    /// REQUEST or PEER, for the first time or again.
    pub(crate) fn guest_calls(&mut self, key: ExchangeKey, call: &setup::Call, peer: bool) {
        match self.state(key) {
            Some(state) => return self.guest_repeats(key, state),
            None if !self.admits_guest(key, peer) => return,
            None => {}
        }
        let guest = Guest {
            exchange: key,
            endpoint: call.endpoint,
            vi: call.vi,
            attributes: from_wire(&call.attributes),
            local: Name::new(call.local.bytes()),
            remote: Name::new(call.remote.bytes()),
            until: call
                .remaining_ms
                .and_then(|ms| deadline(self.now, ms.into())),
        };
        if peer {
            self.guest_peer(guest);
        } else {
            self.guest_request(guest, call.grace_ms.into());
        }
    }

    /// Whether there is room for what somebody else begins. Nothing is said if not: it comes again.
    /// What finds its partner at once needs no more than this; what would wait needs
    /// [`has_idle_room`](Self::has_idle_room) too, so that requests which meet nobody, however many and from
    /// however many hosts, never stand in the way of one that does.
    fn admits_guest(&self, key: ExchangeKey, peer: bool) -> bool {
        let Some(link) = self.links.get(&key.link) else {
            return false;
        };
        link.exchanges[Side::Answerer as usize] < EXCHANGES_PER_LINK_MAX
            && !link.endpoints.is_empty()
            && (!peer || self.decides(key.link, key.host))
    }

    fn guest_repeats(&mut self, key: ExchangeKey, state: State) {
        let answer = match state {
            State::Called(_) => {
                self.set_due(key, self.now + STALE);
                Answer::Held
            }
            State::Readying(..) => Answer::Held,
            State::Accepting(_, accepted, _) => Answer::Accepted(accepted),
            State::Refused(refusal) => Answer::Refused(refusal),
            _ => return,
        };
        self.send_frame(key, Body::Answer(answer));
    }

    fn guest_request(&mut self, guest: Guest, grace_ms: u64) {
        let key = guest.exchange;
        let waiter = self.waits.oldest(&guest.place());
        let has_room = self.has_idle_room(key.link, key.host);
        match (waiter, grace_ms, has_room) {
            (None, 0, true) => return self.refuse_guest(key, Status::NO_MATCH),
            (None, 0, false) => {
                let refusal = refusal(Status::NO_MATCH);
                return self.send_frame(key, Body::Answer(Answer::Refused(refusal)));
            }
            (None, _, false) => return,
            _ => {}
        }
        let timeout = guest.until;
        let grace = deadline(self.now, grace_ms);
        let end = [timeout, grace].into_iter().flatten().min();
        let kind = CallKind::Guest(guest, RequestState::Looking { timeout });
        let call = self.keep_call(Owner::Guest(key), kind, end);
        self.seekers.push(guest.place(), call);
        self.hold(key, call);
        let wait = waiter.and_then(|wait| self.take_call(wait));
        if let Some(Owner::Process(server, nic)) = wait.map(|wait| wait.owner) {
            self.offer(call, server, nic);
        }
    }

    fn guest_peer(&mut self, guest: Guest) {
        let key = guest.exchange;
        let pair = Pair::there(&guest);
        let partner = self.peers.oldest(&pair.mirrored());
        if partner.is_none() && !self.has_idle_room(key.link, key.host) {
            return;
        }
        let Some(partner) = partner.and_then(|partner| self.take_call(partner)) else {
            let kind = CallKind::GuestPeer(guest, pair);
            let call = self.keep_call(Owner::Guest(key), kind, guest.until);
            self.peers.push(pair, call);
            return self.hold(key, call);
        };
        if let (CallKind::Peer(own, _), Owner::Process(caller, nic)) = (partner.kind, partner.owner)
            && let Err(conflict) = self.meet_guest(caller, nic, &own, &guest)
        {
            self.done(caller, conflict);
        }
    }

    /// A peer here and one there have found each other. An error is for the one here, and the one there
    /// has been told.
    pub(crate) fn meet_guest(
        &mut self,
        caller: Caller,
        nic: NicId,
        own: &Seeker,
        guest: &Guest,
    ) -> Result<(), Status> {
        if let Err(conflict) = attributes_agree(&guest.attributes, &own.attributes) {
            self.refuse_guest(guest.exchange, conflict);
            return Err(conflict);
        }
        let connection = self.fresh_connection();
        self.make_ready(caller, nic, connection, (own.vi, &own.attributes), guest);
        Ok(())
    }

    fn hold(&mut self, key: ExchangeKey, call: CallKey) {
        self.set_exchange(key, State::Called(call), Some(self.now + STALE));
        self.send_frame(key, Body::Answer(Answer::Held));
    }

    /// The guest's call has ended without a connection.
    pub(crate) fn refuse_guest(&mut self, key: ExchangeKey, status: Status) {
        let refusal = refusal(status);
        self.set_refused(key, refusal);
        self.send_frame(key, Body::Answer(Answer::Refused(refusal)));
    }

    /// `Op::ACCEPT` of a guest's request.
    pub(crate) fn accept_guest(
        &mut self,
        caller: Caller,
        body: &Accept,
        nic: NicId,
        guest: Guest,
    ) -> Result<(), Status> {
        attributes_agree(&guest.attributes, &body.attributes)?;
        // The offer before its exchange goes on: the guest's call ends then, and would expire the offer.
        self.take_connection(body.connection);
        let own = (body.vi, &body.attributes);
        self.make_ready(caller, nic, body.connection, own, &guest);
        Ok(())
    }

    /// Lets a process here attach its VI; when it has done so the guest is told.
    fn make_ready(
        &mut self,
        caller: Caller,
        nic: NicId,
        connection: ConnectionId,
        (vi, attributes): (u64, &Attributes),
        guest: &Guest,
    ) {
        let endpoint = self.endpoint_of(nic).map_or(0, |endpoint| endpoint.number);
        let accepted = Accepted {
            endpoint,
            vi: vi as u32,
            key: self.keys.next_key(),
            attributes: to_wire(attributes),
        };
        let latest = self.now + ACCEPTING_MS * NS_PER_MS;
        let until = guest
            .until
            .map(|until| until.saturating_add(LATE_MS * NS_PER_MS));
        let until = until.map_or(latest, |until| until.min(latest));
        let state = State::Readying(connection, accepted, until);
        self.set_exchange(guest.exchange, state, Some(until));
        let end = FarEnd {
            endpoint: guest.endpoint,
            vi: guest.vi,
            key: accepted.key,
            side: 0,
            attributes: guest.attributes,
        };
        self.attach(caller, nic, connection, guest.exchange, &end);
    }

    /// Sends the acceptance, the first time or again.
    pub(crate) fn answer_on(&mut self, key: ExchangeKey, accepted: Accepted, until: u64) {
        self.send_repeated(key, Body::Answer(Answer::Accepted(accepted)));
        let due = self.exchanges.get(&key).and_then(|exchange| exchange.due());
        if due.is_some_and(|due| due > until) {
            self.set_due(key, until);
        }
    }

    /// The guest has not acknowledged in time.
    pub(crate) fn give_up_accepting(&mut self, key: ExchangeKey, connection: ConnectionId) {
        self.lose(connection, true);
        self.leave(key, true);
    }

    /// ACK.
    pub(crate) fn acknowledged(&mut self, key: ExchangeKey) {
        match self.state(key) {
            Some(State::Accepting(connection, ..)) => {
                self.set_exchange(key, State::Open(connection), None);
                self.confirmed(connection, key);
            }
            None | Some(State::Over) => {
                let from = Side::Answerer;
                self.send_frame(key, Body::Gone { from });
            }
            _ => {}
        }
    }
}
