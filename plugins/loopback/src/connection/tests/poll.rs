//! What a poll takes, completes and publishes.

use super::*;
use crate::segment::{Announcement, INLINE, PIECE, op};
use crate::testing::{DONE, Posted, RD, RR, Reported, U, code, pair, reported};
use crate::ticks::ticks;

#[test]
fn messages_by_all_methods_arrive_whole() {
    for single_copy in [true, false] {
        for length in [0, 1, 40, 41, 16_384, 16_385, 65_536] {
            let mut pair = pair(RD, single_copy);
            let data = pair.left.fill(0, length, length);
            let receive = pair.right.receive(64, length as u32 + 3);
            let send = pair.left.send(0, length as u32);
            // Both sides may first have to find out how the peer's memory is accessed.
            for _ in 0..4 {
                pair.right.progress();
                pair.left.progress();
            }
            assert_eq!(pair.left.status(send), DONE, "{length} bytes");
            let received = DONE | VIP_STATUS_OP_RECEIVE;
            assert_eq!(pair.right.status(receive), received, "{length} bytes");
            assert_eq!(pair.right.result(receive), (length as u32, 0));
            assert_eq!(pair.right.bytes(64, length), data);
            assert_eq!(
                pair.right.bytes(64 + length, 3),
                [0; 3],
                "behind the message"
            );
        }
    }
}

/// A pair whose sides have nothing else to find out, and whose left thread does not sleep on the bell.
fn settled() -> Pair {
    let mut pair = pair(RR, true);
    pair.left.nic.watch().stop();
    received(&mut pair);
    pair.left.progress();
    pair
}

/// A message of the left side that the right one has received.
fn received(pair: &mut Pair) -> Posted {
    pair.right.receive(0, 8);
    let send = pair.left.send(0, 8);
    pair.right.progress();
    send
}

/// Whether a poll of the left side completes the send, if its last poll of the count was at that time.
fn is_found(pair: &mut Pair, send: Posted, polled: u64) -> bool {
    pair.left.connection().sender.set_polled(polled);
    pair.left.progress();
    pair.left.status(send) == DONE
}

/// How many of three messages a poll takes that follows one of an empty ring.
fn taken_after_nothing(pair: &mut Pair) -> usize {
    pair.right.progress();
    let receives = [0; 3].map(|at| pair.right.receive(at, 8));
    for _ in 0..3 {
        pair.left.send(0, 8);
    }
    pair.right.progress();
    let done = |pair: &Pair| receives.map(|receive| pair.right.status(receive) != 0);
    let taken = done(pair);
    pair.right.progress();
    assert_eq!(done(pair), [true; 3], "the next poll takes the others");
    taken.into_iter().filter(|taken| *taken).count()
}

#[test]
fn a_message_after_an_empty_poll_is_taken_alone() {
    // An acknowledgement stands for all messages before it.
    for (level, taken) in [(U, 1), (RD, 1), (RR, 3)] {
        let mut pair = pair(level, true);
        received(&mut pair);
        assert_eq!(taken_after_nothing(&mut pair), taken, "level {level}");
        assert_eq!(taken_after_nothing(&mut pair), taken, "again");
    }
}

/// A thread is woken once for all that has arrived, and one ready bit stands for it.
#[test]
fn for_a_sleeping_thread_a_poll_takes_everything() {
    for (recv, send) in [(true, false), (false, true)] {
        let mut pair = pair(RD, true);
        received(&mut pair);
        pair.right.await_completions(recv, send);
        assert_eq!(taken_after_nothing(&mut pair), 3);
    }
    let mut pair = pair(RD, true);
    received(&mut pair);
    pair.right.connection().watch(true);
    assert_eq!(taken_after_nothing(&mut pair), 3);
    pair.right.connection().watch(false);
    pair.right.progress();
    assert!(pair.right.connection().inbound.receiver.is_idle());
    pair.right.wait();
    assert!(
        !pair.right.connection().inbound.receiver.is_idle(),
        "it waits for room in the ring"
    );
}

#[test]
fn a_message_in_pieces_is_not_left_after_the_first() {
    let mut pair = pair(RD, false);
    received(&mut pair);
    pair.right.progress();
    assert!(pair.right.connection().inbound.receiver.is_idle());
    let receive = pair.right.receive(0, 65_536);
    pair.left.send(0, 65_536);
    pair.right.progress();
    assert_eq!(
        pair.right.status(receive),
        DONE | VIP_STATUS_OP_RECEIVE,
        "one poll takes all pieces"
    );
}

/// Messages of one piece's length that the left side has sent and the right one has room for.
fn large_messages(pair: &mut Pair, count: usize) -> Vec<Posted> {
    let receives = (0..count).map(|_| pair.right.receive(0, PIECE)).collect();
    for _ in 0..count {
        pair.left.send(0, PIECE);
    }
    receives
}

