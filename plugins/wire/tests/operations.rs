//! Effects of operations on frames and on each other: fences, sharing of frames, piggy-backed acknowledgements,
//! operations without bytes.

mod sim;

use sim::host::{Area, Recv, Send, UNTOUCHED};
use sim::network::Faults;
use sim::world::{World, config};
use vipl_abi::*;
use vipl_wire::*;

const SECOND: u64 = 1_000_000_000;
const KEY: u64 = 0x1111_2222_3333_4444;

fn world(level: Level) -> World {
    let mut world = World::new(5, level, 1500, Faults::NONE);
    world.log = Some(Vec::new());
    world
}

fn post_recv(world: &mut World, side: usize, bytes: usize) -> Area {
    let area = world.sides[side].area(bytes, UNTOUCHED);
    world.sides[side].recvs.push(Recv::into_area(&area));
    area
}

fn send(operation: Operation, local: &Area) -> Send {
    Send {
        operation,
        immediate: 4711,
        ..Send::message(local)
    }
}

/// Kinds of parts that a side has sent, in order.
fn parts(world: &World, side: usize) -> Vec<PartKind> {
    let mut kinds = Vec::new();
    for (_, frame) in world.log.iter().flatten().filter(|(from, _)| *from == side) {
        let (header, body) = Header::parse(frame).expect("a frame of the engine");
        if header.kind == Kind::Data {
            kinds.extend(Parts::new(body).map(|part| part.expect("a part of the engine").0.kind));
        }
    }
    kinds
}

fn count(world: &World, side: usize, kind: Kind) -> usize {
    let of = |frame: &[u8]| Header::parse(frame).expect("a frame of the engine").0.kind == kind;
    world
        .log
        .iter()
        .flatten()
        .filter(|(from, frame)| *from == side && of(frame))
        .count()
}

/// RDMA-21: a fenced send from the buffer of a read carries the data of the read. Without the fence it starts at
/// once, except with Reliable Reception.
#[test]
fn a_fence_waits_for_the_read() {
    for level in [Level::Delivery, Level::Reception] {
        for fenced in [true, false] {
            let mut world = world(level);
            let source = world.sides[1].area(5000, 0x77);
            let buffer = world.sides[0].area(5000, 0);
            let target = post_recv(&mut world, 1, 5000);
            let mut read = send(Operation::Read, &buffer);
            read.remote = (source.at as u64, source.handle);
            let mut message = send(Operation::Send, &buffer);
            message.fenced = fenced;
            world.sides[0].sends.extend([read, message]);
            world.posted(0);
            let at_once = parts(&world, 0).len() > 1;
            assert_eq!(
                at_once,
                !fenced && level == Level::Delivery,
                "{level:?}, fenced {fenced}"
            );
            world.run(SECOND);
            let statuses = world.sides[0].statuses();
            assert_eq!(
                statuses,
                [Some(VIP_STATUS_OP_RDMA_READ), Some(VIP_STATUS_OP_SEND)]
            );
            let carried = world.sides[1].is_filled(&target, 0x77);
            assert_eq!(carried, !at_once);
        }
    }
}

/// More reads than may be open at once, with writes between them, end in order.
#[test]
fn many_reads() {
    for level in [Level::Delivery, Level::Reception] {
        let mut world = world(level);
        let mut areas = Vec::new();
        for number in 0..100u8 {
            let source = world.sides[1].area(3000, number);
            let buffer = world.sides[0].area(3000, 0);
            let mut read = send(Operation::Read, &buffer);
            read.remote = (source.at as u64, source.handle);
            world.sides[0].sends.push(read);
            let target = world.sides[1].area(100, UNTOUCHED);
            let local = world.sides[0].area(100, number);
            let mut write = send(Operation::Write, &local);
            write.remote = (target.at as u64, target.handle);
            world.sides[0].sends.push(write);
            areas.push((buffer, target));
        }
        world.posted(0);
        world.run(SECOND);
        assert_eq!(world.sides[0].sends_done, 200, "{level:?}");
        for (number, (buffer, target)) in areas.iter().enumerate() {
            assert!(world.sides[0].is_filled(buffer, number as u8));
            assert!(world.sides[1].is_filled(target, number as u8));
        }
    }
}

