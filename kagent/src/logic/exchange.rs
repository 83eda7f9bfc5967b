//! Exchanges with remote hosts: calling, answering, disconnecting.

#![forbid(unsafe_code)]

use kagent_proto::setup::{self as setup, Accepted, Answer, Body, Refusal, Side};
use kagent_proto::{Budget, Detail, Reason, Request, Status};

use crate::Medium;
use crate::logic::address::{Discriminator, HostAddress};
use crate::logic::agent::Agent;
use crate::logic::budgets::EXCHANGES_PER_LINK_MAX;
use crate::logic::calls::{
    Ask, CallKind, FinalStatus, Initiator, Owner, PeerKey, RemoteCall, RequestState,
};
use crate::logic::ids::{CallKey, Caller, ConnectionId, ExchangeKey, LinkId, NicId};
use crate::logic::meeting::RemoteEnd;
use crate::logic::message::{
    Denial, Outcome, attributes_agree, from_wire, refusal, status, to_wire,
};
use crate::logic::objects::{STALE, State};
use crate::logic::queues::{NS_PER_MS, deadline};

/// Time to wait for the final status from the remote host, which sends it at the deadline of the call. It
/// expires only if the frame is lost or the host is down.
const FINAL_STATUS_WAIT: u64 = 1000 * NS_PER_MS;

/// The result of a call that a remote host refused.
fn denial(refusal: Refusal) -> Denial {
    Denial::because(status(refusal), Reason::OTHER_HOST)
}

/// Calls of local processes to other hosts: the asking side of an exchange (spec §3.11, §3.13).
///
/// The call waits here with its deadline like any other. Its exchange repeats the REQUEST until the remote
/// host sends a final answer. A call that ends earlier, by its deadline, VipDisconnect or the death of its
/// process, ends the exchange with DISCONNECT, so that the remote host drops the request.
impl<F: Clone> Agent<F> {
    /// The link and host of the requested peer, if it is on a remote host: reachable over the NIC's link, and
    /// not an address of this host.
    pub(crate) fn remote_host(
        &self,
        nic: NicId,
        initiator: &Initiator,
    ) -> Option<(LinkId, HostAddress)> {
        let address = &initiator.remote.address;
        let link = self.link_of(nic)?;
        let medium = self.links.get(&link)?.medium;
        let host = HostAddress::of_host(medium, address.host())?;
        let another = !self.addresses.contains_key(address);
        another.then_some((link, host))
    }

    /// Whether this host matches peer requests between the two. The host with the lower address does; the
    /// other one sends its requests there.
    pub(crate) fn decides(&self, link: LinkId, host: HostAddress) -> bool {
        self.links
            .get(&link)
            .is_some_and(|link| link.address < host)
    }

    /// Starts a call to a remote host.
    pub(crate) fn ask(
        &mut self,
        caller: Caller,
        body: &Request,
        initiator: Initiator,
        (link, host): (LinkId, HostAddress),
        ask: Ask,
    ) -> Outcome {
        let user = initiator.local.address.uid;
        self.accounts.admit(user, Budget::Exchanges, 1)?;
        let key = ExchangeKey::new(link, host, self.keys.next_key(), Side::Asker);
        let until = deadline(self.now, body.timeout_ms);
        let owner = Owner::Process(caller, body.nic);
        let call = self.keep_call(owner, CallKind::Asking(initiator, key, ask), until);
        self.set_exchange(key, State::Asking(call), None);
        self.send_question(key, call);
        Ok(())
    }

    /// Sends REQUEST or PEER, the first time or again.
    pub(crate) fn send_question(&mut self, key: ExchangeKey, call: CallKey) {
        let Some(call) = self.calls.get(&call) else {
            return;
        };
        let (CallKind::Asking(initiator, _, ask), Owner::Process(_, nic)) =
            (&call.kind, call.owner)
        else {
            return;
        };
        let (Some(endpoint), Some(local), Some(remote)) = (
            self.endpoint_of(nic),
            setup::Discriminator::new(initiator.local.name.bytes()),
            setup::Discriminator::new(initiator.remote.name.bytes()),
        ) else {
            return;
        };
        let remaining = call
            .deadline
            .map(|deadline| deadline.saturating_sub(self.now));
        let milliseconds = |ns: u64| u32::try_from(ns.div_ceil(NS_PER_MS)).unwrap_or(u32::MAX);
        let mut question = setup::Call {
            endpoint: endpoint.number,
            vi: initiator.vi as u32,
            remaining_ms: remaining.map(milliseconds),
            grace_ms: 0,
            attributes: to_wire(&initiator.attributes),
            local,
            remote,
        };
        let body = match *ask {
            Ask::Peer => Body::Peer(question),
            Ask::Request { grace_ms, .. } => {
                question.grace_ms = u32::try_from(grace_ms).unwrap_or(u32::MAX);
                Body::Request(question)
            }
        };
        self.send_repeated(key, body);
    }

    /// Handles ANSWER.
    pub(crate) fn answered(&mut self, key: ExchangeKey, answer: Answer) {
        match (self.state(key), answer) {
            (Some(State::Asking(call)), Answer::Held) => {
                self.slow_down(key);
                self.note_held(call);
            }
            (Some(State::Asking(call)), Answer::Refused(refusal)) => {
                self.end_exchange(key);
                self.end_call(call, denial(refusal));
            }
            (Some(State::Asking(call)), Answer::Accepted(end)) => self.take(key, call, &end),
            // The ACK was lost.
            (Some(State::Open(_)), Answer::Accepted(_)) => self.send_frame(key, Body::Ack),
            (None, Answer::Accepted(_)) => {
                let from = Side::Asker;
                self.send_frame(key, Body::Gone { from });
            }
            _ => {}
        }
    }

