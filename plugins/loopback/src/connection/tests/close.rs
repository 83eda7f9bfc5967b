//! How a connection ends, and what counts before.

use vipl_sys::wrap;

use super::*;
use crate::segment::LAYOUT;
use crate::testing::{DONE, RD, RR, Reported, U, code, pair, reported};

#[test]
fn what_was_sent_before_a_disconnect_is_received() {
    for level in [U, RD, RR] {
        let mut pair = pair(level, true);
        let data = pair.left.fill(0, 100, 5);
        let receive = pair.right.receive(0, 100);
        pair.left.send(0, 100);
        pair.left.detach();
        pair.right.progress();
        assert_eq!(pair.right.status(receive), DONE | VIP_STATUS_OP_RECEIVE);
        assert_eq!(pair.right.bytes(0, 100), data);
        assert_eq!(reported(), [Reported::Failed(1, VIPL_CAUSE_DISCONNECTED)]);
    }
}

#[test]
fn a_peer_with_another_layout_is_sent_nothing() {
    let mut pair = pair(RD, true);
    pair.left.fill(0, 100, 5);
    let peer = pair.left.connection().peer();
    peer.side().attached.store(LAYOUT + 1, Ordering::Release);
    pair.left.send(0, 100);
    pair.left.progress();
    let lost = code(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST);
    assert!(reported().contains(&Reported::Failed(0, lost)));
    assert_eq!(pair.left.connection().sender().sent(), wrap::start(0));
}

#[test]
fn the_first_reason_counts() {
    let mut pair = pair(RD, true);
    let link = pair.left.connection();
    link.peer.close(Closed::RECEIVE_FAILED);
    link.peer.close(Closed::DISCONNECTED);
    let closed = &link.peer.own().closed;
    assert_eq!(
        Closed(closed.load(Ordering::Acquire)),
        Closed::RECEIVE_FAILED
    );
    pair.right.progress();
    let lost = code(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST);
    assert_eq!(
        reported(),
        [Reported::Failed(1, lost)],
        "no send is under way"
    );
}

#[test]
fn a_process_knows_whether_it_has_both_ends() {
    let mut pair = pair(RD, true);
    assert!(pair.left.connection().peer.is_here());
    pair.left.detach();
    assert!(!pair.right.connection().peer.is_here());
}

/// A peer that says that it copies, and does not come to an end.
#[test]
fn a_copy_that_does_not_end_costs_the_connection() {
    let mut pair = pair(RD, true);
    let copying = |count| {
        let link = pair.left.connection();
        link.peer.own().copying.store(count, Ordering::SeqCst);
    };
    let mut copying = copying;
    copying(1);
    let port = pair.right.port();
    let link = pair.right.connection();
    let (mut since, second) = (0, Duration::from_secs(1));
    assert!(!link.quiesced(port, &mut since, second));
    // Another copy began after the region had gone: it does not count.
    copying(3);
    let link = pair.right.connection();
    assert!(link.quiesced(port, &mut since, second));
    let mut since = 0;
    assert!(!link.quiesced(port, &mut since, Duration::ZERO));
    let lost = code(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST);
    assert_eq!(reported(), [Reported::Failed(1, lost)]);
}