/// 64 messages of 8 bytes that are posted together need one frame of 1500 bytes.
#[test]
fn small_messages_share_a_frame() {
    for level in [Level::Unreliable, Level::Delivery] {
        let mut world = world(level);
        for _ in 0..64 {
            post_recv(&mut world, 1, 8);
            let local = world.sides[0].area(8, 5);
            world.sides[0].sends.push(send(Operation::Send, &local));
        }
        world.posted(0);
        world.run(SECOND);
        assert_eq!(world.sides[1].recvs_done, 64);
        assert_eq!(world.sides[0].sends_done, 64);
        assert_eq!(count(&world, 0, Kind::Data), 1, "{level:?}");
    }
}

/// Data sent soon afterwards carries the acknowledgement; otherwise the acknowledgement is sent separately.
#[test]
fn acknowledgements_ride_along() {
    let mut world = world(Level::Delivery);
    world.poll_ns = 1_000;
    for round in 0..50 {
        for side in 0..2 {
            post_recv(&mut world, 1 - side, 8);
            let local = world.sides[side].area(8, 5);
            world.sides[side].sends.push(send(Operation::Send, &local));
            world.posted(side);
            assert!(world.until(SECOND, |world| world.sides[1 - side].recvs_done > round));
        }
    }
    let acks = count(&world, 0, Kind::Ack) + count(&world, 1, Kind::Ack);
    assert_eq!(acks, 0, "in 50 rounds");
    assert!(world.until(SECOND, |world| world.sides[1].sends_done == 50));
    assert_eq!(
        count(&world, 0, Kind::Ack),
        1,
        "the last message has no answer"
    );
}

/// An idle caller sends the acknowledgement without waiting.
#[test]
fn an_owed_acknowledgement_can_be_asked_for() {
    let mut world = world(Level::Delivery);
    post_recv(&mut world, 1, 8);
    let local = world.sides[0].area(8, 5);
    world.sides[0].sends.push(send(Operation::Send, &local));
    world.posted(0);
    let (_, frame) = world.log.as_ref().unwrap()[0].clone();
    world.call(1, |connection, now, host| {
        assert!(!connection.ack_owed());
        connection.received(&frame, now, host);
        connection.flush(now, host);
        assert!(host.out.is_empty() && connection.ack_owed());
        connection.flush_acks(now, host);
        assert_eq!((host.out.len(), connection.ack_owed()), (1, false));
    });
}

/// Operations without bytes: the remote range is not checked, and receives are consumed as usual.
#[test]
fn operations_without_bytes() {
    for level in [Level::Unreliable, Level::Delivery, Level::Reception] {
        let mut world = world(level);
        let local = world.sides[0].area(0, 0);
        let buffers = [post_recv(&mut world, 1, 50), post_recv(&mut world, 1, 50)];
        let mut operations = vec![
            send(Operation::Send, &local),
            send(Operation::Write, &local),
        ];
        operations[1].flagged = true;
        operations[1].remote = (u64::MAX, 12345);
        if level != Level::Unreliable {
            let mut read = send(Operation::Read, &local);
            read.remote = (u64::MAX, 12345);
            operations.push(read);
        }
        let count = operations.len();
        world.sides[0].sends = operations;
        world.posted(0);
        world.run(SECOND);
        assert_eq!(world.sides[0].sends_done, count, "{level:?}");
        assert!(world.sides[0].sends.iter().all(|send| {
            send.status
                .is_some_and(|status| status & VIP_STATUS_ERROR_MASK == 0)
        }));
        let results = world.sides[1].results();
        let reported = VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE;
        assert_eq!(
            results,
            [
                Some((VIP_STATUS_OP_RECEIVE, 0, 0)),
                Some((reported, 0, 4711))
            ]
        );
        for buffer in buffers {
            assert!(world.sides[1].is_filled(&buffer, UNTOUCHED));
        }
    }
}

/// The compatible mode carries immediate data without the flag (COMPAT-07).
#[test]
fn immediate_data_without_the_flag() {
    for carry_immediate in [true, false] {
        let mut world = world(Level::Delivery);
        for side in 0..2 {
            let config = Config {
                carry_immediate,
                ..config(side as u32, KEY, Level::Delivery, 1500, world.now)
            };
            world.sides[side].connection = Some(Connection::new(&config));
        }
        post_recv(&mut world, 1, 8);
        let local = world.sides[0].area(8, 5);
        world.sides[0].sends.push(send(Operation::Send, &local));
        world.posted(0);
        world.run(SECOND);
        let immediate = if carry_immediate { 4711 } else { 0 };
        let result = world.sides[1].recvs[0].result;
        assert_eq!(result, Some((VIP_STATUS_OP_RECEIVE, 8, immediate)));
    }
}

