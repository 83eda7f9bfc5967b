//! Exchange records and the frames of their states; also closing an unused link, whose exchanges end with it.

#![forbid(unsafe_code)]

use kagent_proto::setup::{Body, FRAME_MAX, Frame, Refusal, Side};
use kagent_proto::{Budget, Reason};

use crate::logic::address::HostAddress;
use crate::logic::agent::{Agent, Shown};
use crate::logic::budgets::{IDLE_EXCHANGES_PER_LINK_MAX, share};
use crate::logic::calls::Owner;
use crate::logic::ids::{ExchangeKey, LinkId};
use crate::logic::objects::{DOUBLINGS, Exchange, REMEMBERED, SLOW, State, interval};
use crate::logic::output::{FrameOut, Output};

impl<F: Clone> Agent<F> {
    /// Starts an exchange or changes its state. `due` is the deadline of the state.
    pub(crate) fn set_exchange(&mut self, key: ExchangeKey, state: State, due: Option<u64>) {
        let before = self.take_exchange(key);
        let user = before
            .as_ref()
            .map_or_else(|| self.user_asking(state), |before| before.user);
        let Some(link) = self.links.get_mut(&key.link) else {
            // The link is closed, so nothing would answer.
            return self.end_remote_call(state);
        };
        link.exchanges[key.side as usize] += 1;
        if let State::Asking(_) = state {
            link.asking.insert(key);
        }
        if key.side == Side::Answerer && state.is_idle() {
            let source = key.host.source(link.medium);
            *link.idle.0.entry(source).or_default() += 1;
            link.idle.1 += 1;
        }
        link.disconnecting += usize::from(matches!(state, State::Disconnecting { .. }));
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
            last_reason: Reason::SILENT,
        };
        self.exchanges.insert(key, exchange);
        if before.is_some_and(|before| matches!(before.state, State::Disconnecting { .. })) {
            self.close_idle_link(key.link);
        }
    }

    /// Ends an exchange. The asker forgets it: a late answer is replied to with GONE. The answerer remembers
    /// it, since a late copy of the call would start another exchange.
    pub(crate) fn end_exchange(&mut self, key: ExchangeKey) {
        match key.side {
            Side::Asker => self.forget_exchange(key),
            Side::Answerer => {
                let until = self.now + REMEMBERED;
                self.set_exchange(key, State::Over, Some(until));
            }
        }
    }

    /// Refuses a call, and repeats the refusal when the call is repeated.
    pub(crate) fn set_refused(&mut self, key: ExchangeKey, refusal: Refusal) {
        let until = self.now + REMEMBERED;
        self.set_exchange(key, State::Refused(refusal), Some(until));
    }

    /// Removes an exchange, or its old state, together with the remote call of that state. A call that
    /// outlived its exchange would still be offered to servers, which would then wait for an acknowledgement
    /// that never arrives.
    fn take_exchange(&mut self, key: ExchangeKey) -> Option<Exchange> {
        let gone = self.exchanges.remove(&key)?;
        self.exchange_timers.stop(gone.due, key);
        if let Some(link) = self.links.get_mut(&key.link) {
            link.exchanges[key.side as usize] -= 1;
            link.asking.remove(&key);
            link.disconnecting -= usize::from(matches!(gone.state, State::Disconnecting { .. }));
            let source = key.host.source(link.medium);
            if key.side == Side::Answerer
                && gone.state.is_idle()
                && let Some(of_source) = link.idle.0.get_mut(&source)
            {
                *of_source -= 1;
                if *of_source == 0 {
                    link.idle.0.remove(&source);
                }
                link.idle.1 -= 1;
            }
        }
        if let Some(user) = gone.user {
            self.accounts.release(user, Budget::Exchanges, 1);
        }
        self.end_remote_call(gone.state);
        Some(gone)
    }

    /// The user whose call starts an exchange.
    fn user_asking(&self, state: State) -> Option<u32> {
        let State::Asking(call) = state else {
            return None;
        };
        match self.calls.get(&call)?.owner {
            Owner::Process(_, nic) => Some(self.nics.get(&nic)?.address.uid),
            Owner::Remote(_) => None,
        }
    }

    /// Whether there is room for one more exchange of another host that involves no local process. One source
    /// may have half of what the others leave.
    pub(crate) fn has_idle_room(&self, link: LinkId, host: HostAddress) -> bool {
        let Some(link) = self.links.get(&link) else {
            return false;
        };
        let (sources, all) = &link.idle;
        let own = sources.get(&host.source(link.medium)).copied();
        let own = own.unwrap_or(0);
        own < share(IDLE_EXCHANGES_PER_LINK_MAX, all - own)
    }

    /// Ends the remote call of a previous state, unless it has ended. A server that holds it keeps an expired
    /// handle.
    fn end_remote_call(&mut self, state: State) {
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

    /// Closes a link without endpoints and without unacknowledged DISCONNECTs. No call waits there, so its
    /// remembered exchanges are dropped.
    pub fn close_idle_link(&mut self, index: LinkId) {
        let idle = self
            .links
            .get(&index)
            .is_none_or(|link| link.endpoints.is_empty() && link.disconnecting == 0);
        if idle {
            self.links.remove(&index);
            self.forget_exchanges(index);
            self.outputs.push_back(Output::CloseLink(index));
        }
    }

    /// Drops all exchanges of a link. Remote calls receive no answer: an agent that serves the interface
    /// later treats their repetitions as new calls.
    pub(crate) fn forget_exchanges(&mut self, link: LinkId) {
        for key in self.exchanges_on(link) {
            self.take_exchange(key);
        }
    }

    pub(crate) fn exchanges_on(&self, link: LinkId) -> Vec<ExchangeKey> {
        let first = ExchangeKey::new(link, HostAddress::FIRST, 0, Side::Asker);
        let last = ExchangeKey::new(link, HostAddress::LAST, u64::MAX, Side::Answerer);
        self.exchanges
            .range(first..=last)
            .map(|(key, _)| *key)
            .collect()
    }

    pub(crate) fn state(&self, key: ExchangeKey) -> Option<State> {
        self.exchanges.get(&key).map(|exchange| exchange.state)
    }

    /// Restarts the timer of an exchange.
    pub(crate) fn set_due(&mut self, key: ExchangeKey, due: u64) {
        if let Some(exchange) = self.exchanges.get_mut(&key) {
            self.exchange_timers.stop(exchange.due, key);
            exchange.due = Some(due);
            self.exchange_timers.start(exchange.due, key);
        }
    }

    /// The remote host holds the call: reduces repetitions to the slowest rate.
    pub(crate) fn slow_down(&mut self, key: ExchangeKey) {
        if let Some(exchange) = self.exchanges.get_mut(&key) {
            exchange.tries = exchange.tries.max(DOUBLINGS);
            exchange.last_reason = Reason::NOT_ACCEPTED;
        }
        self.set_due(key, self.now + SLOW);
    }

    /// Sends the frame of a state and schedules its repetition.
    pub(crate) fn send_repeated(&mut self, key: ExchangeKey, body: Body) {
        if let Some(exchange) = self.exchanges.get_mut(&key) {
            let due = self.now + interval(exchange.tries);
            exchange.tries += 1;
            self.set_due(key, due);
        }
        self.send_frame(key, body);
    }

    /// Sends one frame. The exchange need not exist here.
    pub(crate) fn send_frame(&mut self, key: ExchangeKey, body: Body) {
        let exchange = key.number;
        self.send_to(key.link, key.host, &Frame { exchange, body });
    }

    pub(crate) fn send_to(&mut self, link: LinkId, to: HostAddress, frame: &Frame) {
        let mut room = [0; FRAME_MAX];
        let length = frame.emit(&mut room);
        let bytes = room[..length].to_vec();
        self.outputs
            .push_back(Output::Frame(FrameOut { link, to, bytes }));
    }
}
