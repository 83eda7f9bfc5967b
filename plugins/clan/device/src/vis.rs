//! The VIs of the device, and their connections within this host.
//!
//! The two sides of a connection attach in any order and are matched by the connection's secret key. Until both have,
//! sends wait.

use std::collections::HashMap;

use vipl_clan_proto::message::Request;
use vipl_clan_proto::vi::end;

use crate::events::NEVER;
use crate::tools::{CHUNK, Tools};
use crate::vi::{OFFERS_MAX, Pair, Vi};

/// Cold VIs that are polled in one round. Hot ones are polled in each.
const COLD_POLLS: usize = 8;
/// What a VI that disconnects may still send.
const LAST_MESSAGES: u32 = 128;
const LAST_BYTES: usize = OFFERS_MAX as usize * CHUNK + (1 << 20);

/// VIs by a number that does not change.
pub(crate) struct Vis {
    list: Vec<Option<Vi>>,
    free: Vec<usize>,
    /// Sides of connections that wait for their peer: which side, and whose.
    keys: HashMap<u64, (u32, usize)>,
    /// VIs that were active recently.
    hot: Vec<usize>,
    /// The last cold one that was polled.
    cold: usize,
    tools: Tools,
}

impl Vis {
    pub(crate) fn new(tools: Tools) -> Vis {
        Vis {
            list: Vec::new(),
            free: Vec::new(),
            keys: HashMap::new(),
            hot: Vec::new(),
            cold: 0,
            tools,
        }
    }

    pub(crate) fn add(&mut self, vi: Vi) -> usize {
        if let Some(id) = self.free.pop() {
            self.list[id] = Some(vi);
            return id;
        }
        self.list.push(Some(vi));
        self.list.len() - 1
    }

