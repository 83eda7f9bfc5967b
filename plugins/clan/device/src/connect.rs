//! Attach and detach: who is whose partner.
//!
//! The two sides of a connection are joined by their key, which nobody else knows, in whatever order they
//! come. Until both are there, sends wait.

use vipl_clan_proto::message::Request;
use vipl_clan_proto::vi::end;
use vipl_wire::Reason;

use crate::device::Device;
use crate::events::NEVER;
use crate::offer::OFFERS_MAX;
use crate::vi::CHUNK;

/// What a VI that disconnects may still send.
const LAST_MESSAGES: u32 = 128;
const LAST_BYTES: usize = OFFERS_MAX as usize * CHUNK + (1 << 20);

impl Device {
    pub(crate) fn attach(&mut self, id: usize, request: &Request) {
        self.detach(id);
        let Some(vi) = self.vis.get_mut(id) else {
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
        if let Some(vi) = self.vis.get_mut(id) {
            vi.partner = Some(other);
        }
        if let Some(vi) = self.vis.get_mut(other) {
            vi.partner = Some(id);
        }
        let level = |id: usize| self.vis.get(id).map(|vi| vi.terms.reliability);
        if level(id) != level(other) {
            self.die(id, end::LOST);
            self.die(other, end::LOST);
        }
        self.warm(id);
        self.warm(other);
    }

    fn die(&mut self, id: usize, reason: u32) {
        if let Some(vi) = self.vis.get_mut(id) {
            vi.die(&mut self.tools, reason);
        }
    }

    /// The program disconnects: what it has posted goes first, as far as it can at once.
    pub(crate) fn detach(&mut self, id: usize) {
        if !self.vis.get(id).is_some_and(|vi| vi.attached) {
            return;
        }
        self.take_back_offers(id);
        self.pump(id, LAST_MESSAGES, LAST_BYTES);
        self.part(id, Some(Reason::Disconnected));
        let partner = self.leave(id, false);
        if let Some(partner) = partner {
            self.die(partner, end::DISCONNECTED);
        }
    }

    /// From now on no program is waited for: what two VIs have on offer to each other the device moves itself.
    fn take_back_offers(&mut self, id: usize) {
        let taken = self.with_partner(id, |pair| {
            pair.from.fetches_no_more();
            pair.to.fetches_no_more();
            pair.hear_fetches(0);
        });
        if let Some((partner, ())) = taken {
            self.with_partner(partner, |pair| {
                pair.hear_fetches(0);
                pair.pump(LAST_MESSAGES, LAST_BYTES)
            });
        }
    }

    /// Takes back what a VI has on offer. False: the partner is just fetching some of it.
    pub(crate) fn recall(&mut self, id: usize) -> bool {
        self.with_partner(id, |pair| pair.hear_fetches(0));
        self.warm(id);
        self.vis.get(id).is_none_or(|vi| vi.offered == 0)
    }

    /// The program's side found an error of its own in what arrived.
    pub(crate) fn break_off(&mut self, id: usize, epoch: u32) {
        let Some(vi) = self.vis.get_mut(id) else {
            return;
        };
        if !vi.attached || vi.terms.epoch != epoch {
            return;
        }
        let partner = vi.partner;
        self.part(id, Some(Reason::Lost));
        self.with_partner(id, |pair| pair.withdraw());
        self.die(id, end::TOLD);
        if let Some(partner) = partner {
            self.die(partner, end::LOST);
        }
    }

    /// Tells VIs whose partner's process has ended, and of whom the agent has not said how.
    pub(crate) fn report_orphans(&mut self) {
        if self.tools.now < self.tools.orphaned {
            return;
        }
        self.tools.orphaned = NEVER;
        for id in 0..self.vis.places() {
            let Some(vi) = self.vis.get_mut(id) else {
                continue;
            };
            if !vi.attached || vi.orphaned == 0 {
                continue;
            }
            if vi.orphaned <= self.tools.now {
                vi.die(&mut self.tools, end::LOST);
                vi.orphaned = 0;
            } else {
                self.tools.orphaned = self.tools.orphaned.min(vi.orphaned);
            }
        }
    }

    /// Takes a VI off its connection; gives the partner that is left. Where a process has gone, the agent
    /// says how: the partner is only told if `lost`.
    pub(crate) fn leave(&mut self, id: usize, lost: bool) -> Option<usize> {
        self.part(id, lost.then_some(Reason::Lost));
        self.with_partner(id, |pair| pair.withdraw());
        let vi = self.vis.get_mut(id)?;
        if !vi.attached {
            return None;
        }
        vi.write_back_all(&mut self.tools);
        vi.attached = false;
        vi.halted = true;
        let (key, partner) = (vi.terms.key, vi.partner.take());
        if self.keys.get(&key).is_some_and(|(_, owner)| *owner == id) {
            self.keys.remove(&key);
        }
        let partner = partner?;
        if lost {
            self.die(partner, end::LOST);
        }
        if let Some(other) = self.vis.get_mut(partner) {
            other.partner = None;
        }
        Some(partner)
    }
}