/// The application deregisters memory while a message waits for retransmission: the send fails, and earlier ones
/// complete.
#[test]
fn memory_that_goes_before_it_is_sent_again() {
    let mut world = world(Level::Delivery);
    for _ in 0..3 {
        post_recv(&mut world, 1, 4000);
        let local = world.sides[0].area(4000, 5);
        world.sides[0].sends.push(send(Operation::Send, &local));
    }
    // The second message is lost, then its memory is deregistered.
    world.room = 3;
    world.posted(0);
    world.room = usize::MAX;
    let (from, to) = (world.now + 1, world.now + 8_000);
    world.lines[0].faults.cut = Some((from, to));
    world.until(to - world.now, |_| false);
    let second = world.sides[0].sends[1].segments[0].0;
    world.sides[0].areas[second as usize - 1].gone = true;
    world.run(SECOND);
    let statuses = world.sides[0].statuses();
    assert_eq!(statuses, [Some(0), Some(VIP_STATUS_PROTECTION_ERROR), None]);
    assert_eq!(world.sides[0].failed, Some((Cause::Reported, 0)));
    let lost = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as u32;
    assert_eq!(world.sides[1].failed, Some((Cause::Async(lost), 0)));
    assert_eq!(world.sides[1].recvs_done, 1);
}

/// The local memory of an RDMA Read is deregistered before the answer arrives.
#[test]
fn memory_that_goes_before_the_answer() {
    let mut world = world(Level::Delivery);
    let source = world.sides[1].area(5000, 0x77);
    let buffer = world.sides[0].area(5000, UNTOUCHED);
    let target = post_recv(&mut world, 1, 100);
    post_recv(&mut world, 1, 100);
    let local = world.sides[0].area(100, 5);
    let mut read = send(Operation::Read, &buffer);
    read.remote = (source.at as u64, source.handle);
    let before = send(Operation::Send, &local);
    let after = send(Operation::Send, &local);
    world.sides[0].sends.extend([before, read, after]);
    world.posted(0);
    world.sides[0].areas[buffer.handle as usize - 1].gone = true;
    world.run(SECOND);
    let statuses = world.sides[0].statuses();
    let refused = VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RDMA_READ;
    assert_eq!(statuses[..2], [Some(VIP_STATUS_OP_SEND), Some(refused)]);
    assert_eq!(world.sides[0].failed, Some((Cause::Reported, 0)));
    assert!(world.sides[0].is_filled(&buffer, UNTOUCHED));
    assert!(world.sides[1].is_filled(&target, 5));
    assert!(world.sides[1].failed.is_some());
}

/// A device that shares no lock with the application, such as a card, sees posts at any time.
#[test]
fn what_is_posted_while_a_message_leaves_leaves_too() {
    for bytes in [100, 1400, 5000] {
        let mut world = world(Level::Delivery);
        for _ in 0..2 {
            post_recv(&mut world, 1, bytes);
        }
        let local = world.sides[0].area(bytes, 7);
        let host = &mut world.sides[0].host;
        host.sends.push(send(Operation::Send, &local));
        host.meanwhile.push(send(Operation::Send, &local));
        world.posted(0);
        let wanted = 2 * bytes.div_ceil(1400);
        assert_eq!(parts(&world, 0).len(), wanted, "{bytes} bytes");
        world.run(SECOND);
        let statuses = world.sides[0].statuses();
        assert_eq!(statuses, [Some(VIP_STATUS_OP_SEND); 2]);
    }
}

/// E3, E8: memory passes the check but cannot be accessed.
#[test]
fn memory_that_vanishes_fails_the_descriptor() {
    for (bytes, side) in [(100, 0), (5000, 0), (100, 1), (5000, 1)] {
        let mut world = world(Level::Delivery);
        post_recv(&mut world, 1, bytes);
        let local = world.sides[0].area(bytes, 7);
        world.sides[0].sends.push(send(Operation::Send, &local));
        world.sides[side].vanishing = true;
        world.posted(0);
        world.run(SECOND);
        let sent = world.sides[0].sends[0].status;
        let received = world.sides[1].recvs[0].result.map(|(status, ..)| status);
        let refused = Some(VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RECEIVE);
        let expected = match side {
            0 => (VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_SEND, None),
            _ => (VIP_STATUS_TRANSPORT_ERROR | VIP_STATUS_OP_SEND, refused),
        };
        assert_eq!(
            (sent, received),
            (Some(expected.0), expected.1),
            "{bytes} bytes, {side}"
        );
    }
}
