//! The error table of spec §6.4 on the three levels: descriptors, asynchronous errors and states of both sides. Side
//! 1 posts an operation, for which side 0 is prepared or not.

mod sim;
mod table;

use sim::host::{Recv, Send, UNTOUCHED};
use sim::network::Faults;
use sim::world::{World, sending};
use table::{COMP_PROT, EMPTY, LOST, Outcome, RDMAR_PROT, RDMAW_PROT, Row, Target, rows};
use vipl_abi::*;
use vipl_wire::{Cause, Level, Operation};

const SECOND: u64 = 1_000_000_000;
const LEVELS: [Level; 3] = [Level::Unreliable, Level::Delivery, Level::Reception];

fn check(row: &Row, level: Level, expected: &Outcome) {
    let name = format!(
        "{} of {} bytes on {level:?}, {:?}",
        row.name, row.bytes, row.target
    );
    let mut world = World::new(row.bytes as u64, level, 1500, Faults::NONE);
    let (mut remote, target) = ((0, 0), row.target);
    let buffer = world.sides[0].area(if target == Target::Small { 50 } else { 8192 }, UNTOUCHED);
    let region = world.sides[0].area(row.bytes, UNTOUCHED);
    {
        let host = &mut world.sides[0].host;
        let nothing = matches!(target, Target::Nothing | Target::RegionClosedNothing);
        if !nothing {
            host.recvs.push(Recv {
                segments: vec![(buffer.handle, buffer.at, buffer.bytes)],
                fault: match target {
                    Target::RecvFault(bits) => Some(bits),
                    _ => None,
                },
                gone: target == Target::RecvGone,
                result: None,
            });
        }
        if row.operation != Operation::Send {
            remote = (region.at as u64, region.handle);
        }
        let place = region.handle as usize - 1;
        match target {
            Target::RegionClosed | Target::RegionClosedNothing => {
                (host.areas[place].rdma_write, host.areas[place].rdma_read) = (false, false);
            }
            Target::RegionShort => remote.0 += 1,
            Target::RegionUnknown => host.areas[place].gone = true,
            Target::ViClosed => (host.rdma_write, host.rdma_read) = (false, false),
            _ => {}
        }
    }
    let local = world.sides[1].area(row.bytes, 7);
    let post = |world: &mut World, operation, remote, flagged, fault| {
        world.sides[1].sends.push(Send {
            operation,
            immediate: 4711,
            flagged,
            remote,
            fault,
            ..Send::message(&local)
        });
    };
    post(&mut world, row.operation, remote, row.flagged, row.fault);
    // Another operation, which must have no effect once the connection is broken.
    if expected.sender.is_some() {
        let area = world.sides[0].area(row.bytes, UNTOUCHED);
        post(
            &mut world,
            Operation::Write,
            (area.at as u64, area.handle),
            false,
            None,
        );
    }
    world.posted(1);
    world.run(SECOND);
    check_outcome(&world, row, expected, &name);
    let host = &world.sides[0].host;
    if row.name != "E16"
        && !host.recvs.iter().any(|r| {
            r.result
                .is_some_and(|(s, ..)| s & VIP_STATUS_ERROR_MASK == 0)
        })
    {
        assert!(host.is_filled(&buffer, UNTOUCHED), "{name}: the buffer");
    }
    let placed = row.name == "E11" || row.name == "E8 RDMA";
    let byte = if placed { 7 } else { UNTOUCHED };
    assert!(host.is_filled(&region, byte), "{name}: the target of RDMA");
    host.check_gaps();
    if expected.sender.is_none() {
        survives(&mut world, &name);
    } else if level != Level::Unreliable {
        let later = &host.areas[2];
        assert!(
            host.is_filled(later, UNTOUCHED),
            "{name}: a later operation"
        );
    }
}

