//! Calls of other hosts: the answering side of an exchange. A remote call is in the same queues as local
//! ones, and a waiting server gets the oldest.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::Status;
use kagent_proto::setup::{self as setup, Accepted, Answer, Body, Side};

use crate::logic::limits::EXCHANGES_PER_LINK_MAX;
use crate::logic::tables::call::{CallKind, Owner, RemoteCall, RequestState};
use crate::logic::tables::exchange::{STALE, State};
use crate::logic::tables::queue_key::PeerKey;
use crate::logic::values::address::Discriminator;
use crate::logic::values::ids::{CallKey, ConnectionId, ExchangeKey};
use crate::logic::values::timer::deadline;
use crate::logic::values::wire::{from_wire, refusal};

impl<F: Clone> Agent<F> {
    /// Handles REQUEST or PEER, the first time or repeated.
    pub(crate) fn handle_remote_call(&mut self, key: ExchangeKey, call: &setup::Call, peer: bool) {
        match self.state(key) {
            Some(state) => return self.repeat_answer(key, state),
            None if !self.admits_remote(key, peer) => return,
            None => {}
        }
        let remote_call = RemoteCall {
            exchange: key,
            endpoint: call.endpoint,
            vi: call.vi,
            attributes: from_wire(&call.attributes),
            local: Discriminator::new(call.local.bytes()),
            remote: Discriminator::new(call.remote.bytes()),
            until: call
                .remaining_ms
                .and_then(|ms| deadline(self.now, ms.into())),
        };
        if peer {
            self.remote_peer(remote_call);
        } else {
            self.remote_request(remote_call, call.grace_ms.into());
        }
    }

    /// Whether another host may start an exchange. A refused one is not answered, since it is repeated. This
    /// check is enough for a call that finds its partner at once. A call that would wait also needs
    /// [`has_idle_room`](Self::has_idle_room), so that requests without a partner, however many and from
    /// however many hosts, never block one that has a partner.
    fn admits_remote(&self, key: ExchangeKey, peer: bool) -> bool {
        let Some(link) = self.links.get(&key.link) else {
            return false;
        };
        link.exchanges[Side::Answerer as usize] < EXCHANGES_PER_LINK_MAX
            && !link.endpoints.is_empty()
            && (!peer || self.decides(key.link, key.host))
    }

    fn repeat_answer(&mut self, key: ExchangeKey, state: State) {
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

    fn remote_request(&mut self, remote_call: RemoteCall, grace_ms: u64) {
        let key = remote_call.exchange;
        let waiter = self.waits.oldest(&remote_call.queue_key());
        let has_room = self.has_idle_room(key.link, key.host);
        match (waiter, grace_ms, has_room) {
            (None, 0, true) => return self.refuse_remote(key, Status::NO_MATCH),
            (None, 0, false) => {
                let refusal = refusal(Status::NO_MATCH);
                return self.send_frame(key, Body::Answer(Answer::Refused(refusal)));
            }
            (None, _, false) => return,
            _ => {}
        }
        let timeout = remote_call.until;
        let grace = deadline(self.now, grace_ms);
        let end = [timeout, grace].into_iter().flatten().min();
        let kind = CallKind::RemoteRequest(remote_call, RequestState::Queued { timeout });
        let call = self.keep_call(Owner::Remote(key), kind, end);
        self.requests.push(remote_call.queue_key(), call);
        self.hold(key, call);
        let wait = waiter.and_then(|wait| self.take_call(wait));
        if let Some(Owner::Process(server, nic)) = wait.map(|wait| wait.owner) {
            self.offer(call, server, nic);
        }
    }

    fn remote_peer(&mut self, remote_call: RemoteCall) {
        let key = remote_call.exchange;
        let pair =
            PeerKey::here(key.link, key.host, remote_call.remote, remote_call.local).mirrored();
        let partner = self.peers.oldest(&pair.mirrored());
        if partner.is_none() && !self.has_idle_room(key.link, key.host) {
            return;
        }
        let Some(partner) = partner.and_then(|partner| self.take_call(partner)) else {
            let kind = CallKind::RemotePeer(remote_call, pair);
            let call = self.keep_call(Owner::Remote(key), kind, remote_call.until);
            self.peers.push(pair, call);
            return self.hold(key, call);
        };
        if let (CallKind::Peer(own, _), Owner::Process(caller, nic)) = (partner.kind, partner.owner)
            && let Err(conflict) = self.meet_remote(caller, nic, &own, &remote_call)
        {
            self.done(caller, conflict);
        }
    }

    fn hold(&mut self, key: ExchangeKey, call: CallKey) {
        self.set_exchange(key, State::Called(call), Some(self.now + STALE));
        self.send_frame(key, Body::Answer(Answer::Held));
    }

    /// Sends the acceptance, the first time or again.
    pub(crate) fn send_acceptance(&mut self, key: ExchangeKey, accepted: Accepted, until: u64) {
        self.send_repeated(key, Body::Answer(Answer::Accepted(accepted)));
        let due = self.exchanges.get(&key).and_then(|exchange| exchange.due);
        if due.is_some_and(|due| due > until) {
            self.set_due(key, until);
        }
    }

    /// The remote host did not acknowledge in time.
    pub(crate) fn give_up_accepting(&mut self, key: ExchangeKey, connection: ConnectionId) {
        self.connection_lost(connection, true);
        self.start_disconnect(key, true);
    }

    /// Handles ACK.
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