fn consumed(pair: &mut Pair) -> u32 {
    pair.right
        .connection()
        .peer
        .own()
        .consumed
        .load(Ordering::Relaxed)
}

#[test]
fn the_sender_learns_of_room_before_the_end_of_a_batch() {
    let mut pair = pair(RD, true);
    received(&mut pair);
    let before = consumed(&mut pair);
    large_messages(&mut pair, 5);
    assert_eq!(pair.right.receive_batch(5), (true, 5 * PIECE));
    assert_eq!(
        consumed(&mut pair),
        before + 4,
        "published after each 32 KiB"
    );
    pair.right.connection().peer.acknowledge();
    assert_eq!(consumed(&mut pair), before + 5);
}

/// Otherwise a poll could last as long as the sender has something to send.
#[test]
fn a_batch_ends_with_as_much_as_the_payload_area_holds() {
    let mut pair = pair(RD, true);
    received(&mut pair);
    let receives = large_messages(&mut pair, 20);
    assert_eq!(pair.right.receive_batch(BATCH), (true, PAYLOAD));
    pair.right.connection().peer.acknowledge();
    pair.left.progress();
    assert_eq!(pair.right.receive_batch(BATCH), (false, 4 * PIECE));
    for receive in receives {
        assert_eq!(pair.right.status(receive), DONE | VIP_STATUS_OP_RECEIVE);
    }
}

#[test]
fn what_follows_a_wait_for_room_is_a_burst() {
    let mut pair = pair(RD, true);
    received(&mut pair);
    let left = pair.left.connection();
    left.sender.learn_consumed(&left.peer);
    assert!(receiver_is_idle(&mut pair));
    pair.left.wait();
    assert!(!receiver_is_idle(&mut pair));
}

/// VipDisconnect polls once, and everything that has arrived by then counts (spec §4.4).
#[test]
fn the_end_leaves_nothing_that_has_arrived() {
    for level in [U, RD, RR] {
        let mut pair = pair(level, true);
        received(&mut pair);
        for _ in 0..3 {
            pair.left.progress();
        }
        assert_eq!(
            pair.left.connection().inbound.receiver.is_idle(),
            level != RR
        );
        pair.right.receive(0, 8);
        let send = pair.left.send(0, 8);
        pair.right.progress();
        let receives = [0; 3].map(|at| pair.left.receive(at, 8));
        for _ in 0..3 {
            pair.right.send(0, 8);
        }
        pair.left.progress();
        pair.left.detach();
        assert_eq!(pair.left.status(send), DONE, "level {level}");
        let received = DONE | VIP_STATUS_OP_RECEIVE;
        let statuses = receives.map(|receive| pair.left.status(receive));
        assert_eq!(statuses, [received; 3], "level {level}");
    }
}

const LONG_AGO: u64 = 0;
const JUST_NOW: u64 = u64::MAX;

#[test]
fn a_sender_that_polls_leaves_the_count_alone_for_moments() {
    let mut pair = settled();
    let before = ticks();
    let send = received(&mut pair);
    assert!(
        pair.left.connection().sender.polled() >= before,
        "after a send"
    );
    assert!(!is_found(&mut pair, send, JUST_NOW));
    assert!(is_found(&mut pair, send, LONG_AGO));
    assert!(
        pair.left.connection().sender.polled() >= before,
        "after a poll"
    );
}

#[test]
fn an_answer_brings_the_acknowledgement() {
    let mut pair = settled();
    let send = received(&mut pair);
    pair.left.receive(0, 8);
    pair.right.send(0, 8);
    assert!(is_found(&mut pair, send, JUST_NOW));
}

#[test]
fn a_sender_that_may_be_signalled_polls_at_once() {
    let mut pair = settled();
    let shared = pair.left.nic.shared().clone();
    let epoch = shared.bell().arm();
    let send = received(&mut pair);
    assert!(is_found(&mut pair, send, JUST_NOW), "before it sleeps");
    shared.bell().sleep(epoch, 0);
    pair.left.connection().watch(true);
    let send = received(&mut pair);
    assert!(is_found(&mut pair, send, JUST_NOW), "after a ready bit");
    let mut marks = [0; 64];
    assert_eq!(
        shared.ready().take(usize::MAX, &mut marks),
        1,
        "the peer sets it"
    );
}

/// The ready bit of the answer stands for the later acknowledgement, too.
#[test]
fn one_ready_bit_stands_for_an_answer_and_a_later_acknowledgement() {
    let mut pair = settled();
    pair.left.receive(0, 8);
    let first = received(&mut pair);
    pair.right.receive(0, 8);
    let second = pair.left.send(0, 8);
    pair.right.send(0, 8);
    pair.right.progress();
    pair.left.connection().watch(true);
    assert!(is_found(&mut pair, first, JUST_NOW));
    assert_eq!(pair.left.status(second), DONE);
}

