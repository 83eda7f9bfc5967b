//! A connection ends when the link or the peer fails, and survives when a process was only stopped.

mod sim;

use sim::host::{Send, UNTOUCHED};
use sim::network::Faults;
use sim::world::{World, sending};
use vipl_abi::*;
use vipl_wire::{Cause, Level, Operation, Reason};

const SECOND: u64 = 1_000_000_000;
const LOST: Cause = Cause::Async(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as u32);
const LEVELS: [Level; 3] = [Level::Unreliable, Level::Delivery, Level::Reception];

/// E5, E14: the link is dead.
#[test]
fn a_dead_link() {
    for level in LEVELS {
        for outstanding in [true, false] {
            let mut world = sending(
                level,
                Faults::NONE,
                if outstanding { &[100, 100] } else { &[] },
            );
            world.fault(|faults| faults.loss = 1000);
            let began = world.now;
            world.posted(1);
            world.posted(0);
            let over = |world: &World| world.sides.iter().all(|side| side.host.failed.is_some());
            assert!(world.until(20 * SECOND, over));
            let took = world.now - began;
            assert!((9 * SECOND..10 * SECOND).contains(&took), "{took} ns");
            let reported = outstanding && level != Level::Unreliable;
            let expected = if reported { Cause::Reported } else { LOST };
            assert_eq!(world.sides[1].failed, Some((expected, 0)));
            assert_eq!(world.sides[0].failed, Some((LOST, 0)));
            if reported {
                let sends = &world.sides[1].sends;
                assert_eq!(sends[0].status, Some(VIP_STATUS_TRANSPORT_ERROR));
                assert_eq!(sends[1].status, None);
            }
        }
    }
}

/// A process that was stopped does not count its peer as dead when it continues.
#[test]
fn a_stopped_process_goes_on() {
    let mut world = sending(Level::Delivery, Faults::NONE, &[100]);
    world.run(3 * SECOND);
    // Neither side is called for a minute.
    world.now += 60 * SECOND;
    world.posted(1);
    world.run(10 * SECOND);
    assert!(world.sides.iter().all(|side| side.host.failed.is_none()));
    assert_eq!(world.sides[0].recvs_done, 1);
}

/// E14: operations that completed before VipDisconnect are received before the peer is informed of it.
#[test]
fn an_orderly_end_comes_after_everything() {
    for level in LEVELS {
        let faults = Faults {
            reordering: 300,
            ..Faults::NONE
        };
        let mut world = sending(level, faults, &[3000; 20]);
        world.posted(1);
        let sent = |world: &World| world.sides[1].sends_done == 20;
        assert!(world.until(SECOND, sent));
        world.close(1, Reason::Disconnected);
        let informed = |world: &World| world.sides[0].failed.is_some();
        assert!(world.until(SECOND, informed));
        assert_eq!(world.sides[0].failed, Some((Cause::Disconnected, 0)));
        let complete = world.sides[0].recvs_done;
        assert!(level == Level::Unreliable || complete == 20, "{complete}");
    }
}

/// The agent's report of a disconnect may arrive before the peer's last frames. Operations that the peer has received
/// complete nevertheless (COMPAT-08). If the frames never arrive, the connection ends after a short delay.
#[test]
fn the_agent_is_faster_than_the_last_frames() {
    for cut in [false, true] {
        let mut world = sending(Level::Reception, Faults::NONE, &[40, 3000]);
        world.posted(1);
        let taken = |world: &World| world.sides[0].recvs_done == 2;
        assert!(world.until(SECOND, taken));
        assert_ne!(world.sides[1].sends_done, 2, "not acknowledged yet");
        if cut {
            world.fault(|faults| faults.loss = 1000);
        }
        world.close(0, Reason::Disconnected);
        world.call(1, |connection, now, host| {
            connection.peer_gone(true, now, host);
        });
        assert_eq!(world.sides[1].failed, None);
        let over = |world: &World| world.sides[1].failed.is_some();
        assert!(world.until(SECOND, over));
        assert_eq!(world.sides[1].failed, Some((Cause::Disconnected, 0)));
        if !cut {
            let sends = &world.sides[1].sends;
            assert_eq!(sends[0].status, Some(VIP_STATUS_OP_SEND));
            assert_eq!(sends[1].status, Some(VIP_STATUS_OP_SEND));
        }
    }
}

