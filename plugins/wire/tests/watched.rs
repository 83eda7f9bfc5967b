//! The last eight bytes of RDMA, which applications poll: they travel in one frame and become visible together, after
//! all others (spec §5.4, COMPAT-15), independently of length, frame size and losses.

mod sim;

use sim::host::{Send, UNTOUCHED};
use sim::network::Faults;
use sim::world::{World, config};
use vipl_wire::{Config, Connection, Header, Kind, Level, Operation, PartKind, Parts};

const SECOND: u64 = 1_000_000_000;
/// Frame sizes of interfaces: the minimum, that of IPv6, Ethernet with and without IP, jumbo frames; and odd ones.
const MTUS: [u16; 9] = [256, 548, 1232, 1247, 1464, 1472, 1500, 8972, 9000];

fn world(level: Level, mtu: u16, seal: bool, faults: Faults) -> World {
    let mut world = World::new(5, level, mtu, faults);
    world.log = Some(Vec::new());
    for side in 0..2 {
        let config = Config {
            seal: seal.then_some([7; 32]),
            ..config(side as u32, 0x1234_5678, level, mtu, world.now)
        };
        world.sides[side].connection = Some(Connection::new(&config));
    }
    world
}

/// Posts an operation at side 0. Returns the side whose memory it writes, and where.
fn post(world: &mut World, operation: Operation, bytes: usize) -> (usize, usize) {
    let local = world.sides[0].area(bytes, 0x5A);
    let remote = world.sides[1].area(bytes, 0x5A);
    let target = match operation {
        Operation::Read => (0, local.at),
        _ => (1, remote.at),
    };
    let memory = &mut world.sides[target.0].memory;
    memory[target.1..target.1 + bytes].fill(UNTOUCHED);
    world.sides[0].sends.push(Send {
        operation,
        remote: (remote.at as u64, remote.handle),
        ..Send::message(&local)
    });
    target
}

/// No part ends within the last eight bytes, unless it is the last one. Returns the number of parts.
fn check_parts(world: &World) -> usize {
    let mut parts = 0;
    for (_, frame) in world.log.iter().flatten() {
        let (header, body) = Header::parse(frame).expect("a frame of the engine");
        let body = &body[..body.len() - if header.flags & 2 != 0 { 24 } else { 0 }];
        if header.kind != Kind::Data {
            continue;
        }
        for part in Parts::new(body) {
            let (part, _) = part.expect("a part of the engine");
            let left = part.total - part.offset - u32::from(part.bytes);
            let whole = part.kind == PartKind::Read || left == 0 || left >= 8;
            assert!(whole, "{left} bytes are left after {part:?}");
            parts += 1;
        }
    }
    parts
}

/// Each length around the borders of one, two and many frames, at each size of frames, on each level.
#[test]
fn no_part_ends_within_the_last_eight_bytes() {
    for level in [Level::Unreliable, Level::Delivery, Level::Reception] {
        for mtu in MTUS {
            for seal in [false, true] {
                let room = world(level, mtu, seal, Faults::NONE).sides[0]
                    .connection
                    .as_ref()
                    .expect("open")
                    .room();
                for operation in [Operation::Write, Operation::Read] {
                    if operation == Operation::Read && level == Level::Unreliable {
                        continue;
                    }
                    let mut world = world(level, mtu, seal, Faults::NONE);
                    let header = match operation {
                        Operation::Read => PartKind::Data.header(),
                        _ => PartKind::Write.header(),
                    };
                    let part = room - header;
                    let ends = [0, part, 2 * part - 8, 2 * part, 3 * part, 7 * part];
                    for end in ends {
                        for bytes in end.saturating_sub(2)..end + 18 {
                            post(&mut world, operation, bytes);
                            world.posted(0);
                            world.run(SECOND / 100);
                        }
                    }
                    let host = &world.sides[0].host;
                    assert_eq!(host.sends_done, host.sends.len(), "{level:?}, {mtu}");
                    let parts = check_parts(&world);
                    assert!(parts > host.sends.len());
                    for send in &host.sends {
                        let (_, at, bytes) = send.segments[0];
                        let there = send.remote.0 as usize;
                        assert_eq!(
                            host.memory[at..at + bytes],
                            world.sides[1].memory[there..there + bytes]
                        );
                    }
                }
            }
        }
    }
}

/// An application polls after every event of a network that loses, repeats and reorders frames, and whose path
/// shrinks: the last eight bytes are all old or all new, and new only when all others are.
#[test]
fn an_application_sees_the_last_eight_bytes_last_and_whole() {
    for seed in 0..60u64 {
        for operation in [Operation::Write, Operation::Read] {
            let faults = Faults {
                loss: 100,
                duplication: 50,
                reordering: 200,
                ..Faults::NONE
            };
            let mut world = world(Level::Delivery, 1500, seed % 2 == 0, faults);
            world.rng = vipl_sys::random::Random::new(seed);
            for message in 0..12usize {
                let bytes = 1404 * (1 + message % 4) + (seed as usize + message) % 16;
                let (side, at) = post(&mut world, operation, bytes);
                world.posted(0);
                if message == 6 {
                    world.fault(|faults| faults.largest = 700);
                }
                let done = world.until(60 * SECOND, |world| {
                    let memory = &world.sides[side].memory[at..at + bytes];
                    let (others, watched) = memory.split_at(bytes - 8);
                    let old = watched.iter().filter(|byte| **byte == UNTOUCHED).count();
                    assert!(old == 0 || old == 8, "seed {seed}: {old} bytes are old");
                    let whole = others.iter().all(|byte| *byte == 0x5A);
                    assert!(whole || old == 8, "seed {seed}: the last bytes came early");
                    old == 0
                });
                assert!(done, "seed {seed}, {operation:?} {message}");
            }
            check_parts(&world);
        }
    }
}
