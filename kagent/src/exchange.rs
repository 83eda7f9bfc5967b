//! Exchanges: what two hosts say to each other about one connection, from the first REQUEST to the last
//! GONE.
//!
//! A frame may get lost, come twice or late. So whoever waits for an answer repeats his frame, and every
//! frame may be taken twice: what it does depends on the state of its exchange, which is remembered for a
//! while after its end.
//!
//! ```text
//!   asker                                             answerer
//!   Asking ─── REQUEST or PEER, repeated ───────────▶ Called      a call in the queues, or with a server
//!          ◀── ANSWER held, refused ────────────────            ─▶ Refused, remembered
//!                                                     Readying    its process attaches the VI
//!   Taking ◀── ANSWER accepted, repeated ──────────── Accepting
//!   its process attaches the VI
//!   Open   ─── ACK ─────────────────────────────────▶ Open
//!   Leaving ── DISCONNECT, repeated ────────────────▶
//!          ◀── GONE ────────────────────────────────  Over, remembered
//! ```
//!
//! Both VIs are attached before either program hears of the connection, so that no message is sent to a
//! VI that is not ready for it. An exchange is named by a number that nobody can guess; a stranger on the
//! link can therefore begin one, and nothing else.

#![forbid(unsafe_code)]

use kagent_proto::Budget;
use vipl_wire::setup::{Accepted, Body, FRAME_MAX, Frame, Refusal, Refused, Side, foreign};

use crate::accounts::share;
use crate::agent::Agent;
use crate::call::{CallKey, Owner};
use crate::connection::ConnectionId;
use crate::limits::IDLE_EXCHANGES_PER_LINK_MAX;
use crate::link::{LinkId, Mac};
use crate::note::Shown;
use crate::output::{FrameOut, Output};

const MS: u64 = 1_000_000;
/// How long to wait before the first repetition; each further one takes twice as long.
const FIRST: u64 = 20 * MS;
/// The longest time between two repetitions.
const SLOW: u64 = 1000 * MS;
/// Doublings up to there.
const DOUBLINGS: u32 = 6;
/// How often a DISCONNECT is repeated: for some five seconds.
const LEAVING_TRIES: u32 = 10;
/// How long the end of an exchange is remembered. No frame is so late.
const REMEMBERED: u64 = 5000 * MS;
/// How long somebody counts as calling who does not repeat it: ten times as long as he takes.
pub(crate) const STALE: u64 = 10 * SLOW;

/// Names an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExchangeKey {
    pub(crate) link: LinkId,
    /// The other host.
    pub(crate) host: Mac,
    pub(crate) number: u64,
    /// Which side this host is.
    pub(crate) side: Side,
}

/// An exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) state: State,
    /// The user who began it, if it was one here.
    pub(crate) user: Option<u32>,
    /// When its timer goes off.
    due: Option<u64>,
    /// How often the frame of this state has been sent.
    tries: u32,
}

/// Where an exchange stands on this host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// Our call waits for an answer.
    Asking(CallKey),
    /// There is one; our process attaches its VI.
    Taking(ConnectionId),
    /// A call of the other host waits here.
    Called(CallKey),
    /// Our process attaches its VI, until then at the latest.
    Readying(ConnectionId, Accepted, u64),
    /// The other host is told so until it acknowledges, until then at the latest.
    Accepting(ConnectionId, Accepted, u64),
    /// Connected.
    Open(ConnectionId),
    /// We have left; the other host is told until it acknowledges.
    Leaving {
        /// In good order.
        orderly: bool,
    },
    /// The call has been refused.
    Refused(Refusal),
    /// There was something.
    Over,
}

impl State {
    /// It binds no process here, and would be begun again by the other host's next repetition.
    fn is_idle(self) -> bool {
        matches!(self, State::Called(_) | State::Refused(_) | State::Over)
    }
}

impl Exchange {
    pub(crate) fn due(&self) -> Option<u64> {
        self.due
    }
}

/// The time between repetitions.
fn interval(tries: u32) -> u64 {
    (FIRST << tries.min(DOUBLINGS)).min(SLOW)
}

impl<F: Clone> Agent<F> {
    /// Begins an exchange, or takes it to another state. `due` is when the state shall end or be looked at.
    pub(crate) fn set_exchange(&mut self, key: ExchangeKey, state: State, due: Option<u64>) {
        let before = self.take_exchange(key);
        let user = before
            .as_ref()
            .map_or_else(|| self.user_asking(state), |before| before.user);
        let Some(link) = self.links.get_mut(&key.link) else {
            // Nobody would answer it.
            return self.end_guest(state);
        };
        link.exchanges[key.side as usize] += 1;
        if let State::Asking(_) = state {
            link.asking.insert(key);
        }
        if key.side == Side::Answerer && state.is_idle() {
            *link.idle.0.entry(key.host).or_default() += 1;
            link.idle.1 += 1;
        }
        link.leaving += usize::from(matches!(state, State::Leaving { .. }));
        self.note(|_| format!("{}: {}", Shown(key), Shown(state)));
        self.exchange_timers.start(due, key);
        if let Some(user) = user {
            self.accounts.charge(user, Budget::Exchanges, 1);
        }
        let exchange = Exchange {
            state,
            user,
            due,
            tries: 0,
        };
        self.exchanges.insert(key, exchange);
        if before.is_some_and(|before| matches!(before.state, State::Leaving { .. })) {
            self.close_idle_link(key.link);
        }
    }