fn check_outcome(world: &World, row: &Row, expected: &Outcome, name: &str) {
    let (receiver, sender) = (&world.sides[0].host, &world.sides[1].host);
    let cause = |host: &sim::host::Host| host.failed.map(|(cause, _)| cause);
    assert_eq!(cause(sender), expected.sender, "{name}: the sender's end");
    assert_eq!(
        cause(receiver),
        expected.receiver,
        "{name}: the receiver's end"
    );
    let status = sender.sends[0].status;
    let opcode = match row.operation {
        Operation::Send => VIP_STATUS_OP_SEND,
        Operation::Write => VIP_STATUS_OP_RDMA_WRITE,
        Operation::Read => VIP_STATUS_OP_RDMA_READ,
    };
    if expected.sender == Some(LOST) {
        // The send has not failed: the host flushes it, unless it is complete.
        assert!(
            status.is_none_or(|status| status == opcode),
            "{name}: {status:?}"
        );
    } else {
        assert_eq!(status, Some(expected.send | opcode), "{name}: the send");
    }
    let raised: Vec<u32> = receiver.raised.iter().map(|(code, _)| *code).collect();
    assert_eq!(raised, Vec::from_iter(expected.raised), "{name}: raised");
    assert!(sender.raised.is_empty(), "{name}");
    let result = receiver.recvs.first().and_then(|recv| recv.result);
    let bits = result.map(|(status, ..)| status & VIP_STATUS_ERROR_MASK);
    assert_eq!(bits, expected.recv, "{name}: the receive");
    if let Some((status, length, immediate)) = result {
        let refused = status & VIP_STATUS_RDMA_PROT_ERROR != 0;
        let opcode = if refused {
            VIP_STATUS_OP_REMOTE_RDMA_WRITE
        } else {
            VIP_STATUS_OP_RECEIVE
        };
        assert_eq!(status & VIP_STATUS_OP_MASK, opcode, "{name}");
        assert_eq!(
            (length, immediate),
            (0, if refused { 4711 } else { 0 }),
            "{name}"
        );
    }
    for (code, opcode) in &receiver.raised {
        let reported = if *code == EMPTY {
            VIP_STATUS_OP_RECEIVE
        } else {
            VIP_STATUS_OP_REMOTE_RDMA_WRITE
        };
        assert_eq!(*opcode, reported, "{name}: OpCode");
    }
    if let Some((Cause::Async(code), opcode)) = receiver.failed {
        let reported = match code {
            EMPTY | COMP_PROT => VIP_STATUS_OP_RECEIVE,
            RDMAW_PROT => VIP_STATUS_OP_REMOTE_RDMA_WRITE,
            RDMAR_PROT => VIP_STATUS_OP_RDMA_READ,
            _ => 0,
        };
        assert_eq!(opcode, reported, "{name}: OpCode of the end");
    }
}

/// The connection still carries a message.
fn survives(world: &mut World, name: &str) {
    let area = world.sides[0].area(300, UNTOUCHED);
    if world.sides[0].recvs_done == world.sides[0].recvs.len() {
        world.sides[0].recvs.push(Recv::into_area(&area));
    }
    let local = world.sides[1].area(200, 9);
    world.sides[1].sends.push(Send::message(&local));
    world.posted(1);
    world.run(SECOND);
    let result = world.sides[0].recvs.last().and_then(|recv| recv.result);
    assert_eq!(
        result,
        Some((VIP_STATUS_OP_RECEIVE, 200, 0)),
        "{name}: afterwards"
    );
}

#[test]
fn the_error_table() {
    for row in rows() {
        for (level, expected) in LEVELS.into_iter().zip(&row.outcomes) {
            if row.operation == Operation::Read && level == Level::Unreliable {
                continue;
            }
            check(&row, level, expected);
        }
    }
}

/// If the third of ten sends fails, the first two succeed and the others have no effect (DERR-20), however they share
/// frames.
#[test]
fn the_third_of_ten_gets_the_error() {
    for (level, error) in [
        (Level::Delivery, VIP_STATUS_TRANSPORT_ERROR),
        (Level::Reception, VIP_STATUS_REMOTE_DESC_ERROR),
    ] {
        for bytes in [10, 3000] {
            let mut world = sending(level, Faults::NONE, &[bytes; 10]);
            world.sides[0].recvs[2].fault = Some(VIP_STATUS_FORMAT_ERROR);
            world.posted(1);
            world.run(SECOND);
            let statuses = world.sides[1].statuses();
            assert_eq!(
                statuses[..4],
                [Some(0), Some(0), Some(error), None],
                "{level:?} {bytes}"
            );
            assert_eq!(world.sides[0].recvs_done, 3);
        }
    }
}

/// E4: if a part of a message is lost on an Unreliable connection, the receive descriptor reports it and the next
/// message arrives; on the reliable levels the part is retransmitted.
#[test]
fn a_lost_piece() {
    for level in LEVELS {
        let mut world = sending(level, Faults::NONE, &[6000, 100]);
        let (at, rest) = (world.now, 30_000);
        world.room = 2;
        world.call(1, |connection, now, host| connection.posted(now, host));
        // Two pieces have been sent; the next two are lost in the cut.
        world.lines[1].faults.cut = Some((at + 1, at + rest));
        world.run(3 * SECOND);
        let recvs = &world.sides[0].recvs;
        if level == Level::Unreliable {
            let (status, length, _) = recvs[0].result.unwrap();
            assert_eq!(status, VIP_STATUS_PARTIAL_ERROR | VIP_STATUS_OP_RECEIVE);
            assert!(length > 0 && length < 6000);
        } else {
            assert_eq!(recvs[0].result, Some((VIP_STATUS_OP_RECEIVE, 6000, 0)));
            assert_eq!(recvs[1].result, Some((VIP_STATUS_OP_RECEIVE, 100, 0)));
        }
        assert!(world.sides.iter().all(|side| side.host.failed.is_none()));
        assert!(
            world.sides[1]
                .sends
                .iter()
                .all(|send| send.status == Some(0))
        );
    }
}