    /// The result of a call that received no answer in time.
    pub(crate) fn unanswered(&self, key: ExchangeKey) -> Denial {
        let reason = self
            .exchanges
            .get(&key)
            .map(|exchange| exchange.last_reason);
        let link = self.links.get(&key.link);
        let detail = Detail {
            used: u64::from(link.is_some_and(|link| link.medium == Medium::Udp)),
            ..Detail::new(reason.unwrap_or(Reason::SILENT))
        };
        Denial::new(Status::TIMEOUT, detail)
    }

    fn note_held(&mut self, call: CallKey) {
        if let Some(call) = self.calls.get_mut(&call)
            && let CallKind::Asking(_, _, Ask::Request { final_status, .. }) = &mut call.kind
            && *final_status == FinalStatus::TheirsOnceHeld
        {
            *final_status = FinalStatus::Theirs;
        }
    }

    /// The deadline passed, and the remote host decides the status. The timer has expired.
    pub(crate) fn await_final_status(&mut self, key: CallKey) {
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        if let CallKind::Asking(_, _, Ask::Request { final_status, .. }) = &mut call.kind {
            *final_status = FinalStatus::Ours;
        }
        call.deadline = self.now.checked_add(FINAL_STATUS_WAIT);
        self.timers.start(call.deadline, key);
    }

    /// The remote side is ready: makes the local process attach its VI.
    fn take(&mut self, key: ExchangeKey, call: CallKey, end: &Accepted) {
        let attributes = from_wire(&end.attributes);
        let Some(CallKind::Asking(initiator, ..)) = self.calls.get(&call).map(|call| &call.kind)
        else {
            return;
        };
        if let Err(conflict) = attributes_agree(&initiator.attributes, &attributes) {
            // The remote host should not have accepted this.
            return self.end_call(call, conflict);
        }
        let connection = self.fresh_connection();
        // Must precede removal of the call, which would otherwise end the exchange.
        self.set_exchange(key, State::Taking(connection), None);
        if let Some(Owner::Process(caller, nic)) = self.take_call(call).map(|call| call.owner) {
            let end = RemoteEnd {
                endpoint: end.endpoint,
                vi: end.vi,
                key: end.key,
                side: 1,
                attributes,
            };
            self.attach(caller, nic, connection, key, &end);
        }
    }

    /// The remote host supports other versions only. Returns false if no call waits for it.
    pub(crate) fn not_understood(&mut self, key: ExchangeKey) -> bool {
        let Some(State::Asking(call)) = self.state(key) else {
            return false;
        };
        self.end_exchange(key);
        let why = Denial::because(Status::NOT_REACHABLE, Reason::OTHER_VERSION);
        self.end_call(call, why);
        true
    }
}

/// Calls of other hosts: the answering side of an exchange. A remote call is in the same queues as local ones,
/// and a waiting server receives the oldest.
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

    /// Whether a remote host may start an exchange. A refused one is not answered, since it is repeated. This
    /// check suffices for a call that matches at once. A call that would wait also needs
    /// [`has_idle_room`](Self::has_idle_room), so that requests without a match, from any number of hosts,
    /// never block one that has a match.
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
        let peer = self.peers.oldest(&pair.mirrored());
        if peer.is_none() && !self.has_idle_room(key.link, key.host) {
            return;
        }
        let Some(peer) = peer.and_then(|peer| self.take_call(peer)) else {
            let kind = CallKind::RemotePeer(remote_call, pair);
            let call = self.keep_call(Owner::Remote(key), kind, remote_call.until);
            self.peers.push(pair, call);
            return self.hold(key, call);
        };
        if let (CallKind::Peer(own, _), Owner::Process(caller, nic)) = (peer.kind, peer.owner)
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

/// The remote host ends an exchange.
impl<F: Clone> Agent<F> {
    /// Handles DISCONNECT: removes all state of the exchange.
    pub(crate) fn disconnected(&mut self, key: ExchangeKey, orderly: bool) {
        let from = key.side;
        self.send_frame(key, Body::Gone { from });
        self.lost(key, orderly);
    }

    /// Handles GONE: the remote side has no state of this exchange any more.
    pub(crate) fn gone(&mut self, key: ExchangeKey) {
        match self.state(key) {
            // It has not received our frame yet; the next repetition will reach it.
            Some(State::Asking(_) | State::Called(_) | State::Readying(..)) => {}
            _ => self.lost(key, false),
        }
    }

    fn lost(&mut self, key: ExchangeKey, orderly: bool) {
        let Some(state) = self.state(key) else {
            return;
        };
        if matches!(state, State::Refused(_) | State::Over) {
            return;
        }
        // First, so that what ends below finds no exchange to disconnect. This also ends the remote call.
        self.end_exchange(key);
        match state {
            State::Asking(call) => self.end_call(call, Status::TIMEOUT),
            State::Taking(connection)
            | State::Readying(connection, ..)
            | State::Accepting(connection, ..)
            | State::Open(connection) => self.connection_lost(connection, orderly),
            State::Called(_) | State::Disconnecting { .. } | State::Refused(_) | State::Over => {}
        }
    }
}
