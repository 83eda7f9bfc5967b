//! The path in virtual time: the search for its MTU, paths that shrink and grow while frames are in flight, and black
//! holes, which drop long frames silently.

mod sim;

use sim::host::{Recv, Send, UNTOUCHED};
use sim::network::Faults;
use sim::world::{World, config};
use vipl_wire::{Config, Connection, Level, SealKey};

const SECOND: u64 = 1_000_000_000;
const BYTES: usize = 65_536;
const DATA: u8 = 1;
const TRY: u8 = 6;
const SLICE: u8 = 8;

/// A path of two milliseconds and 25 MB/s with a limited frame size.
fn path(largest: usize) -> Faults {
    Faults {
        rate: 25,
        queue: 4_000_000,
        latency_ns: 1_000_000,
        largest,
        ..Faults::NONE
    }
}

/// Two hosts whose interfaces carry frames of `mtu` bytes; `shared`: with routers between them.
fn world(mtu: u16, shared: bool, seal: Option<SealKey>, faults: Faults) -> World {
    let mut world = World::new(5, Level::Delivery, mtu, faults);
    world.poll_ns = 1_000;
    for side in 0..2 {
        let config = Config {
            shared_path: shared,
            seal,
            ..config(side as u32, 0x1234_5678, Level::Delivery, mtu, world.now)
        };
        world.sides[side].connection = Some(Connection::new(&config));
    }
    // The owner of a connection asks for its first deadline.
    (0..2).for_each(|side| world.call(side, |_, _, _| {}));
    world
}

/// Posts messages from side 1 to side 0.
fn post(world: &mut World, messages: usize) {
    for fill in 0..messages {
        let from = world.sides[1].area(BYTES, fill as u8 | 1);
        let to = world.sides[0].area(BYTES, UNTOUCHED);
        world.sides[0].recvs.push(Recv::into_area(&to));
        world.sides[1].sends.push(Send::message(&from));
    }
    world.posted(1);
}

/// Checks that everything posted arrives in time, byte for byte.
fn arrive(world: &mut World, seconds: u64) {
    let done = |world: &World| world.sides[1].sends_done == world.sides[1].sends.len();
    assert!(world.until(seconds * SECOND, done), "all is acknowledged");
    for (send, recv) in world.sides[1].sends.iter().zip(&world.sides[0].recvs) {
        let bytes = |side: usize, (_, at, bytes): (u32, usize, usize)| {
            &world.sides[side].memory[at..at + bytes]
        };
        assert!(recv.result.is_some());
        assert_eq!(bytes(1, send.segments[0]), bytes(0, recv.segments[0]));
    }
    world.sides.iter().for_each(|side| side.host.check_gaps());
}

fn size(world: &World) -> u16 {
    world.sides[1]
        .connection
        .as_ref()
        .expect("open")
        .frame_bytes()
}

fn black_holes(world: &World) -> u64 {
    world.sides[1]
        .connection
        .as_ref()
        .expect("open")
        .stats()
        .black_holes
}

/// The longest frame of a kind that side 1 has sent since the log was emptied.
fn longest(world: &mut World, kind: u8) -> usize {
    let log = world.log.replace(Vec::new()).unwrap_or_default();
    let of_kind = log
        .iter()
        .filter(|(side, frame)| (*side, frame[1]) == (1, kind));
    of_kind.map(|(_, frame)| frame.len()).max().unwrap_or(0)
}

#[test]
fn the_size_is_found_and_nothing_longer_is_sent() {
    for seal in [None, Some([7; 32])] {
        for (mtu, largest) in [
            (1472, 1272),
            (1472, 1472),
            (8972, 1472),
            (8972, 4000),
            (1472, 1200),
        ] {
            let mut world = world(mtu, true, seal, path(largest));
            world.log = Some(Vec::new());
            post(&mut world, 40);
            arrive(&mut world, 60);
            world.run(20 * SECOND);
            let found = usize::from(size(&world));
            assert!(
                found <= largest && largest - found < 8,
                "{mtu} {largest}: {found}"
            );
            // The loss of a TRY does not count: nothing is retransmitted, and the window does not shrink.
            assert_eq!((world.sent_again(), black_holes(&world)), (0, 0));
            assert!(longest(&mut world, DATA) <= largest, "no DATA was too long");
            post(&mut world, 4);
            arrive(&mut world, 10);
            assert_eq!(longest(&mut world, DATA), found, "the size is used");
            let reported = (found != 1200).then_some((found as u16, false));
            assert_eq!(world.sides[1].carries, reported, "the owner knows");
        }
    }
}

/// A peer that does not know these frames drops them.
#[test]
fn without_answers_it_stays_with_the_base() {
    let faults = Faults {
        newest_kind: 5,
        ..path(0)
    };
    let mut world = world(8972, true, None, faults);
    post(&mut world, 20);
    arrive(&mut world, 20);
    assert_eq!((size(&world), world.sent_again()), (1200, 0));
}

