//! RDMA by each method.

use super::*;
use crate::testing::{DONE, HANDLE, RD, RR, Reported, U, code, pair, reported};

/// How RDMA travels from the left to the right.
#[derive(Clone, Copy, Debug)]
enum By {
    /// By the copy within this process.
    Within,
    /// By the kernel, as to another process.
    Across,
    Ring,
}

const METHODS: [By; 3] = [By::Within, By::Across, By::Ring];

fn pair_with(level: u16, by: By) -> Pair {
    let mut pair = pair(level, !matches!(by, By::Ring));
    if matches!(by, By::Across) {
        let own = Reach::Process(std::process::id() as i32);
        pair.left.connection().peer.set_reach(own);
    }
    pair
}

#[test]
fn data_gets_there_and_back_by_each_method() {
    for by in METHODS {
        for length in [0, 1, 8, 9, 40_000, 65_536] {
            let mut pair = pair_with(RD, by);
            let data = pair.left.fill(0, length, 3);
            let remote = (pair.right.address(1000), HANDLE);
            let bytes = length as u32;
            let write = pair.left.rdma(VIP_CONTROL_OP_RDMAWRITE, 0, bytes, remote);
            settle(&mut pair);
            let written = DONE | VIP_STATUS_OP_RDMA_WRITE;
            assert_eq!(pair.left.status(write), written, "{by:?} {length}");
            assert_eq!(pair.right.bytes(1000, length), data);
            let read = pair
                .left
                .rdma(VIP_CONTROL_OP_RDMAREAD, 100_000, bytes, remote);
            settle(&mut pair);
            let done = DONE | VIP_STATUS_OP_RDMA_READ;
            assert_eq!(pair.left.status(read), done, "{length} bytes");
            assert_eq!(pair.left.bytes(100_000, length), data);
            assert_eq!(reported(), []);
        }
    }
}

#[test]
fn immediate_data_of_a_write_uses_a_receive_descriptor() {
    for single_copy in [true, false] {
        let mut pair = pair(RD, single_copy);
        let receive = pair.right.receive(0, 8);
        let remote = (pair.right.address(1000), HANDLE);
        let control = VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE;
        pair.left.rdma(control, 0, 16, remote);
        settle(&mut pair);
        let status = DONE | VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE;
        assert_eq!(pair.right.status(receive), status);
        assert_eq!(pair.right.result(receive), (16, 0x1234_5678));
    }
}

#[test]
fn a_write_waits_when_the_peer_has_closed() {
    let mut pair = pair_with(RD, By::Across);
    pair.right.connection().peer.close(Closed::DISCONNECTED);
    let remote = (pair.right.address(1000), HANDLE);
    let write = pair.left.rdma(VIP_CONTROL_OP_RDMAWRITE, 0, 16, remote);
    assert_eq!(pair.left.status(write) & DONE, 0);
    assert_eq!(pair.right.bytes(1000, 16), [0; 16]);
}

/// E9.
#[test]
fn a_write_that_the_target_does_not_permit() {
    let refused = code(VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT);
    for by in METHODS {
        for level in [U, RD, RR] {
            let mut pair = pair_with(level, by);
            let remote = (pair.right.address(1000), HANDLE);
            pair.right.deregister();
            let write = pair.left.rdma(VIP_CONTROL_OP_RDMAWRITE, 0, 16, remote);
            settle(&mut pair);
            assert_eq!(pair.right.bytes(1000, 16), [0; 16]);
            let error = if level == RR {
                VIP_STATUS_RDMA_PROT_ERROR
            } else {
                0
            };
            let status = DONE | VIP_STATUS_OP_RDMA_WRITE | error;
            assert_eq!(pair.left.status(write), status, "level {level}");
            let here = if level == U {
                Reported::Raised(1, refused)
            } else {
                Reported::Failed(1, refused)
            };
            let said = reported();
            assert!(said.contains(&here), "level {level}");
            // The log of the target has the range, before each error; that of the initiator if nothing else says it.
            let errors = said.iter().enumerate().filter(|(_, said)| **said == here);
            for (place, _) in errors {
                let before = place.checked_sub(1).map(|before| said[before]);
                assert_eq!(before, Some(Reported::Refused(1, true, 16)), "{by:?}");
            }
            let initiator = |said: &&Reported| matches!(said, Reported::Refused(0, false, _));
            let unsaid = usize::from(level == RD);
            assert_eq!(
                said.iter().filter(initiator).count(),
                unsaid,
                "{by:?} {said:?}"
            );
            assert_eq!(pair.left.has_connection(), level == U, "level {level}");
            assert_eq!(pair.right.has_connection(), level == U, "level {level}");
        }
    }
}

/// E13.
#[test]
fn a_read_that_the_target_does_not_permit() {
    let refused = code(VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT);
    for single_copy in [true, false] {
        let mut pair = pair(RD, single_copy);
        let remote = (pair.right.address(1000), HANDLE + 1);
        let read = pair.left.rdma(VIP_CONTROL_OP_RDMAREAD, 0, 16, remote);
        settle(&mut pair);
        let status = DONE | VIP_STATUS_RDMA_PROT_ERROR | VIP_STATUS_OP_RDMA_READ;
        assert_eq!(pair.left.status(read), status);
        let found = reported();
        assert!(
            found.contains(&Reported::Failed(0, VIPL_CAUSE_REPORTED)),
            "{found:?}"
        );
        assert!(found.contains(&Reported::Failed(1, refused)), "{found:?}");
        assert!(found.contains(&Reported::Refused(1, true, 16)), "{found:?}");
    }
}
