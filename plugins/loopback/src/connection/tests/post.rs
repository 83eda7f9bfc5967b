//! When sends leave, complete, wait and fail.

use super::*;
use crate::testing::{DONE, HANDLE, Posted, RD, RR, Reported, U, code, pair, reported};

#[test]
fn a_send_completes_when_its_level_says_so() {
    for (level, at_once) in [(U, true), (RD, true), (RR, false)] {
        let mut pair = pair(level, true);
        pair.right.receive(0, 64);
        pair.left.fill(0, 64, 1);
        let send = pair.left.send(0, 64);
        assert_eq!(pair.left.status(send) == DONE, at_once, "level {level}");
        pair.right.progress();
        pair.left.progress();
        assert_eq!(pair.left.status(send), DONE, "level {level}");
    }
}

/// How many of these sends of the left side are complete.
fn done(pair: &Pair, sends: &[Posted]) -> usize {
    let is_done = |send: &&Posted| pair.left.status(**send) == DONE;
    sends.iter().filter(is_done).count()
}

#[test]
fn a_full_ring_sends_the_rest_when_there_is_room() {
    let mut pair = pair(RD, true);
    for _ in 0..SLOTS + 10 {
        pair.right.receive(0, 8);
    }
    let sends: Vec<_> = (0..SLOTS + 10).map(|_| pair.left.send(0, 8)).collect();
    assert_eq!(done(&pair, &sends), SLOTS as usize);
    assert!(
        pair.left.connection().peer.is_waiting(),
        "the peer must alert it when there is room"
    );
    pair.left.progress();
    assert_eq!(done(&pair, &sends), SLOTS as usize, "no room yet");
    while pair.left.connection().peer.is_waiting() {
        pair.right.progress();
        pair.left.progress();
    }
    assert_eq!(done(&pair, &sends), sends.len());
}

/// Request-response traffic touches no cold slots or payload; afterwards the whole ring is there for a stream.
#[test]
fn messages_one_by_one_use_the_first_slots_and_payload() {
    const EARLY: u32 = 16;
    for length in [8, 4000] {
        let mut pair = pair(RD, true);
        let mut passes = 0;
        for round in 0..200 {
            let data = pair.left.fill(0, length, round);
            let receive = pair.right.receive(0, length as u32);
            pair.left.send(0, length as u32);
            pair.right.progress();
            assert_eq!(pair.right.status(receive), DONE | VIP_STATUS_OP_RECEIVE);
            assert_eq!(pair.right.bytes(0, length), data);
            let answer = pair.left.receive(0, 8);
            pair.right.send(0, 8);
            pair.left.progress();
            assert_eq!(pair.left.status(answer), DONE | VIP_STATUS_OP_RECEIVE);
            let outbox = &pair.left.connection().sender.outbox();
            assert!(outbox.sent() % SLOTS < EARLY, "slot {}", outbox.sent());
            assert!(outbox.next_payload() % PAYLOAD < 80 << 10);
            passes = outbox.sent() / SLOTS;
        }
        assert_eq!(passes, 200 / EARLY);
        // The ring has skipped slots that are not known to be free, or are.
        let left = pair.left.connection();
        left.sender.learn_consumed(&left.peer);
        for _ in 0..SLOTS {
            pair.right.receive(0, 8);
        }
        let data: Vec<_> = (0..SLOTS).map(|_| pair.left.send(0, 8)).collect();
        for send in &data {
            assert_eq!(pair.left.status(*send), DONE);
        }
        for _ in 0..SLOTS / 32 {
            pair.right.progress();
        }
        assert_eq!(
            pair.right.connection().peer.consumed(),
            pair.left.connection().sender.sent()
        );
    }
}