/// RDMA may find first that the peer's process has exited. What that left in its own memory is lost, and nothing
/// behind it is delivered.
#[test]
fn no_message_follows_one_that_cannot_be_fetched_any_more() {
    for level in [U, RD, RR] {
        let mut pair = pair(level, true);
        let met = pair.right.receive(0, 20_000);
        pair.left.send(0, 20_000);
        for _ in 0..4 {
            pair.right.progress();
            pair.left.progress();
        }
        assert_eq!(pair.right.status(met), DONE | VIP_STATUS_OP_RECEIVE);
        let receives = [pair.right.receive(0, 20_000), pair.right.receive(0, 8)];
        pair.left.send(0, 20_000);
        pair.left.send(0, 8);
        copy::lose_reach(&pair.right.connection().peer);
        pair.right.progress();
        assert_eq!(
            reported(),
            [Reported::Failed(1, CONN_LOST)],
            "level {level}"
        );
        assert_eq!(receives.map(|receive| pair.right.status(receive)), [0, 0]);
    }
}

#[test]
fn immediate_data_travels_with_its_flag() {
    let mut pair = pair(RD, true);
    let receive = pair.right.receive(0, 8);
    pair.left.post(VIP_CONTROL_IMMEDIATE, 0, &[]);
    pair.right.progress();
    let status = DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_IMMEDIATE;
    assert_eq!(pair.right.status(receive), status);
    assert_eq!(pair.right.result(receive), (0, 0x1234_5678));
}

/// E7.
#[test]
fn a_message_that_is_too_long_is_reported_on_both_sides() {
    let expected = [
        (U, 0),
        (RD, VIP_STATUS_TRANSPORT_ERROR),
        (RR, VIP_STATUS_REMOTE_DESC_ERROR),
    ];
    for (level, status) in expected {
        let mut pair = pair(level, true);
        let receive = pair.right.receive(0, 8);
        let send = pair.left.send(0, 9);
        pair.right.progress();
        let error = DONE | VIP_STATUS_LENGTH_ERROR | VIP_STATUS_OP_RECEIVE;
        assert_eq!(pair.right.status(receive), error);
        assert_eq!(pair.right.bytes(0, 9), [0; 9]);
        assert_eq!(pair.right.has_connection(), level == U, "level {level}");
        pair.left.progress();
        assert_eq!(pair.left.has_connection(), level == U, "level {level}");
        // On Reliable Delivery the send was complete when its data had left.
        let status = if level == RD { 0 } else { status };
        assert_eq!(pair.left.status(send), DONE | status, "level {level}");
    }
}

#[test]
fn a_poll_ends_and_asks_for_another_one() {
    let mut pair = pair(RD, true);
    let receives: Vec<_> = (0..2 * BATCH + 1)
        .map(|_| pair.right.receive(0, 8))
        .collect();
    for _ in 0..2 * BATCH + 1 {
        pair.left.send(0, 8);
    }
    pair.right
        .nic
        .shared()
        .ready()
        .take(usize::MAX, &mut [0; 64]);
    pair.right.progress();
    assert_ne!(pair.right.status(receives[2 * BATCH as usize - 1]), 0);
    assert_eq!(pair.right.status(receives[2 * BATCH as usize]), 0);
    let mut marked = [0; 64];
    assert_eq!(
        pair.right
            .nic
            .shared()
            .ready()
            .take(usize::MAX, &mut marked),
        1
    );
    assert_eq!(marked[0], 1, "the VI's own index");
}

/// A slot that no honest peer writes costs the connection and nothing else.
#[test]
fn a_peer_that_breaks_the_rules_loses_the_connection() {
    let lost = code(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST);
    let slots = [
        (99, 8, 0),
        (op::INLINE, INLINE as u32 + 1, 0),
        (op::EAGER, PAYLOAD, 64),
        (op::PIECE, 8, 0),
        (op::EVENT, 0, 0),
        (op::DATA, 8, 0),
    ];
    for (op, length, payload) in slots {
        let mut pair = pair(RD, true);
        let receive = pair.right.receive(0, 8);
        let slot = Announcement {
            op,
            length,
            payload,
            ..Announcement::default()
        };
        pair.left.connection().sender.ring().publish(0, slot, 0, 0);
        pair.right.progress();
        assert_eq!(reported(), [Reported::Failed(1, lost)], "operation {op}");
        assert_eq!(pair.right.status(receive), 0, "operation {op}");
        assert_eq!(pair.right.bytes(0, 8), [0; 8], "operation {op}");
    }
}

fn receiver_is_idle(pair: &mut Pair) -> bool {
    let left = pair.left.connection();
    left.sender.receiver_is_idle(&left.peer)
}
