//! Long messages that the receiving application fetches itself.
//!
//! The device is neither the sender nor the receiver, so the kernel copies twice when it moves data. An application
//! that polls can copy once. The device checks both descriptors as usual and publishes the completion with the location
//! of the data; the receiver's side copies it into the posted buffers; then the send completes. After a timeout the
//! device takes back the offer and moves the message itself, and also the next ones to that VI.
//!
//! Both applications waiting on one processor, the device on another; best of three without offers and with them: 65
//! 472 bytes 27.0 and 17.3 µs, 4.2 and 5.0 GB/s; 16 KiB 14.1 and 11.7 µs, 2.1 and 1.7 GB/s. Offers are slower in
//! streams of short messages, and where other threads take the processors: each offer to a receiver that is not running
//! times out. `clan.single_copy = false` disables them.

use vipl_abi::VIP_STATUS_OP_SEND;
use vipl_clan_proto::claim;
use vipl_clan_proto::message::flag;
use vipl_clan_proto::vi::{OFFER_SEGMENTS, Offer};

use super::{Pair, Vi};
use crate::completions::publish;
use crate::queues::Outgoing;
use crate::tools::{CHUNK, Tools};

/// Smallest message that is offered, in bytes: the device moves a shorter one faster.
const OFFER_MIN: u32 = 4096;
/// Maximum outstanding offers of a VI.
pub(crate) const OFFERS_MAX: u32 = 64;
/// Offer timeout, in nanoseconds.
pub(super) const PATIENCE_NS: u64 = 50_000;
/// Number of messages to move directly after an offer has timed out.
const UNATTENDED: u32 = 64;

impl Pair<'_> {
    /// Whether a message can be fetched, as far as the sender is concerned. False: the device moves it, or finds the
    /// error.
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

    /// Completes offers that have been fetched, and takes back those that have not been claimed for so long, in
    /// nanoseconds. True: there was work, or there will be soon.
    pub(crate) fn check_offers(&mut self, patience: u64) -> bool {
        let mut worked = false;
        while self.from.offered > 0 {
            let slot = self.to.queues.pages().received(self.to.receives());
            match slot.claim.state() {
                claim::FETCHED => fetched(self.from, self.to, self.tools),
                // Its end wakes the device, which may sleep meanwhile.
                claim::FETCHING => return worked,
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
            worked = true;
        }
        worked
    }

    /// Stops offers in both directions, and takes back those of this VI.
    pub(crate) fn stop_offers(&mut self) {
        self.from.queues.stop_fetches();
        self.to.queues.stop_fetches();
        self.check_offers(0);
    }

    /// The connection ends: withdraws the offers in both directions.
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

/// Takes back all offers. The application's side takes offers in order, and stops at one that it cannot claim.
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
        // An application's side that is fetching finds that it was too late.
        if !slot.claim.withdraw() {
            break;
        }
        fetched(from, to, tools);
    }
    give_up(from, to);
}
