//! Calls of processes here to other hosts: the asker's side of an exchange (spec §3.11, §3.13).
//!
//! The call waits here with its deadline, as any call does. Its exchange repeats the REQUEST until the
//! other host has said something final. A call that ends before that, by its deadline, VipDisconnect or the
//! death of its process, leaves the exchange in good order: the other host learns that nobody asks any more.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Budget, Detail, Reason, Request, Status};
use vipl_wire::setup::{self, Accepted, Answer, Body, Refusal, Side};

use crate::logic::meeting::attach::FarEnd;
use crate::logic::tables::call::{Ask, CallKind, LastWord, Owner, Seeker};
use crate::logic::tables::exchange::State;
use crate::logic::values::denial::{Denial, Outcome};
use crate::logic::values::ids::{CallKey, Caller, ExchangeKey, LinkId, Mac, NicId};
use crate::logic::values::timer::{NS_PER_MS, deadline};
use crate::logic::values::wire::{attributes_agree, from_wire, status, to_wire};

/// How long to wait for the last word of the other host. It sends it when the call's time is over there, so
/// this passes only if the frame is lost or the host has gone.
const LAST_WORD: u64 = 1000 * NS_PER_MS;

/// How a call ends that another host has refused.
fn denial(refusal: Refusal) -> Denial {
    Denial {
        status: status(refusal),
        detail: Some(Detail::new(Reason::OTHER_HOST)),
    }
}

impl<F: Clone> Agent<F> {
    /// Which host a seeker wants, if it is another one: on the NIC's link, and not known as ours.
    pub(crate) fn far(&self, nic: NicId, seeker: &Seeker) -> Option<(LinkId, Mac)> {
        let address = &seeker.remote.address;
        let link = self.link_of(nic)?;
        let host: Mac = address.host().try_into().ok()?;
        let another = !self.addresses.contains_key(address) && host[0] & 1 == 0;
        another.then_some((link, host))
    }

    /// Of two hosts whose peers look for each other one brings them together: the one with the lower
    /// address. The other one asks it.
    pub(crate) fn decides(&self, link: LinkId, host: Mac) -> bool {
        self.links
            .get(&link)
            .is_some_and(|link| link.address < host)
    }

    /// Begins to ask another host.
    pub(crate) fn ask(
        &mut self,
        caller: Caller,
        body: &Request,
        seeker: Seeker,
        (link, host): (LinkId, Mac),
        ask: Ask,
    ) -> Outcome {
        let user = seeker.local.address.uid;
        self.accounts.admit(user, Budget::Exchanges, 1)?;
        let key = ExchangeKey {
            link,
            host,
            number: self.keys.next_key(),
            side: Side::Asker,
        };
        let until = deadline(self.now, body.timeout_ms);
        let owner = Owner::Process(caller, body.nic);
        let call = self.keep_call(owner, CallKind::Asking(seeker, key, ask), until);
        self.set_exchange(key, State::Asking(call), None);
        self.ask_on(key, call);
        Ok(())
    }

    /// Sends the question, the first time or again.
    pub(crate) fn ask_on(&mut self, key: ExchangeKey, call: CallKey) {
        let Some(call) = self.calls.get(&call) else {
            return;
        };
        let (CallKind::Asking(seeker, _, ask), Owner::Process(_, nic)) = (&call.kind, call.owner)
        else {
            return;
        };
        let (Some(endpoint), Some(local), Some(remote)) = (
            self.endpoint_of(nic),
            setup::Discriminator::new(seeker.local.name.bytes()),
            setup::Discriminator::new(seeker.remote.name.bytes()),
        ) else {
            return;
        };
        let remaining = call
            .deadline
            .map(|deadline| deadline.saturating_sub(self.now));
        let milliseconds = |ns: u64| u32::try_from(ns.div_ceil(NS_PER_MS)).unwrap_or(u32::MAX);
        let mut question = setup::Call {
            endpoint: endpoint.number,
            vi: seeker.vi as u32,
            remaining_ms: remaining.map(milliseconds),
            grace_ms: 0,
            attributes: to_wire(&seeker.attributes),
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

    /// ANSWER.
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
            // Our ACK was lost.
            (Some(State::Open(_)), Answer::Accepted(_)) => self.send_frame(key, Body::Ack),
            (None, Answer::Accepted(_)) => {
                let from = Side::Asker;
                self.send_frame(key, Body::Gone { from });
            }
            _ => {}
        }
    }

    fn note_held(&mut self, call: CallKey) {
        if let Some(call) = self.calls.get_mut(&call)
            && let CallKind::Asking(_, _, Ask::Request { last_word, .. }) = &mut call.kind
            && *last_word == LastWord::TheirsOnceHeld
        {
            *last_word = LastWord::Theirs;
        }
    }

    /// The call's time is over, and the other host has the last word. The timer runs no more.
    pub(crate) fn await_last_word(&mut self, key: CallKey) {
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        if let CallKind::Asking(_, _, Ask::Request { last_word, .. }) = &mut call.kind {
            *last_word = LastWord::Ours;
        }
        call.deadline = self.now.checked_add(LAST_WORD);
        self.timers.start(call.deadline, key);
    }

    /// The other side is ready; ours shall be.
    fn take(&mut self, key: ExchangeKey, call: CallKey, end: &Accepted) {
        let attributes = from_wire(&end.attributes);
        let Some(CallKind::Asking(seeker, ..)) = self.calls.get(&call).map(|call| &call.kind)
        else {
            return;
        };
        if let Err(conflict) = attributes_agree(&seeker.attributes, &attributes) {
            // Nobody should have accepted that.
            return self.end_call(call, conflict);
        }
        let connection = self.fresh_connection();
        // Before the call goes, or it would take the exchange with it.
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

    /// The other host speaks another version. False: we did not ask it anything.
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
