//! Long messages that the receiver fetches itself, and those that it does not fetch.

mod harness;

use std::sync::atomic::Ordering::Acquire;

use harness::*;
use vipl_abi::*;
use vipl_clan_proto::claim;
use vipl_clan_proto::message::{Request, flag, op, status};
use vipl_clan_proto::vi::{Offer, Segment, end};

const RD: u16 = VIP_SERVICE_RELIABLE_DELIVERY;
const BYTES: u32 = 4096;

/// A couple whose receiver fetches, and a message that can be offered.
struct Post {
    couple: Couple,
    source: Memory,
    target: Memory,
    out: u32,
    send: Descriptor,
    receive: Descriptor,
}

impl Post {
    fn new(agent: &Agent, level: u16) -> Post {
        let mut couple = Couple::new(agent, 71, level, OPEN_TO_ALL | flag::FETCHES);
        let mut source = Memory::new(1 << 20);
        source.fill(level as u8);
        let target = Memory::new(1 << 20);
        let out = couple.near.register(source.base(), 1 << 20, 0);
        let into = couple.far.register(target.base(), 1 << 20, 0);
        let send = Descriptor::from(&[
            source.segment(out, 5, 1000),
            source.segment(out, 70_000, BYTES - 1000),
        ]);
        let receive = Descriptor::into(&[target.segment(into, 0, 1 << 20)]);
        Post {
            couple,
            source,
            target,
            out,
            send,
            receive,
        }
    }

    /// Sends messages until this thread has begun to fetch one before the device takes it back. Returns its number.
    fn catch(&mut self) -> u32 {
        until("an offer that this thread takes in time", || {
            let couple = &mut self.couple;
            let number = couple.to.receives;
            couple.to.receive(&self.receive, true);
            couple.from.send(&couple.near, &self.send, true);
            let slot = couple.to.pages.received(number);
            until("a message", || {
                if slot.sequence.load(Acquire) != number.wrapping_add(1) {
                    return None;
                }
                if slot.claim.begin_fetch() {
                    return Some(Some(number));
                }
                (slot.claim.state() == claim::PLACED).then_some(None)
            })
        })
    }

    /// Ends the fetch, with or without the data. False: it was too late.
    fn end(&self, number: u32, copied: bool) -> bool {
        let in_time = self
            .couple
            .to
            .pages
            .received(number)
            .claim
            .end_fetch(copied);
        self.couple.far.kick();
        in_time
    }

    fn offer(&self, number: u32) -> Offer {
        self.couple.to.pages.received(number).offer()
    }

    fn is_sent(&self, number: u32) -> bool {
        let sequence = &self.couple.from.pages.sent(number).sequence;
        sequence.load(Acquire) == number.wrapping_add(1)
    }

    fn message(&self) -> Vec<u8> {
        let mut bytes = self.source.copy(5, 1000);
        bytes.extend(self.source.copy(70_000, BYTES as usize - 1000));
        bytes
    }
}

#[test]
fn a_send_completes_when_its_message_has_been_fetched() {
    let agent = Agent::start();
    for level in [VIP_SERVICE_UNRELIABLE, RD, VIP_SERVICE_RELIABLE_RECEPTION] {
        let mut post = Post::new(&agent, level);
        let number = post.catch();
        let offer = post.offer(number);
        let part = |address: u64, length: u32| Segment {
            address,
            length,
            handle: 0,
        };
        let base = post.source.base();
        let parts = [part(base + 5, 1000), part(base + 70_000, BYTES - 1000)];
        assert_eq!((offer.count, offer.segments), (2, parts));
        assert_eq!(offer.thread, std::process::id() as i32);
        // A short message after it must wait.
        let small = Descriptor::from(&[post.source.segment(post.out, 0, 8)]);
        let couple = &mut post.couple;
        couple.to.receive(&post.receive, true);
        couple.from.send(&couple.near, &small, true);
        // The fetch ends while the device sleeps, and must wake it.
        until("the device sleeps", || {
            (couple.near.page().asleep.load(Acquire) & 1 != 0).then_some(())
        });
        assert!(!post.is_sent(number));
        assert!(post.end(number, true));
        assert_eq!(post.couple.from.sent(number), VIP_STATUS_OP_SEND);
        assert_eq!(post.couple.to.received(number + 1).length, 8);
        assert_eq!(post.couple.from.sent(number + 1), VIP_STATUS_OP_SEND);
    }
}

#[test]
fn what_is_not_fetched_the_device_moves() {
    let agent = Agent::start();
    for size in [4095u32, 4096, 65_472, 65_536, 65_537, 200_000] {
        // After an offer has timed out there are none for some messages.
        let mut post = Post::new(&agent, RD);
        let couple = &mut post.couple;
        let send = Descriptor::from(&[post.source.segment(post.out, 1, size)]);
        couple.to.receive(&post.receive, true);
        couple.from.send(&couple.near, &send, true);
        assert_eq!(couple.from.sent(0), VIP_STATUS_OP_SEND);
        let bytes = size as usize;
        assert!(post.target.copy(0, bytes) == post.source.copy(1, bytes));
        assert_eq!(post.receive.result().1, size);
    }
}

