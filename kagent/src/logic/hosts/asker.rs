//! Calls of local processes to other hosts: the asking side of an exchange (spec §3.11, §3.13).
//!
//! The call waits here with its deadline like any other. Its exchange repeats the REQUEST until the other
//! host gives a final answer. A call that ends earlier, by its deadline, VipDisconnect or the death of its
//! process, ends the exchange with DISCONNECT, so the other host drops the request.

#![forbid(unsafe_code)]

use crate::Medium;
use crate::logic::agent::Agent;

use kagent_proto::setup::{self as setup, Accepted, Answer, Body, Refusal, Side};
use kagent_proto::{Budget, Detail, Reason, Request, Status};

use crate::logic::meeting::attach::FarEnd;
use crate::logic::tables::call::{Ask, CallKind, FinalStatus, Initiator, Owner};
use crate::logic::tables::exchange::State;
use crate::logic::values::denial::{Denial, Outcome};
use crate::logic::values::host::HostAddress;
use crate::logic::values::ids::{CallKey, Caller, ExchangeKey, LinkId, NicId};
use crate::logic::values::timer::{NS_PER_MS, deadline};
use crate::logic::values::wire::{attributes_agree, from_wire, status, to_wire};

/// Time to wait for the final status from the other host. It sends it at the deadline of the call, so this
/// expires only if the frame is lost or the host is gone.
const FINAL_STATUS_WAIT: u64 = 1000 * NS_PER_MS;

/// The result of a call that another host refused.
fn denial(refusal: Refusal) -> Denial {
    Denial {
        status: status(refusal),
        detail: Some(Detail::new(Reason::OTHER_HOST)),
    }
}

impl<F: Clone> Agent<F> {
    /// The link and host of the wanted partner, if it is on another host: reachable over the NIC's link, and
    /// not an address of this host.
    pub(crate) fn far(&self, nic: NicId, initiator: &Initiator) -> Option<(LinkId, HostAddress)> {
        let address = &initiator.remote.address;
        let link = self.link_of(nic)?;
        let medium = self.links.get(&link)?.medium;
        let host = HostAddress::of_host(medium, address.host())?;
        let another = !self.addresses.contains_key(address);
        another.then_some((link, host))
    }

    /// Whether this host matches peer requests between the two: the host with the lower address does, and the
    /// other one asks it.
    pub(crate) fn decides(&self, link: LinkId, host: HostAddress) -> bool {
        self.links
            .get(&link)
            .is_some_and(|link| link.address < host)
    }

    /// Starts a call to another host.
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
        let key = ExchangeKey {
            link,
            host,
            number: self.keys.next_key(),
            side: Side::Asker,
        };
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

    /// The result of a call that has had no answer in time.
    pub(crate) fn unanswered(&self, key: ExchangeKey) -> Denial {
        let heard = self.exchanges.get(&key).map(|exchange| exchange.heard);
        let link = self.links.get(&key.link);
        let detail = Detail {
            used: u64::from(link.is_some_and(|link| link.medium == Medium::Udp)),
            ..Detail::new(heard.unwrap_or(Reason::SILENT))
        };
        Denial {
            status: Status::TIMEOUT,
            detail: Some(detail),
        }
    }

    fn note_held(&mut self, call: CallKey) {
        if let Some(call) = self.calls.get_mut(&call)
            && let CallKind::Asking(_, _, Ask::Request { final_status, .. }) = &mut call.kind
            && *final_status == FinalStatus::TheirsOnceHeld
        {
            *final_status = FinalStatus::Theirs;
        }
    }

    /// The deadline passed, and the other host decides the status. The timer has expired.
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

    /// The other side is ready: makes the local process attach its VI.
    fn take(&mut self, key: ExchangeKey, call: CallKey, end: &Accepted) {
        let attributes = from_wire(&end.attributes);
        let Some(CallKind::Asking(initiator, ..)) = self.calls.get(&call).map(|call| &call.kind)
        else {
            return;
        };
        if let Err(conflict) = attributes_agree(&initiator.attributes, &attributes) {
            // The other host should not have accepted that.
            return self.end_call(call, conflict);
        }
        let connection = self.fresh_connection();
        // Before the call is removed, which would otherwise end the exchange.
        self.set_exchange(key, State::Taking(connection), None);
        if let Some(Owner::Process(caller, nic)) = self.take_call(call).map(|call| call.owner) {
            let end = FarEnd {
                endpoint: end.endpoint,
                vi: end.vi,
                key: end.key,
                side: 1,
                attributes,
            };
            self.attach(caller, nic, connection, key, &end);
        }
    }

    /// The other host supports other versions only. Returns false if nothing was asked of it.
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
