//! Long messages that the receiving program fetches itself.
//!
//! The device is neither the process that sends nor the one that receives, so the kernel copies twice when
//! it moves data. A program that is looking for messages anyway can copy once: the device checks both
//! descriptors as always and publishes the completion with the place of the data; the program's side of
//! the receiver reads it straight into the posted buffers; then the send completes. A message that nobody
//! begins to fetch in time is taken back and moved by the device, and so are the next ones of that VI.
//!
//! Both programs on one processor, waiting, the device on another; best of three without offers and with them:
//! 65 472 bytes 27.0 and 17.3 µs, 4.2 and 5.0 GB/s; 16 KiB 14.1 and 11.7 µs, 2.1 and 1.7 GB/s. Offers lose in streams
//! of short messages, and where other programs take the processors: a receiver that is not running lets each offer
//! time out. `clan.single_copy = false` turns them off.

use vipl_abi::VIP_STATUS_OP_SEND;
use vipl_clan_proto::claim;
use vipl_clan_proto::message::flag;
use vipl_clan_proto::vi::{OFFER_SEGMENTS, Offer};

use super::{Pair, Vi};
use crate::completions::publish;
use crate::queues::Outgoing;
use crate::tools::{CHUNK, Tools};

/// Messages below this size the device moves sooner than a program can be told of them, in bytes.
const OFFER_MIN: u32 = 4096;
/// Messages of one VI that are offered at a time.
pub(crate) const OFFERS_MAX: u32 = 64;
/// How long an offer waits to be taken, in nanoseconds.
pub(super) const PATIENCE_NS: u64 = 50_000;
/// Messages that are not offered after one that was not taken.
const UNATTENDED: u32 = 64;

impl Pair<'_> {
    /// Whether a message can be fetched, as far as the sender goes, by somebody who fetches. False: the device moves it, or
    /// finds what is wrong with it.
    #[inline(always)]
    pub(super) fn may_offer(&mut self, outgoing: &Outgoing) -> bool {
        (OFFER_MIN..=CHUNK as u32).contains(&outgoing.length) && self.receiver_fetches()
    }

    fn receiver_fetches(&mut self) -> bool {
        if self.to.unattended > 0 {
            self.to.unattended -= 1;
            return false;
        }
        let is_named = |vi: &Vi| vi.queues.process().is_named();
        is_named(self.from)
            && is_named(self.to)
            && self.from.moved.0 == 0
            && self.to.queues.terms().has(flag::FETCHES)
            && self.from.offered < OFFERS_MAX
            && self.tools.out.len() <= OFFER_SEGMENTS
    }

    /// Offers a message to the receiver, for the receive descriptor with this number.
    pub(super) fn offer(&mut self, outgoing: &Outgoing, number: u32) {
        let mut offer = Offer {
            thread: self.from.queues.process().thread(),
            count: self.tools.out.len(),
            ..Offer::default()
        };
        offer.segments[..offer.count].copy_from_slice(&self.tools.out);
        if self.from.offered == 0 {
            self.from.offered_at = self.tools.now;
        }
        self.from.offered += 1;
        let outcome = self.outcome(outgoing);
        let queues = &self.to.queues;
        queues.pages().received(number).set_offer(&offer);
        publish(queues.pages(), number, outcome, 0, claim::OFFERED);
        self.to.completions.announce(queues, self.tools);
    }

    /// Completes what has been fetched, and takes back what nobody has begun to fetch in this time, in
    /// nanoseconds. True: something has happened, or is soon to happen.
    pub(crate) fn check_offers(&mut self, patience: u64) -> bool {
        let mut heard = false;
        while self.from.offered > 0 {
            let slot = self.to.queues.pages().received(self.to.receives());
            match slot.claim.state() {
                claim::FETCHED => fetched(self.from, self.to, self.tools),
                // It says so when it is done: the device may sleep meanwhile.
                claim::FETCHING => return heard,
                claim::OFFERED if self.tools.now < self.from.offered_at + patience => return true,
                claim::OFFERED => {
                    if slot.claim.take_back() {
                        give_up(self.from, self.to);
                        self.to.unattended = UNATTENDED;
                    }
                }
                _ => {
                    give_up(self.from, self.to);
                    self.to.queues.stop_fetches();
                }
            }
            heard = true;
        }
        heard
    }

    /// Nothing is offered any more in either direction; what this VI has on offer is taken back.
    pub(crate) fn stop_offers(&mut self) {
        self.from.queues.stop_fetches();
        self.to.queues.stop_fetches();
        self.check_offers(0);
    }

    /// The connection ends: nothing that is on offer arrives any more, in either direction.
    pub(crate) fn withdraw(&mut self) {
        withdraw(self.from, self.to, self.tools);
        withdraw(self.to, self.from, self.tools);
    }
}

/// The first offer has been fetched.
fn fetched(from: &mut Vi, to: &mut Vi, tools: &Tools) {
    to.completions.pass_received();
    from.offered -= 1;
    from.held = false;
    from.offered_at = tools.now;
    from.complete_send(tools, VIP_STATUS_OP_SEND);
}

/// Whatever is on offer is the device's. The program's side takes offers in order, and does not go beyond
/// one that it may not take.
fn give_up(from: &mut Vi, to: &Vi) {
    for number in 0..from.offered {
        let slot = to
            .queues
            .pages()
            .received(to.receives().wrapping_add(number));
        slot.claim.publish(claim::DEVICE);
    }
    from.offered = 0;
    from.held = false;
}

fn withdraw(from: &mut Vi, to: &mut Vi, tools: &Tools) {
    while from.offered > 0 {
        let slot = to.queues.pages().received(to.receives());
        // A program's side that is at it finds that it was too late.
        if !slot.claim.withdraw() {
            break;
        }
        fetched(from, to, tools);
    }
    give_up(from, to);
}