/// If the peer has no processor, or the link loses frames, the CLOSE may arrive long after the agent's report: it is
/// repeated, and this side waits for it (COMPAT-08).
#[test]
fn the_last_frames_come_long_after_the_agents_word() {
    let mut world = sending(Level::Reception, Faults::NONE, &[40, 3000]);
    world.posted(1);
    assert!(world.until(SECOND, |world| world.sides[0].recvs_done == 2));
    assert_ne!(world.sides[1].sends_done, 2, "not acknowledged yet");
    world.fault(|faults| faults.loss = 1000);
    world.close(0, Reason::Disconnected);
    world.call(1, |connection, now, host| {
        connection.peer_gone(true, now, host);
    });
    world.run(SECOND / 20);
    assert_eq!(world.sides[1].failed, None);
    world.fault(|faults| faults.loss = 0);
    assert!(world.until(SECOND, |world| world.sides[1].failed.is_some()));
    assert_eq!(world.sides[1].failed, Some((Cause::Disconnected, 0)));
    for send in &world.sides[1].sends[..2] {
        assert_eq!(send.status, Some(VIP_STATUS_OP_SEND));
    }
}

/// E12, E17: a dead link in the middle of an RDMA Write or Read is reported at the target as such.
#[test]
fn a_link_that_dies_under_rdma() {
    for (operation, code) in [
        (Operation::Write, VIP_ERROR_CODE::VIP_ERROR_RDMAW_ABORT),
        (Operation::Read, VIP_ERROR_CODE::VIP_ERROR_RDMA_TRANSPORT),
    ] {
        let mut world = World::new(3, Level::Delivery, 1500, Faults::NONE);
        let target = world.sides[0].area(500_000, UNTOUCHED);
        let local = world.sides[1].area(500_000, 9);
        world.sides[1].sends.push(Send {
            operation,
            remote: (target.at as u64, target.handle),
            ..Send::message(&local)
        });
        world.posted(1);
        world.run(50_000);
        world.fault(|faults| faults.loss = 1000);
        world.run(20 * SECOND);
        let opcode = if operation == Operation::Write {
            VIP_STATUS_OP_REMOTE_RDMA_WRITE
        } else {
            VIP_STATUS_OP_RDMA_READ
        };
        assert_eq!(
            world.sides[0].failed,
            Some((Cause::Async(code as u32), opcode))
        );
        assert_eq!(world.sides[1].failed, Some((Cause::Reported, 0)));
        let status = world.sides[1].sends[0].status.unwrap();
        assert_eq!(status & VIP_STATUS_ERROR_MASK, VIP_STATUS_TRANSPORT_ERROR);
    }
}

/// A write on an Unreliable connection is placed as a whole with the rights of its first frame, even if they change
/// meanwhile (spec §3.19), but not into deregistered memory.
#[test]
fn rights_are_those_of_the_first_frame() {
    const BYTES: usize = 20_000;
    for gone in [false, true] {
        let mut world = World::new(5, Level::Unreliable, 1500, Faults::NONE);
        let target = world.sides[0].area(BYTES, UNTOUCHED);
        let local = world.sides[1].area(BYTES, 9);
        world.sides[1].sends.push(Send {
            operation: Operation::Write,
            remote: (target.at as u64, target.handle),
            ..Send::message(&local)
        });
        world.sides[0].revoke = Some(gone);
        world.posted(1);
        world.run(SECOND);
        let bytes = world.sides[0].bytes(&target);
        assert_eq!(
            (bytes[0], bytes[BYTES - 1]),
            (9, if gone { UNTOUCHED } else { 9 })
        );
        let refused = VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT as u32;
        let raised = world.sides[0].raised.iter();
        assert_eq!(
            raised.filter(|(code, _)| *code == refused).count(),
            usize::from(gone)
        );
        assert!(world.sides.iter().all(|side| side.host.failed.is_none()));
    }
}