#[test]
fn what_cannot_be_fetched_the_device_moves() {
    let agent = Agent::start();
    let mut post = Post::new(&agent, RD);
    let number = post.catch();
    assert!(post.end(number, false));
    assert_eq!(post.couple.from.sent(number), VIP_STATUS_OP_SEND);
    let arrived = post.couple.to.received(number);
    assert_eq!((arrived.length, arrived.small.len()), (BYTES, 0));
    assert!(post.target.copy(0, BYTES as usize) == post.message());
    // No message is offered any more: the data of each is in place when it completes.
    for number in number + 1..number + 200 {
        let couple = &mut post.couple;
        couple.to.receive(&post.receive, true);
        couple.from.send(&couple.near, &post.send, true);
        assert_eq!(couple.from.sent(number), VIP_STATUS_OP_SEND);
        let claim = couple.to.pages.received(number).claim.state();
        assert_eq!(claim, claim::PLACED);
    }
}

/// Whether the device has taken back the sender's offers.
fn recall(post: &Post) -> bool {
    match post.couple.near.ask(op::RECALL, &post.couple.from) {
        status::OK => true,
        status::BUSY => false,
        other => panic!("status {other}"),
    }
}

/// The sender's memory is deregistered: a fetch that has begun ends first, and what is on offer fails the check.
#[test]
fn what_is_recalled_is_not_fetched() {
    let agent = Agent::start();
    let mut post = Post::new(&agent, RD);
    let number = post.catch();
    for _ in 0..3 {
        post.couple.to.receive(&post.receive, true);
        post.couple.from.send(&post.couple.near, &post.send, true);
    }
    post.couple.near.deregister(post.out);
    assert!(!recall(&post));
    assert!(post.end(number, true));
    assert!(recall(&post));
    assert_eq!(post.couple.from.sent(number), VIP_STATUS_OP_SEND);
    let refused = VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_SEND;
    assert_eq!(post.couple.from.sent(number + 1), refused);
    assert_eq!(post.couple.from.ended(), end::REPORTED);
    assert_eq!(post.couple.to.ended(), end::LOST);
}

/// The sender's memory may have any contents afterwards.
#[test]
fn a_sender_that_leaves_takes_its_message_with_it() {
    let agent = Agent::start();
    let mut post = Post::new(&agent, RD);
    let number = post.catch();
    post.couple.near.detach(&post.couple.from);
    assert!(!post.end(number, true), "it was too late");
    assert!(!post.is_sent(number));
    assert_eq!(post.couple.to.ended(), end::DISCONNECTED);
}

/// An offer that has not been claimed is delivered before the end, as all others.
#[test]
fn a_sender_that_leaves_has_its_offers_moved() {
    let agent = Agent::start();
    let mut post = Post::new(&agent, RD);
    let number = post.catch();
    assert!(post.end(number, true));
    for _ in 0..3 {
        post.couple.to.receive(&post.receive, true);
        post.couple.from.send(&post.couple.near, &post.send, true);
    }
    post.couple.near.detach(&post.couple.from);
    for number in number + 1..number + 4 {
        assert_eq!(post.couple.from.sent(number), VIP_STATUS_OP_SEND);
        assert_eq!(post.couple.to.received(number).length, BYTES);
    }
    assert!(post.target.copy(0, BYTES as usize) == post.message());
}

/// An error of the receiver ends the connection during a fetch.
#[test]
fn an_error_the_other_way_withdraws_the_offer() {
    let agent = Agent::start();
    let mut post = Post::new(&agent, RD);
    let number = post.catch();
    let bad = Descriptor::from(&[post.source.segment(4000, 0, 8)]);
    let couple = &mut post.couple;
    couple.to.send(&couple.far, &bad, true);
    assert_eq!(couple.from.ended(), end::LOST);
    assert_eq!(couple.to.ended(), end::REPORTED);
    assert!(!post.end(number, true), "it was too late");
    assert!(!post.is_sent(number));
}

/// The receiver's side breaks the connection, as for an error that only it can find.
#[test]
fn a_receiver_that_breaks_off_gets_nothing_more() {
    let agent = Agent::start();
    let mut post = Post::new(&agent, RD);
    let number = post.catch();
    post.couple.far.send(&Request {
        op: op::BREAK,
        vi: post.couple.to.number,
        epoch: post.couple.to.epoch,
        ..Request::default()
    });
    assert_eq!(post.couple.from.ended(), end::LOST);
    assert!(!post.end(number, true), "it was too late");
    assert!(!post.is_sent(number));
}
