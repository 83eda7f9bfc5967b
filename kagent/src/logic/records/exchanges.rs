//! Exchange records and the frames of their states. A link that nobody needs any more goes here, too, since
//! its exchanges go with it.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::Budget;
use vipl_wire::setup::{Body, FRAME_MAX, Frame, Refusal, Side};

use crate::logic::limits::IDLE_EXCHANGES_PER_LINK_MAX;
use crate::logic::note::Shown;
use crate::logic::tables::accounts::share;
use crate::logic::tables::call::Owner;
use crate::logic::tables::exchange::{DOUBLINGS, Exchange, REMEMBERED, SLOW, State, interval};
use crate::logic::values::ids::{ExchangeKey, LinkId, Mac};
use crate::logic::values::output::{FrameOut, Output};

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
            && self.unlink_call(call).is_some()
        {
            self.note(|_| format!("call {}: over with its exchange", call.0));
        }
    }

    pub(crate) fn forget_exchange(&mut self, key: ExchangeKey) {
        if self.take_exchange(key).is_some() {
            self.note(|_| format!("{}: forgotten", Shown(key)));
        }
        self.close_idle_link(key.link);
    }

    /// Lets go of a link on which nobody has an endpoint and nothing is left to be said. What the agent
    /// remembers of exchanges there is of no use any more: nobody waits there.
    pub(crate) fn close_idle_link(&mut self, index: LinkId) {
        let idle = self
            .links
            .get(&index)
            .is_none_or(|link| link.endpoints.is_empty() && link.leaving == 0);
        if idle {
            self.links.remove(&index);
            self.forget_exchanges(index);
            self.outputs.push_back(Output::CloseLink(index));
        }
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
}
