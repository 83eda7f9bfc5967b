//! Calls of processes here to other hosts: the asker's side of an exchange (spec §3.11, §3.13).
//!
//! The call waits here with its deadline, as any call does. Its exchange repeats the REQUEST until the
//! other host has said something final. A call that ends before that, by its deadline, VipDisconnect or the
//! death of its process, leaves the exchange in good order: the other host learns that nobody asks any more.

#![forbid(unsafe_code)]

use kagent_proto::{Attributes, Budget, Detail, Reason, Request, Status};
use vipl_wire::setup::{self, Accepted, Answer, Body, Refusal, Side};

use crate::agent::{Agent, Caller};
use crate::call::{CallKey, CallKind, Owner, Seeker};
use crate::confirm::FarEnd;
use crate::connection::attributes_agree;
use crate::denial::{Denial, Outcome};
use crate::exchange::{ExchangeKey, State};
use crate::link::{LinkId, Mac};
use crate::nic::NicId;
use crate::timer::{NS_PER_MS, deadline};

/// What a call to another host asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    /// A server, within its grace.
    Request {
        /// In milliseconds.
        grace_ms: u64,
        /// Who says what became of it when its time is over.
        last_word: LastWord,
    },
    /// A peer.
    Peer,
}

/// Who decides how a call ends whose time is over. If its grace is over at the same moment, the other host
/// alone knows whether a server had it (TIMEOUT) or nobody waited there (NO_MATCH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastWord {
    /// This host.
    Ours,
    /// The other one, if it says that it has the call.
    TheirsOnceHeld,
    /// The other one; it has the call.
    Theirs,
}

/// How long to wait for the last word of the other host. It sends it when the call's time is over there, so
/// this passes only if the frame is lost or the host has gone.
const LAST_WORD: u64 = 1000 * NS_PER_MS;

/// The form that attributes have in frames.
pub(crate) fn to_wire(attributes: &Attributes) -> setup::Attributes {
    setup::Attributes {
        max_transfer_size: attributes.max_transfer_size,
        qos: attributes.qos,
        reliability: attributes.reliability,
        rdma_write: attributes.rdma_write != 0,
        rdma_read: attributes.rdma_read != 0,
    }
}

/// And back.
pub(crate) fn from_wire(attributes: &setup::Attributes) -> Attributes {
    Attributes {
        max_transfer_size: attributes.max_transfer_size,
        qos: attributes.qos,
        reliability: attributes.reliability,
        rdma_write: u8::from(attributes.rdma_write),
        rdma_read: u8::from(attributes.rdma_read),
        reserved: 0,
    }
}

fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::NoMatch => Status::NO_MATCH,
        Refusal::Rejected => Status::REJECTED,
        Refusal::Timeout => Status::TIMEOUT,
        Refusal::Reliability => Status::CONFLICT_RELIABILITY,
        Refusal::TransferSize => Status::CONFLICT_MTU,
        Refusal::Quality => Status::CONFLICT_QOS,
        Refusal::Resource => Status::RESOURCE,
    }
}

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

    /// The call has ended; so does the asking, unless it has come to something.
    pub(crate) fn stop_asking(&mut self, key: ExchangeKey) {
        if let Some(State::Asking(_)) = self.state(key) {
            self.leave(key, true);
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

    /// The interface is down or gone: whoever asks there learns it at once.
    pub fn handle_link_down(&mut self, now: u64, link: LinkId) {
        self.advance(now);
        // It is told with every frame that cannot be sent, and mostly there is nobody to tell.
        let asking = self.links.get(&link).map(|link| link.asking.clone());
        for key in asking.unwrap_or_default() {
            if let Some(State::Asking(call)) = self.state(key) {
                let why = Denial::because(Status::NOT_REACHABLE, Reason::LINK_DOWN);
                self.end_call(call, why);
            }
        }
    }
}
