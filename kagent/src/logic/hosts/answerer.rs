//! Calls of other hosts: the answerer's side of an exchange. A guest stands in the same queues as processes
//! do, and a server that waits for a request gets one or the other, the oldest first.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::Status;
use vipl_wire::setup::{self, Accepted, Answer, Body, Side};

use crate::logic::limits::EXCHANGES_PER_LINK_MAX;
use crate::logic::tables::call::{CallKind, Guest, Owner, RequestState};
use crate::logic::tables::exchange::{STALE, State};
use crate::logic::tables::place::Pair;
use crate::logic::values::address::Name;
use crate::logic::values::ids::{CallKey, ConnectionId, ExchangeKey};
use crate::logic::values::timer::deadline;
use crate::logic::values::wire::{from_wire, refusal};

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
        let pair = Pair::here(key.link, key.host, guest.remote, guest.local).mirrored();
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

    fn hold(&mut self, key: ExchangeKey, call: CallKey) {
        self.set_exchange(key, State::Called(call), Some(self.now + STALE));
        self.send_frame(key, Body::Answer(Answer::Held));
    }

    /// Sends the acceptance, the first time or again.
    pub(crate) fn answer_on(&mut self, key: ExchangeKey, accepted: Accepted, until: u64) {
        self.send_repeated(key, Body::Answer(Answer::Accepted(accepted)));
        let due = self.exchanges.get(&key).and_then(|exchange| exchange.due);
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
