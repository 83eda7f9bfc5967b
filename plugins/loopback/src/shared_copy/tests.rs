use super::*;
use crate::segment::Words;
use std::sync::atomic::{AtomicU64, Ordering};
use vipl_abi::*;

use crate::testing::{DONE, End, HANDLE, Pair, Posted, RD, U, pair, reported};

const BYTES: usize = 65_536;
/// RDMA that is shared.
const LONG: usize = 131_072;
const RECEIVED: u32 = DONE | VIP_STATUS_OP_RECEIVE;

/// A pair whose right side is about to receive a large message of the left one.
fn announced(level: u16) -> (Pair, Vec<u8>, [Posted; 2]) {
    let mut pair = pair(level, true);
    let data = pair.left.fill(0, BYTES, 3);
    let receive = pair.right.receive(0, BYTES as u32);
    pair.right.progress();
    let send = pair.left.send(0, BYTES as u32);
    assert!(
        pair.left.connection().sender().has_outstanding(),
        "announced"
    );
    (pair, data, [send, receive])
}

fn whole(end: &End) -> [Segment; 1] {
    [Segment {
        address: end.address(0),
        handle: HANDLE,
        length: BYTES as u32,
    }]
}

/// The right side begins with a message, and does not come far: `meanwhile` runs when the board is open.
fn share(pair: &mut Pair, mut meanwhile: impl FnMut(&mut End)) -> Shared {
    let (local, remote) = (whole(&pair.right), whole(&pair.left));
    let (left, right) = (&mut pair.left, &mut pair.right);
    let (peer, shared) = right.connection().shared_copy();
    let offer = Offer {
        of: Of::Message(peer.consumed()),
        way: Way::Read,
        local: &local,
        remote: &remote,
        bytes: BYTES as u32,
    };
    let mut once = Some(());
    shared.offer(peer, &offer, || {
        once.take().into_iter().for_each(|()| meanwhile(left));
        true
    })
}

fn words(end: &mut End) -> Words {
    *end.connection().peer().words()
}

fn generation(end: &mut End) -> u32 {
    end.connection().shared_copy().1.generation
}

fn take_all(left: &mut End) -> u32 {
    let (words, units) = (words(left), board::units_of(BYTES as u32));
    let generation = words.peer_board().generation();
    let parts = std::iter::from_fn(|| words.peer_board().take(generation, units, units));
    parts.map(|(_, units)| units).sum()
}

fn report(left: &mut End, units: u32, given_up: bool) {
    let words = words(left);
    let generation = words.peer_board().generation();
    words
        .own_board()
        .report(generation, Report { units, given_up });
}

fn is_asked(end: &mut End) -> bool {
    let (peer, shared) = end.connection().shared_copy();
    shared.is_asked(peer)
}

#[test]
fn a_sender_that_polls_copies_its_part() {
    let (mut pair, data, [send, receive]) = announced(RD);
    let ended = share(&mut pair, |left| {
        assert!(is_asked(left));
        left.progress();
    });
    assert_eq!(ended, Shared::Done);
    let generation = generation(&mut pair.right);
    let report = words(&mut pair.left).own_board().reported(generation);
    assert!(
        (1..=HELP_UNITS).contains(&report.units),
        "one poll helps so much"
    );
    assert_eq!(pair.right.bytes(0, BYTES), data);
    pair.left.progress();
    assert!(!is_asked(&mut pair.left));
    assert_eq!(pair.left.status(send), 0, "the receiver reports it");
    assert_eq!(pair.right.status(receive), 0);
}

#[test]
fn a_peer_that_does_not_poll_is_asked_seldom() {
    let mut pair = pair(RD, true);
    let mut asked = 0;
    for _ in 0..200 {
        let receive = pair.right.receive(0, BYTES as u32);
        pair.right.progress();
        pair.left.send(0, BYTES as u32);
        let before = generation(&mut pair.right);
        pair.right.progress();
        assert_eq!(pair.right.status(receive), RECEIVED);
        asked += generation(&mut pair.right) - before;
        pair.left.progress();
    }
    let expected = 200 / (ALONE + 1);
    assert!(
        (expected..=expected + 1).contains(&asked),
        "{asked} times in 200 messages"
    );
}

#[test]
fn the_owner_goes_on_when_the_helper_has_copied() {
    for gives_up in [false, true] {
        let (mut pair, data, [send, receive]) = announced(RD);
        let mut theirs = 0;
        assert_eq!(
            share(&mut pair, |left| theirs = take_all(left)),
            Shared::Later
        );
        pair.right.progress();
        assert_eq!(pair.right.status(receive), 0, "the helper still copies");
        assert!(
            pair.right.connection().peer().is_waiting(),
            "the helper alerts it"
        );
        report(&mut pair.left, if gives_up { 0 } else { theirs }, gives_up);
        pair.right.progress();
        assert_eq!(pair.right.status(receive), RECEIVED);
        assert!(!pair.right.connection().peer().is_waiting());
        // The owner copies all of it if the helper has given up, and no part of the helper's otherwise.
        let end = pair.right.bytes(BYTES - 100, 100);
        assert_eq!(end == data[BYTES - 100..], gives_up);
        pair.left.progress();
        assert_eq!(pair.left.status(send), DONE);
        assert_eq!(reported(), []);
    }
}