    /// The end of an exchange. Who began it need not remember: an answer to nothing is told that it is
    /// one. Who was called does remember, or a late copy of the call would begin another.
    pub(crate) fn end_exchange(&mut self, key: ExchangeKey) {
        match key.side {
            Side::Asker => self.forget_exchange(key),
            Side::Answerer => {
                let until = self.now + REMEMBERED;
                self.set_exchange(key, State::Over, Some(until));
            }
        }
    }

    /// Refuses a call, and goes on doing so.
    pub(crate) fn set_refused(&mut self, key: ExchangeKey, refusal: Refusal) {
        let until = self.now + REMEMBERED;
        self.set_exchange(key, State::Refused(refusal), Some(until));
    }

    /// Every exchange that ends or changes its state passes here, and with it the guest's call that its
    /// old state named. A call that outlived its exchange would still be offered to servers, which could
    /// only wait for an acknowledgement that never comes.
    fn take_exchange(&mut self, key: ExchangeKey) -> Option<Exchange> {
        let gone = self.exchanges.remove(&key)?;
        self.exchange_timers.stop(gone.due, key);
        if let Some(link) = self.links.get_mut(&key.link) {
            link.exchanges[key.side as usize] -= 1;
            link.asking.remove(&key);
            link.leaving -= usize::from(matches!(gone.state, State::Leaving { .. }));
            if key.side == Side::Answerer
                && gone.state.is_idle()
                && let Some(of_host) = link.idle.0.get_mut(&key.host)
            {
                *of_host -= 1;
                if *of_host == 0 {
                    link.idle.0.remove(&key.host);
                }
                link.idle.1 -= 1;
            }
        }
        if let Some(user) = gone.user {
            self.accounts.release(user, Budget::Exchanges, 1);
        }
        self.end_guest(gone.state);
        Some(gone)
    }

    /// Whose the call is that an exchange begins with.
    fn user_asking(&self, state: State) -> Option<u32> {
        let State::Asking(call) = state else {
            return None;
        };
        match self.calls.get(&call)?.owner {
            Owner::Process(_, nic) => Some(self.nics.get(&nic)?.address.uid),
            Owner::Guest(_) => None,
        }
    }

    /// Whether there is room to remember one more exchange of another host in which no process here takes
    /// part. One host may have half of what the others leave.
    pub(crate) fn has_idle_room(&self, link: LinkId, host: Mac) -> bool {
        let Some((hosts, all)) = self.links.get(&link).map(|link| &link.idle) else {
            return false;
        };
        let own = hosts.get(&host).copied().unwrap_or(0);
        own < share(IDLE_EXCHANGES_PER_LINK_MAX, all - own)
    }

    /// Ends the guest's call of a state that is over, unless it has just ended. A server that holds it
    /// finds its handle expired.
    fn end_guest(&mut self, state: State) {
        if let State::Called(call) = state
            && self.take_call(call).is_some()
        {
            self.note(|_| format!("call {}: over with its exchange", call.0));
        }
    }

    fn forget_exchange(&mut self, key: ExchangeKey) {
        if self.take_exchange(key).is_some() {
            self.note(|_| format!("{}: forgotten", Shown(key)));
        }
        self.close_idle_link(key.link);
    }

    /// Forgets everything about a link. Its guests get no answer: an agent that serves the interface later
    /// takes their repeated calls for new ones.
    pub(crate) fn forget_exchanges(&mut self, link: LinkId) {
        for key in self.exchanges_on(link) {
            self.take_exchange(key);
        }
    }

    pub(crate) fn exchanges_on(&self, link: LinkId) -> Vec<ExchangeKey> {
        let end = |host, number, side| ExchangeKey {
            link,
            host,
            number,
            side,
        };
        let first = end([0; 6], 0, Side::Asker);
        let last = end([0xFF; 6], u64::MAX, Side::Answerer);
        self.exchanges
            .range(first..=last)
            .map(|(key, _)| *key)
            .collect()
    }

    pub(crate) fn state(&self, key: ExchangeKey) -> Option<State> {
        self.exchanges.get(&key).map(|exchange| exchange.state)
    }