/// A burst that meets the few slots behind an early wrap waits once, and has the whole ring then.
#[test]
fn a_burst_waits_once_behind_an_early_wrap() {
    let mut pair = pair(RD, true);
    for _ in 0..15 {
        pair.right.receive(0, 8);
        pair.left.send(0, 8);
        pair.right.progress();
        let answer = pair.left.receive(0, 8);
        pair.right.send(0, 8);
        pair.left.progress();
        assert_eq!(pair.left.status(answer), DONE | VIP_STATUS_OP_RECEIVE);
    }
    for _ in 0..64 {
        pair.right.receive(0, 8);
    }
    let sends: Vec<_> = (0..64).map(|_| pair.left.send(0, 8)).collect();
    assert!(done(&pair, &sends) < 32, "there are few slots");
    pair.right.progress();
    pair.left.progress();
    assert_eq!(done(&pair, &sends), 64);
}

/// E1 to E3.
#[test]
fn an_error_of_the_sender_ends_reliable_connections_only() {
    for level in [U, RD, RR] {
        let wrong: [(u16, u32, u32, u32); 3] = [
            (VIP_CONTROL_OP_RESERVED, 8, HANDLE, VIP_STATUS_FORMAT_ERROR),
            (0, 8, HANDLE + 1, VIP_STATUS_PROTECTION_ERROR),
            (0, 9, HANDLE, VIP_STATUS_LENGTH_ERROR),
        ];
        for (control, length, handle, status) in wrong {
            let mut pair = pair(level, true);
            pair.right.receive(0, 64);
            let segment = (pair.left.address(0), handle, 8);
            let send = pair.left.post(control, length, &[segment]);
            assert_eq!(pair.left.status(send), DONE | status);
            assert_eq!(pair.left.has_connection(), level == U, "level {level}");
            let ended = [Reported::Failed(0, VIPL_CAUSE_REPORTED)];
            assert_eq!(reported(), if level == U { &[][..] } else { &ended });
        }
    }
}

/// E6.
#[test]
fn a_send_without_a_receive_descriptor() {
    let empty = code(VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY);
    let expected = [
        (U, 0),
        (RD, VIP_STATUS_TRANSPORT_ERROR),
        (RR, VIP_STATUS_REMOTE_DESC_ERROR),
    ];
    for (level, status) in expected {
        let mut pair = pair(level, true);
        let send = pair.left.send(0, 8);
        assert_eq!(pair.left.status(send), DONE | status, "level {level}");
        assert_eq!(pair.left.has_connection(), level == U);
        pair.right.progress();
        let found = reported();
        let here = if level == U {
            Reported::Raised(1, empty)
        } else {
            Reported::Failed(1, empty)
        };
        assert_eq!(found.last(), Some(&here), "level {level}");
    }
}

/// Messages by both methods arrive in the order in which they were posted, and complete.
#[test]
fn both_methods_of_large_messages_are_one_queue() {
    const LENGTHS: [usize; 4] = [30_000, 8, 50_000, 17_000];
    const PLACES: [usize; 4] = [0, 30_000, 31_000, 82_000];
    for level in [U, RD, RR] {
        let mut pair = pair(level, true);
        for round in 0..40 {
            let data = [0, 1, 2, 3].map(|at| pair.left.fill(PLACES[at], LENGTHS[at], round));
            let receives =
                [0, 1, 2, 3].map(|at| pair.right.receive(PLACES[at], LENGTHS[at] as u32));
            let sends = [0, 1, 2, 3].map(|at| pair.left.send(PLACES[at], LENGTHS[at] as u32));
            for _ in 0..16 {
                pair.right.progress();
                pair.left.progress();
            }
            // As if the receiver were another process.
            pair.left.connection().peer.set_reach(Reach::Process(0));
            for at in 0..4 {
                let received = DONE | VIP_STATUS_OP_RECEIVE;
                assert_eq!(pair.left.status(sends[at]), DONE, "round {round}");
                assert_eq!(pair.right.status(receives[at]), received, "round {round}");
                let result = (LENGTHS[at] as u32, 0);
                assert_eq!(pair.right.result(receives[at]), result);
                assert_eq!(pair.right.bytes(PLACES[at], LENGTHS[at]), data[at]);
            }
        }
    }
}
