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
use vipl_clan_proto::vi::{OFFER_SEGMENTS, Offer, RECEIVE_SEGMENTS};
use vipl_rules::descriptor::Operation;

use crate::descriptor::Outgoing;
use crate::pair::Pair;
use crate::vi::{CHUNK, Tools, Vi};

/// Messages below this size the device moves sooner than a program can be told of them, in bytes.
const OFFER_MIN: u32 = 4096;
/// Messages of one VI that are offered at a time.
pub(crate) const OFFERS_MAX: u32 = 64;
/// How long an offer waits to be taken, in nanoseconds.
pub(crate) const PATIENCE_NS: u64 = 50_000;
/// Messages that are not offered after one that was not taken.
const UNATTENDED: u32 = 64;

impl Pair<'_> {
    /// Offers a message to the receiver, if it is one that can be fetched, by somebody who fetches. False: the
    /// device moves it, or finds what is wrong with it.
    pub(crate) fn offer(&mut self, outgoing: &Outgoing) -> bool {
        let length = outgoing.length;
        if length < OFFER_MIN || length as usize > CHUNK || outgoing.operation != Operation::Send {
            return false;
        }
        if self.to.unattended > 0 {
            self.to.unattended -= 1;
            return false;
        }
        let (from, to) = (&mut *self.from, &*self.to);
        let named = from.process.is_named && to.process.is_named;
        let begun = from.moved.0 > 0;
        if !named || begun || !to.has(flag::FETCHES) || from.offered == OFFERS_MAX {
            return false;
        }
        if self.tools.out.len() > OFFER_SEGMENTS {
            return false;
        }
        let number = to.receives.wrapping_add(from.offered);
        let Some(line) = to.pages.receive_doorbell(number) else {
            return false;
        };
        let fits = to
            .incoming(&line, Some(length), self.tools)
            .is_ok_and(|incoming| incoming.capacity >= u64::from(length));
        if !fits || self.tools.into.len() > RECEIVE_SEGMENTS {
            return false;
        }
        let mut offer = Offer {
            thread: from.process.thread(),
            count: self.tools.out.len(),
            ..Offer::default()
        };
        offer.segments[..offer.count].copy_from_slice(&self.tools.out);
        if from.offered == 0 {
            from.offered_at = self.tools.now;
        }
        from.offered += 1;
        let outcome = self.outcome(outgoing);
        self.to.pages.received(number).set_offer(&offer);
        self.to.publish(number, outcome, 0, claim::OFFERED);
        self.to.announce(self.tools);
        true
    }

    /// Completes what has been fetched, and takes back what nobody has begun to fetch in this time, in
    /// nanoseconds. True: something has happened, or is soon to happen.
    pub(crate) fn hear_fetches(&mut self, patience: u64) -> bool {
        let mut heard = false;
        while self.from.offered > 0 {
            let slot = self.to.pages.received(self.to.receives);
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
                    self.to.fetches_no_more();
                }
            }
            heard = true;
        }
        heard
    }

    /// The connection ends: nothing that is on offer arrives any more, in either direction.
    pub(crate) fn withdraw(&mut self) {
        withdraw(self.from, self.to, self.tools);
        withdraw(self.to, self.from, self.tools);
    }
}

/// The first offer has been fetched.
fn fetched(from: &mut Vi, to: &mut Vi, tools: &Tools) {
    to.pass_received();
    from.offered -= 1;
    from.held = false;
    from.offered_at = tools.now;
    from.complete_send(tools, VIP_STATUS_OP_SEND);
}

/// Whatever is on offer is the device's. The program's side takes offers in order, and does not go beyond
/// one that it may not take.
fn give_up(from: &mut Vi, to: &Vi) {
    for number in 0..from.offered {
        let slot = to.pages.received(to.receives.wrapping_add(number));
        slot.claim.publish(claim::DEVICE);
    }
    from.offered = 0;
    from.held = false;
}

fn withdraw(from: &mut Vi, to: &mut Vi, tools: &Tools) {
    while from.offered > 0 {
        let slot = to.pages.received(to.receives);
        // A program's side that is at it finds that it was too late.
        if !slot.claim.withdraw() {
            break;
        }
        fetched(from, to, tools);
    }
    give_up(from, to);
}