    /// Moves the timer of an exchange.
    pub(crate) fn set_due(&mut self, key: ExchangeKey, due: u64) {
        if let Some(exchange) = self.exchanges.get_mut(&key) {
            self.exchange_timers.stop(exchange.due, key);
            exchange.due = Some(due);
            self.exchange_timers.start(exchange.due, key);
        }
    }

    /// The other host has the frame but not the answer: repetitions may be rare from now on.
    pub(crate) fn slow_down(&mut self, key: ExchangeKey) {
        if let Some(exchange) = self.exchanges.get_mut(&key) {
            exchange.tries = exchange.tries.max(DOUBLINGS);
        }
        self.set_due(key, self.now + SLOW);
    }

    /// Sends the frame of a state, and will do so again.
    pub(crate) fn send_repeated(&mut self, key: ExchangeKey, body: Body) {
        if let Some(exchange) = self.exchanges.get_mut(&key) {
            let due = self.now + interval(exchange.tries);
            exchange.tries += 1;
            self.set_due(key, due);
        }
        self.send_frame(key, body);
    }

    /// Sends one frame of an exchange, which need not be known here.
    pub(crate) fn send_frame(&mut self, key: ExchangeKey, body: Body) {
        let exchange = key.number;
        self.send_to(key.link, key.host, &Frame { exchange, body });
    }

    pub(crate) fn send_to(&mut self, link: LinkId, to: Mac, frame: &Frame) {
        let mut room = [0; FRAME_MAX];
        let length = frame.emit(&mut room);
        let bytes = room[..length].to_vec();
        self.outputs
            .push_back(Output::Frame(FrameOut { link, to, bytes }));
    }

    /// The timer of an exchange went off; it runs no more.
    pub(crate) fn exchange_due(&mut self, key: ExchangeKey) {
        let Some(exchange) = self.exchanges.get_mut(&key) else {
            return;
        };
        exchange.due = None;
        let tries = exchange.tries;
        match exchange.state {
            State::Asking(call) => self.ask_on(key, call),
            // A host that does not repeat its call is not there any more.
            State::Called(_) => self.end_exchange(key),
            State::Readying(connection, _, _) => self.give_up_accepting(key, connection),
            State::Accepting(connection, accepted, until) => {
                if self.now >= until {
                    self.give_up_accepting(key, connection);
                } else {
                    self.answer_on(key, accepted, until);
                }
            }
            State::Leaving { .. } if tries > LEAVING_TRIES => self.end_exchange(key),
            State::Leaving { orderly } => self.leave_on(key, orderly),
            State::Refused(_) | State::Over => self.forget_exchange(key),
            State::Taking(_) | State::Open(_) => {}
        }
    }

    /// A frame from another host; `to_all` when it was not sent to this host alone. An error says why it
    /// was not taken, for the log.
    pub fn handle_frame(
        &mut self,
        now: u64,
        link: LinkId,
        from: Mac,
        to_all: bool,
        bytes: &[u8],
    ) -> Result<(), Refused> {
        self.advance(now);
        let Some(own) = self.links.get(&link).map(|link| link.address) else {
            return Ok(());
        };
        // No other host has an address of a group, or ours.
        if from[0] & 1 != 0 || from == own {
            return Err(Refused::Value);
        }
        let name = |number, side| ExchangeKey {
            link,
            host: from,
            number,
            side,
        };
        let frame = match Frame::parse(bytes) {
            Err(Refused::Version(version)) => {
                let mut room = [0; FRAME_MAX];
                if let Some(length) = foreign(bytes, &mut room).filter(|_| !to_all) {
                    let bytes = room[..length].to_vec();
                    let to = from;
                    self.outputs
                        .push_back(Output::Frame(FrameOut { link, to, bytes }));
                }
                return Err(Refused::Version(version));
            }
            Err(Refused::Foreign(number, lowest, highest)) => {
                // Anybody can send that; it means something as an answer to a call only.
                let meant = self.not_understood(name(number, Side::Asker));
                let cause = Refused::Foreign(number, lowest, highest);
                return Err(if meant { cause } else { Refused::Value });
            }
            other => other?,
        };
        let number = frame.exchange;
        match frame.body {
            Body::Who => self.answer_search(link, from, number),
            _ if to_all => return Err(Refused::Value),
            Body::Here => self.found(link, from, number),
            Body::Request(call) => self.guest_calls(name(number, Side::Answerer), &call, false),
            Body::Peer(call) => self.guest_calls(name(number, Side::Answerer), &call, true),
            Body::Answer(answer) => self.answered(name(number, Side::Asker), answer),
            Body::Ack => self.acknowledged(name(number, Side::Answerer)),
            Body::Disconnect { from, orderly } => {
                self.disconnected(name(number, from.other()), orderly);
            }
            Body::Gone { from } => self.gone(name(number, from.other())),
        }
        Ok(())
    }
}