    pub(crate) fn remove(&mut self, id: usize) {
        if self.list[id].take().is_some() {
            self.free.push(id);
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, id: usize) -> Option<&Vi> {
        self.list.get(id)?.as_ref()
    }

    /// A VI, and the tools for it.
    #[inline(always)]
    pub(crate) fn at_work(&mut self, id: usize) -> Option<(&mut Vi, &mut Tools)> {
        Some((self.list.get_mut(id)?.as_mut()?, &mut self.tools))
    }

    /// Calls this with each VI.
    fn each(&mut self, mut act: impl FnMut(&mut Vi, &mut Tools)) {
        for vi in self.list.iter_mut().flatten() {
            act(vi, &mut self.tools);
        }
    }

    /// When this round began.
    pub(crate) fn now(&self) -> u64 {
        self.tools.now
    }

    pub(crate) fn set_now(&mut self, now: u64) {
        self.tools.now = now;
    }

    /// Makes a VI hot.
    pub(crate) fn warm(&mut self, id: usize) {
        if let Some((vi, _)) = self.at_work(id)
            && vi.warm()
        {
            self.hot.push(id);
        }
    }

    /// The hot VI in this place of the list.
    #[inline(always)]
    pub(crate) fn hot(&self, place: usize) -> Option<usize> {
        self.hot.get(place).copied()
    }

    /// The end of a round for the hot VI in this place. False: it is not hot any more, and another one has its place.
    pub(crate) fn keep_hot(&mut self, place: usize) -> bool {
        let id = self.hot[place];
        let hot = self
            .at_work(id)
            .is_some_and(|(vi, tools)| vi.end_round(tools));
        if !hot {
            self.hot.swap_remove(place);
        }
        hot
    }

    /// Polls a few cold VIs. True: a doorbell of one has been rung.
    pub(crate) fn warm_some(&mut self) -> bool {
        let mut found = false;
        for _ in 0..COLD_POLLS.min(self.list.len()) {
            self.cold = (self.cold + 1) % self.list.len();
            let id = self.cold;
            if self.get(id).is_some_and(|vi| !vi.is_hot() && vi.is_rung()) {
                self.warm(id);
                found = true;
            }
        }
        found
    }

    /// After a sleep: makes all VIs hot whose doorbell has been rung.
    pub(crate) fn warm_all_rung(&mut self) {
        for id in 0..self.list.len() {
            if self.get(id).is_some_and(Vi::is_rung) {
                self.warm(id);
            }
        }
    }

    /// Whether a doorbell has been rung, or a peer has finished fetching.
    pub(crate) fn have_work(&self) -> bool {
        let is_fetched = |vi: &Vi| {
            let peer = vi.peer().filter(|_| vi.has_offers());
            let peer = peer.and_then(|id| self.get(id));
            peer.is_some_and(|peer| !peer.is_fetching())
        };
        let mut all = self.list.iter().flatten();
        all.any(|vi| vi.is_rung() || is_fetched(vi))
    }

    /// Writes all open completions, before the device sleeps.
    pub(crate) fn write_back_all(&mut self) {
        self.each(|vi, tools| vi.write_back_all(tools));
    }

    /// When the first orphaned connection ends, in nanoseconds.
    pub(crate) fn orphans_due(&self) -> u64 {
        self.tools.orphaned
    }

    /// Ends connections whose peer's process has exited, if the agent has not reported how.
    pub(crate) fn report_orphans(&mut self) {
        if self.tools.now >= self.tools.orphaned {
            self.tools.orphaned = NEVER;
            self.each(|vi, tools| vi.check_orphaned(tools, end::LOST));
        }
    }

    /// The peer's process has exited.
    pub(crate) fn orphan(&mut self, id: usize) {
        if let Some((vi, tools)) = self.at_work(id) {
            vi.orphan(tools);
        }
    }

    pub(crate) fn die(&mut self, id: usize, reason: u32) {
        if let Some((vi, tools)) = self.at_work(id) {
            vi.die(tools, reason);
        }
    }

    /// Attaches a VI to one on this host.
    pub(crate) fn attach(&mut self, id: usize, request: &Request) {
        let Some((vi, _)) = self.at_work(id) else {
            return;
        };
        vi.attach(request);
        self.warm(id);
        let (key, side) = (request.key, request.side);
        match self.keys.get(&key) {
            None => {
                self.keys.insert(key, (side, id));
            }
            Some((other_side, _)) if *other_side == side => self.die(id, end::LOST),
            Some((_, other)) => {
                let other = *other;
                self.keys.remove(&key);
                self.join(id, other);
            }
        }
    }

    fn join(&mut self, id: usize, other: usize) {
        for (one, peer) in [(id, other), (other, id)] {
            if let Some((vi, _)) = self.at_work(one) {
                vi.set_peer(Some(peer));
            }
        }
        let level = |id: usize| self.get(id).map(|vi| vi.queues().terms().reliability);
        if level(id) != level(other) {
            self.die(id, end::LOST);
            self.die(other, end::LOST);
        }
        self.warm(id);
        self.warm(other);
    }

    /// Calls this with a VI and its peer on this host, if there is one; returns the peer and the result.
    #[inline(always)]
    fn with_peer<R>(
        &mut self,
        id: usize,
        act: impl FnOnce(&mut Pair<'_>) -> R,
    ) -> Option<(usize, R)> {
        let peer = self.get(id)?.peer()?;
        let [from, to] = self.list.get_disjoint_mut([id, peer]).ok()?;
        let mut pair = Pair::new(from.as_mut()?, to.as_mut()?, &mut self.tools);
        Some((peer, act(&mut pair)))
    }

    /// Processes a bounded part of the send queue of a VI with a peer on this host. True: there was work.
    #[inline(always)]
    pub(crate) fn pump(&mut self, id: usize, messages: u32, bytes: usize) -> bool {
        let pumped = self.with_peer(id, |pair| pair.pump(messages, bytes));
        let Some((peer, true)) = pumped else {
            return false;
        };
        self.warm(id);
        self.warm(peer);
        true
    }

    /// Sends what a VI has posted before it disconnects, as far as that can happen at once. The device moves the offers
    /// of both sides itself.
    pub(crate) fn pump_last(&mut self, id: usize) {
        let stopped = self.with_peer(id, |pair| pair.stop_offers());
        if let Some((peer, ())) = stopped {
            self.with_peer(peer, |pair| {
                pair.check_offers(0);
                pair.pump(LAST_MESSAGES, LAST_BYTES)
            });
        }
        if self.get(id).is_some_and(Vi::has_work) {
            self.pump(id, LAST_MESSAGES, LAST_BYTES);
        }
    }

    /// Takes back the offers of a VI. False: the peer is fetching one.
    pub(crate) fn recall(&mut self, id: usize) -> bool {
        self.with_peer(id, |pair| pair.check_offers(0));
        self.warm(id);
        self.get(id).is_none_or(|vi| !vi.has_offers())
    }

    /// Withdraws the offers of a VI and its peer.
    pub(crate) fn withdraw(&mut self, id: usize) {
        self.with_peer(id, |pair| pair.withdraw());
    }

    /// Takes a VI off its connection; returns the peer on this host, which has no peer any more.
    pub(crate) fn detach(&mut self, id: usize) -> Option<usize> {
        self.withdraw(id);
        let (vi, tools) = self.at_work(id).filter(|(vi, _)| vi.is_attached())?;
        let key = vi.queues().terms().key;
        let peer = vi.detach(tools);
        if self.keys.get(&key).is_some_and(|(_, owner)| *owner == id) {
            self.keys.remove(&key);
        }
        let peer = peer?;
        if let Some((other, _)) = self.at_work(peer) {
            other.set_peer(None);
        }
        Some(peer)
    }
}