#[test]
fn a_path_that_shrinks_and_grows_is_followed() {
    for seal in [None, Some([7; 32])] {
        for fragments in [false, true] {
            let mut world = world(1472, true, seal, path(1472));
            post(&mut world, 40);
            arrive(&mut world, 20);
            assert_eq!(size(&world), 1472);
            // During a transfer.
            post(&mut world, 40);
            world.run(20_000_000);
            world.lines[1].faults.largest = 1300;
            world.lines[1].faults.fragments = fragments;
            world.log = Some(Vec::new());
            arrive(&mut world, 20);
            let (used, holes) = (size(&world), black_holes(&world));
            if fragments {
                assert_eq!((used, holes), (1472, 0), "it arrives, in fragments");
                continue;
            }
            world.run(10 * SECOND);
            let used = size(&world).max(used);
            assert!((1293..=1300).contains(&used), "{used}");
            assert_eq!(holes, 1);
            assert!(
                longest(&mut world, SLICE) > 1000,
                "what had left was sent in slices"
            );
            // Other frames are not retransmitted because of it.
            let again = world.sent_again();
            post(&mut world, 40);
            arrive(&mut world, 20);
            assert_eq!(world.sent_again(), again);
            world.lines[1].faults.largest = 0;
            world.run(601 * SECOND);
            assert_eq!(size(&world), 1472, "the search begins anew");
        }
    }
}

/// The base does not pass, either.
#[test]
fn a_narrow_path_is_still_a_path() {
    let mut world = world(1472, true, None, path(600));
    post(&mut world, 10);
    arrive(&mut world, 60);
    world.run(30 * SECOND);
    assert!((593..=600).contains(&size(&world)), "{}", size(&world));
}

/// One interface of a link has jumbo frames, and the other does not.
#[test]
fn a_black_hole_on_a_link_is_found() {
    let mut world = world(9000, false, None, path(0));
    post(&mut world, 4);
    arrive(&mut world, 5);
    assert_eq!(
        size(&world),
        9000,
        "nothing is searched where there is nothing to find"
    );
    world.log = Some(Vec::new());
    world.lines[1].faults.largest = 1500;
    post(&mut world, 4);
    arrive(&mut world, 20);
    assert!(longest(&mut world, TRY) > 0);
    world.run(10 * SECOND);
    assert_eq!(black_holes(&world), 1);
    assert!((1493..=1500).contains(&size(&world)), "{}", size(&world));
}

/// A path that loses all or many frames is no black hole.
#[test]
fn a_cut_and_losses_by_chance_change_nothing() {
    let mut world = world(1472, true, None, path(1472));
    post(&mut world, 10);
    arrive(&mut world, 20);
    post(&mut world, 100);
    let cut = Some((world.now + 50_000_000, world.now + 3 * SECOND));
    world.fault(|faults| faults.cut = cut);
    arrive(&mut world, 60);
    assert_eq!(
        (size(&world), black_holes(&world)),
        (1472, 0),
        "after a cut"
    );
    world.fault(|faults| faults.loss = 100);
    post(&mut world, 100);
    arrive(&mut world, 120);
    assert!(black_holes(&world) <= 1, "{}", black_holes(&world));
    world.run(20 * SECOND);
    assert!(size(&world) >= 1464, "{}", size(&world));
}

/// Unreliable connections detect a smaller path although nothing is acknowledged.
#[test]
fn unreliable_connections_follow_too() {
    let mut world = World::new(5, Level::Unreliable, 1472, path(1472));
    for side in 0..2 {
        let config = Config {
            shared_path: true,
            ..config(side as u32, 7, Level::Unreliable, 1472, world.now)
        };
        world.sides[side].connection = Some(Connection::new(&config));
        world.call(side, |_, _, _| {});
    }
    world.run(SECOND);
    assert_eq!(size(&world), 1472);
    world.lines[1].faults.largest = 1300;
    world.run(30 * SECOND);
    assert!((1293..=1300).contains(&size(&world)), "{}", size(&world));
}

/// A router translates addresses and forgets those of one side. With seals the other side follows the newest frame,
/// and nothing is lost. An older frame that arrives late or twice does not lead it back.
#[test]
fn with_seals_the_peer_is_followed() {
    for moves in 0..2 {
        let faults = Faults {
            reordering: 50,
            duplication: 50,
            ..path(0)
        };
        let mut world = world(1472, true, Some([7; 32]), faults);
        for _ in 0..4 {
            post(&mut world, 20);
            world.run(10_000_000);
            world.rebind(moves);
            arrive(&mut world, 60);
            let (seen, known) = (world.sides[moves].port, world.sides[1 - moves].to_port);
            assert_eq!(seen, known, "side {moves}");
        }
        // Nothing is posted: the PROBE of a silent side is sufficient.
        world.rebind(moves);
        world.run(4 * SECOND);
        post(&mut world, 1);
        arrive(&mut world, 10);
    }
}

/// Without seals any host that has seen a frame could redirect the connection, so it is not followed: the connection
/// ends.
#[test]
fn without_seals_no_peer_is_followed() {
    let mut world = world(1472, true, None, path(0));
    post(&mut world, 20);
    arrive(&mut world, 20);
    world.rebind(0);
    post(&mut world, 1);
    let over = |world: &World| world.sides[1].failed.is_some();
    assert!(world.until(20 * SECOND, over));
    assert_eq!(world.sides[1].to_port, 0);
}