#[test]
fn rdma_ends_with_the_owners_last_bytes() {
    let mut pair = pair(RD, true);
    pair.right.progress();
    pair.left.progress();
    let data = pair.left.fill(0, LONG, 5);
    let length = LONG as u32;
    let (_, shared) = pair.left.connection().shared_copy();
    shared.open = Some(Open {
        theirs: 16,
        failed: false,
        of: Of::Rdma(length),
    });
    let far = (pair.right.address(0), HANDLE);
    let write = pair.left.rdma(VIP_CONTROL_OP_RDMAWRITE, 0, length, far);
    pair.left.progress();
    assert_eq!(pair.left.status(write), 0, "the helper still copies");
    let generation = generation(&mut pair.left);
    let done = Report {
        units: 16,
        given_up: false,
    };
    words(&mut pair.right).own_board().report(generation, done);
    pair.left.progress();
    let written = DONE | VIP_STATUS_OP_RDMA_WRITE;
    assert_eq!(pair.left.status(write), written);
    // The rest was the helper's, which this test did not copy.
    assert_eq!(pair.right.bytes(LONG - 8, 8), data[LONG - 8..]);
    assert_eq!(pair.right.bytes(0, LONG - 8), [0; LONG - 8]);
    // The next one is a copy of its own.
    let write = pair.left.rdma(VIP_CONTROL_OP_RDMAWRITE, 0, length, far);
    assert_eq!(pair.left.status(write), written);
    assert_eq!(pair.right.bytes(0, LONG), data);
}

#[test]
fn a_target_helps_where_it_permits_it() {
    for (way, control) in [
        (Way::Write, VIP_CONTROL_OP_RDMAWRITE),
        (Way::Read, VIP_CONTROL_OP_RDMAREAD),
    ] {
        for permitted in [true, false] {
            let mut pair = pair(RD, true);
            pair.right.progress();
            pair.left.progress();
            let from = if way == Way::Write {
                &pair.left
            } else {
                &pair.right
            };
            let data = from.fill(0, BYTES, 9);
            let (local, remote) = (whole(&pair.left), whole(&pair.right));
            if !permitted {
                pair.right.deregister();
            }
            let offer = Offer {
                of: Of::Rdma(BYTES as u32),
                way,
                local: &local,
                remote: &remote,
                bytes: BYTES as u32 - 8,
            };
            let (peer, shared) = pair.left.connection().shared_copy();
            let mut once = Some(());
            let ended = shared.offer(peer, &offer, || {
                once.take().into_iter().for_each(|()| pair.right.progress());
                true
            });
            assert_eq!(ended, Shared::Done, "{control:#x}");
            let generation = generation(&mut pair.left);
            let helper = words(&mut pair.right);
            let helped = helper.own_board().reported(generation).units > 0;
            assert_eq!(helped, permitted);
            let to = if way == Way::Write {
                &pair.right
            } else {
                &pair.left
            };
            assert_eq!(to.bytes(0, BYTES - 8), data[..BYTES - 8]);
            assert_eq!(to.bytes(BYTES - 8, 8), [0; 8], "the initiator's");
        }
    }
}

/// The helper pushes into memory that is not registered any more: the owner finds out why.
#[test]
fn a_helper_gives_up_when_the_region_has_gone() {
    for level in [U, RD] {
        let (mut pair, _, [_, receive]) = announced(level);
        pair.right.deregister();
        assert_eq!(share(&mut pair, End::progress), Shared::Alone);
        pair.right.progress();
        let error = RECEIVED | VIP_STATUS_PROTECTION_ERROR;
        assert_eq!(pair.right.status(receive), error);
        assert_eq!(pair.right.has_connection(), level == U);
        reported();
    }
}

/// Buffers go back to the program when the connection breaks: not before the helper has ceased to write to them.
#[test]
fn the_end_of_a_connection_waits_for_the_helper() {
    let (mut pair, _, [_, receive]) = announced(RD);
    assert_eq!(
        share(&mut pair, |left| assert!(take_all(left) > 0)),
        Shared::Later
    );
    // The helper is in the middle of a copy, and ends it when it has seen that the owner leaves.
    let helper = words(&mut pair.left);
    let (copying, closed) = (&helper.own().copying, &helper.peer().closed);
    copying.fetch_add(1, Ordering::SeqCst);
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while closed.load(Ordering::SeqCst) == 0 {
                std::hint::spin_loop();
            }
            ended.store(1, Ordering::SeqCst);
            copying.fetch_add(1, Ordering::SeqCst);
        });
        let port = pair.right.port();
        pair.right.connection().lose(port);
        assert_eq!(ended.load(Ordering::SeqCst), 1);
    });
    assert_eq!(pair.right.status(receive), 0, "the host flushes it");
    reported();
}
