//! A hostile peer, and a network on which every host can send. Arbitrary frames must not cause a panic or an access
//! outside the permitted memory; at most this connection is lost. The simulated host checks every access.

mod sim;

use sim::host::{Host, Recv, Send, UNTOUCHED};
use sim::network::Faults;
use sim::pick;
use sim::world::{World, config};
use vipl_sys::crc::crc32c;
use vipl_sys::random::Random;
use vipl_wire::*;

const KEY: u64 = 0x0123_4567_89AB_CDEF;

/// Corrects the CRC if the frame is long enough.
fn seal(frame: &mut [u8]) {
    let length = usize::from(u16::from_be_bytes([frame[6], frame[7]]));
    if (HEADER + TRAILER..=frame.len()).contains(&length) {
        let crc = crc32c(&frame[..length - TRAILER]);
        frame[length - TRAILER..length].copy_from_slice(&crc.to_be_bytes());
    }
}

/// A victim: receives, sends and reads in progress, memory that permits RDMA and memory that does not.
struct Victim {
    host: Host,
    connection: Connection,
    now: u64,
}

fn victim(level: Level) -> Victim {
    let mut host = Host::new(1500, 0);
    host.honest = false;
    for bytes in [0, 100, 3000, 10_000] {
        let area = host.area(bytes, UNTOUCHED);
        host.recvs.push(Recv {
            segments: vec![
                (area.handle, area.at, bytes / 2),
                (area.handle, area.at + bytes / 2, bytes - bytes / 2),
            ],
            fault: None,
            gone: false,
            result: None,
        });
    }
    let secret = host.area(5000, 0x5E);
    let place = secret.handle as usize - 1;
    (host.areas[place].rdma_write, host.areas[place].rdma_read) = (false, false);
    host.area(5000, UNTOUCHED);
    let operations = [
        Operation::Send,
        Operation::Write,
        Operation::Read,
        Operation::Send,
    ];
    for operation in operations {
        if operation == Operation::Read && level == Level::Unreliable {
            continue;
        }
        let area = host.area(4000, 1);
        host.sends.push(Send {
            operation,
            immediate: 1,
            flagged: operation == Operation::Send,
            remote: (77, 7),
            ..Send::message(&area)
        });
    }
    let mut connection = Connection::new(&config(1, KEY, level, 1500, 0));
    connection.posted(10, &mut host);
    Victim {
        host,
        connection,
        now: 10,
    }
}

impl Victim {
    fn receive(&mut self, frame: &[u8], rng: &mut Random) -> Received {
        self.now += rng.below(50_000);
        let received = self.connection.received(frame, self.now, &mut self.host);
        if rng.below(1000) < 300 {
            self.connection.flush(self.now, &mut self.host);
        }
        if rng.below(1000) < 50 {
            self.now += rng.below(200_000_000);
            self.connection.timeout(self.now, &mut self.host);
        }
        self.host.out.clear();
        received
    }

    fn check(&self) {
        self.host.check_gaps();
        let secret = &self.host.areas[4];
        assert!(self.host.is_filled(secret, 0x5E), "not permitted");
    }
}

/// Frames of an honest side 0 to side 1, of all kinds.
fn honest_frames(level: Level, rng: &mut Random) -> Vec<Vec<u8>> {
    let mut world = World::new(
        rng.next_u64(),
        level,
        1500,
        Faults {
            loss: 100,
            ..Faults::NONE
        },
    );
    world.log = Some(Vec::new());
    for side in 0..2 {
        // The key of this world is the victim's.
        let config = config(side as u32, KEY, level, 1500, world.now);
        world.sides[side].connection = Some(Connection::new(&config));
    }
    let mut script = sim::script::Script::default();
    for _ in 0..12 {
        script.post(&mut world, 0, level);
    }
    world.posted(0);
    world.run(3_000_000_000);
    world.close(0, Reason::Disconnected);
    world.run(100_000_000);
    let log = world.log.take().expect("switched on");
    log.into_iter()
        .filter(|(side, _)| *side == 0)
        .map(|(_, frame)| frame)
        .collect()
}

/// A part with fields at their limits.
fn part(rng: &mut Random, area: (u64, u32)) -> (Part, usize) {
    use PartKind::*;
    let kind = pick(rng, &[Send, Piece, Write, Read, Data]);
    let bytes = pick(rng, &[0u16, 1, 50, 500]);
    const MAX: u32 = u32::MAX;
    let edges = [0, 1, 50, 500, 4000, 5000, 5001, 70_000, MAX - 1, MAX];
    let part = Part {
        kind,
        flagged: rng.below(1000) < 500,
        bytes,
        number: pick(rng, &[0, 0, 0, 1, 2, 3, u32::MAX]),
        immediate: 0,
        total: pick(rng, &edges),
        offset: pick(rng, &edges),
        address: area
            .0
            .wrapping_add(pick(rng, &[0, 0, 0, 1, 4999, u64::MAX, u64::MAX - 100])),
        handle: pick(rng, &[area.1, area.1, area.1 - 1, 0, u32::MAX]),
    };
    (part, usize::from(bytes))
}

/// A valid frame with invalid content.
fn forged(rng: &mut Random, host: &Host) -> Vec<u8> {
    let open = &host.areas[5];
    let first = KEY as u32;
    let kinds = {
        use Kind::*;
        [
            Data, Data, Data, Ack, Probe, Close, Closed, Try, Tried, Slice, Slice,
        ]
    };
    let mut frame = vec![0; 1500];
    let mut at = HEADER;
    let kind = pick(rng, &kinds);
    match kind {
        Kind::Data => {
            for _ in 0..rng.below(4) {
                let (part, bytes) = part(rng, (open.at as u64, open.handle));
                if at + 32 + bytes > 1496 {
                    break;
                }
                part.emit(&mut frame[at..]);
                at += part.kind.header() + bytes;
            }
        }
        Kind::Ack => {
            at += rng.below(200) as usize;
            frame[HEADER..at].fill_with(|| rng.next_u64() as u8);
        }
        Kind::Slice => {
            // Whole frames of one part in two slices, and invalid ones.
            let (part, bytes) = part(rng, (open.at as u64, open.handle));
            let body = HEADER + 8;
            part.emit(&mut frame[body..]);
            let total = (part.kind.header() + bytes) as u16;
            let offset = pick(rng, &[0, 0, 128, 128, 256, 1, 16_256, 65_408, u16::MAX]);
            let total = pick(
                rng,
                &[total, total, total, 0, 128, 16_384, 16_385, u16::MAX],
            );
            frame[HEADER..HEADER + 2].copy_from_slice(&offset.to_be_bytes());
            frame[HEADER + 2..HEADER + 4].copy_from_slice(&total.to_be_bytes());
            let left = usize::from(total.saturating_sub(offset)).min(1400);
            at = body + pick(rng, &[left, left.min(128), left.min(128), 0, 1, 200]);
        }
        Kind::Try => at += rng.below(1400) as usize,
        Kind::Tried => {
            at += pick(rng, &[2, 2, 2, 0, 3]);
            let length = pick(rng, &[0u16, 64, 512, 1200, 1472, 1500, u16::MAX]);
            frame[HEADER..HEADER + 2].copy_from_slice(&length.to_be_bytes());
        }
        _ => {
            // Rarely: most of these end the connection.
            if rng.below(1000) < 900 {
                return Vec::new();
            }
            at += pick(rng, &[0, 11, 12, 13]);
            frame[HEADER..at].fill_with(|| rng.next_u64() as u8 & 7);
        }
    }
    let header = Header {
        kind,
        to_endpoint: 101,
        from_endpoint: 100,
        to_vi: 11,
        check: key_check(KEY, 0),
        sequence: first.wrapping_add(pick(
            rng,
            &[0, 0, 1, 2, 3, 100, 255, 256, u32::MAX, 1 << 31],
        )),
        acknowledged: ((KEY >> 32) as u32)
            .wrapping_add(pick(rng, &[0, 1, 2, 3, 8, 9, 100, u32::MAX])),
        window: pick(rng, &[0, 1, 256, u16::MAX]),
        flags: rng.next_u64() as u8 & !FLAG_SEALED,
        marks: rng.next_u64() as u8,
    };
    let bytes = header.emit(&mut frame, at - HEADER);
    frame.truncate(bytes);
    frame
}

/// The seeds to run; the environment selects one to reproduce a finding.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok())
    };
    match number("VIPL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("VIPL_SEEDS").unwrap_or(count),
    }
}

fn level(seed: u64) -> Level {
    [Level::Unreliable, Level::Delivery, Level::Reception][(seed % 3) as usize]
}

#[test]
fn mutated_frames_do_no_harm() {
    let (mut taken, mut ended) = (0, 0);
    for seed in seeds(300) {
        println!("seed {seed}");
        let mut rng = Random::new(seed);
        let honest = honest_frames(level(seed), &mut rng);
        assert!(honest.len() >= 2, "some data and a CLOSE");
        let mut victim = victim(level(seed));
        for frame in &honest {
            for _ in 0..3 {
                let mut frame = frame.clone();
                for _ in 0..rng.below(4) {
                    let at = rng.below(frame.len() as u64) as usize;
                    frame[at] = pick(&mut rng, &[0, 1, 0x7F, 0x80, 0xFF, rng_byte(at)]);
                }
                if rng.below(1000) < 50 {
                    frame.truncate(rng.below(frame.len() as u64) as usize);
                }
                if frame.len() >= HEADER {
                    seal(&mut frame);
                }
                let received = victim.receive(&frame, &mut rng);
                taken += u64::from(received == Received::Taken);
            }
        }
        victim.check();
        ended += u64::from(!victim.connection.is_open());
    }
    assert!(
        taken > 1000 && ended > 20,
        "{taken} taken, {ended} ended: it must get inside"
    );
}

fn rng_byte(at: usize) -> u8 {
    (at * 7) as u8
}

#[test]
fn forged_frames_do_no_harm() {
    let mut ended = 0;
    for seed in seeds(3000) {
        println!("seed {seed}");
        let mut rng = Random::new(seed);
        let mut victim = victim(level(seed));
        for _ in 0..40 {
            let frame = forged(&mut rng, &victim.host);
            victim.receive(&frame, &mut rng);
        }
        victim.check();
        ended += u64::from(!victim.connection.is_open());
    }
    assert!(ended > 1000, "{ended} ended: it must get inside");
}

/// Random bytes, and valid frames with a wrong key: they have no effect, and the connection works as before.
#[test]
fn frames_with_a_wrong_key_have_no_effect() {
    let mut rng = Random::new(5);
    let mut world = World::new(9, Level::Delivery, 1500, Faults::NONE);
    let mut script = sim::script::Script::default();
    for _ in 0..300 {
        let length = rng.below(200) as usize;
        let mut noise: Vec<u8> = (0..length).map(|_| rng.next_u64() as u8).collect();
        if length > HEADER && rng.below(1000) < 700 {
            let header = Header {
                kind: pick(
                    &mut rng,
                    &[Kind::Data, Kind::Close, Kind::Ack, Kind::Try, Kind::Slice],
                ),
                to_endpoint: 101,
                from_endpoint: 100,
                to_vi: 11,
                check: rng.next_u64(),
                sequence: rng.next_u64() as u32,
                acknowledged: rng.next_u64() as u32,
                window: 1,
                flags: 1,
                marks: 0,
            };
            noise.resize(length + TRAILER, 0);
            header.emit(&mut noise, length - HEADER);
        }
        world.call(1, |connection, now, host| {
            assert_ne!(connection.received(&noise, now, host), Received::Taken);
        });
        assert!(!world.sides[1].connection.as_ref().unwrap().ack_owed());
    }
    let stats = world.sides[1].connection.as_ref().unwrap().stats();
    assert!(stats.wrong_key > 100, "{stats:?}");
    for _ in 0..20 {
        script.post(&mut world, 0, Level::Delivery);
    }
    world.posted(0);
    world.run(1_000_000_000);
    script.check(&world, 0);
    assert_eq!(script.checked, 20);
}

/// Reflected frames do not count as frames of the peer.
#[test]
fn reflections_have_no_effect() {
    let mut world = World::new(9, Level::Delivery, 1500, Faults::NONE);
    world.log = Some(Vec::new());
    let mut script = sim::script::Script::default();
    script.post(&mut world, 0, Level::Delivery);
    world.posted(0);
    let (_, frame) = world.log.as_ref().unwrap()[0].clone();
    world.call(0, |connection, now, host| {
        assert_eq!(connection.received(&frame, now, host), Received::WrongKey);
    });
}

/// A CLOSE for an unknown connection is confirmed, so that its sender stops.
#[test]
fn a_stray_close_is_confirmed() {
    let mut host = Host::new(1500, 0);
    let connection = Connection::new(&config(0, KEY, Level::Delivery, 1500, 0));
    let mut closing = connection.close(Reason::Disconnected, 0, &mut host);
    let close = host.out.pop().unwrap();
    assert!(Closing::answer_stray(&close, &mut host));
    let answer = host.out.pop().unwrap();
    let to = address(&answer).unwrap();
    assert_eq!((to.endpoint, to.vi), (100, 10));
    assert!(
        !Closing::answer_stray(&answer, &mut host),
        "only a CLOSE is"
    );
    assert!(!closing.is_done());
    closing.received(&answer, &mut host);
    assert!(closing.is_done());
    // It also ends without an answer.
    let connection = Connection::new(&config(0, KEY, Level::Delivery, 1500, 0));
    let mut closing = connection.close(Reason::Disconnected, 0, &mut host);
    while !closing.is_done() {
        let at = closing.deadline();
        assert!(at < 10_000_000_000);
        closing.timeout(at, &mut host);
    }
    assert!(host.out.len() > 5);
}

/// With a secret: frames made without it, frames made with another one, and replayed frames have no effect.
#[test]
fn frames_without_the_secret_have_no_effect() {
    let mut world = World::new(7, Level::Delivery, 1500, Faults::NONE);
    world.log = Some(Vec::new());
    let mut script = sim::script::Script::default();
    for _ in 0..20 {
        script.post(&mut world, 0, Level::Delivery);
    }
    world.posted(0);
    world.run(1_000_000_000);
    script.check(&world, 0);
    assert_eq!(script.checked, 20);
    let log = world.log.take().unwrap();
    let sealed = |frame: &[u8]| frame[30] & FLAG_SEALED != 0;
    assert!(log.len() > 20 && log.iter().all(|(_, frame)| sealed(frame)));
    let refused = |world: &mut World, side: usize, frame: &[u8]| {
        world.call(side, |connection, now, host| {
            let received = connection.received(frame, now, host);
            assert_eq!(received, Received::Refused(Refused::Seal));
        });
    };
    for (from, frame) in &log {
        // Replayed.
        refused(&mut world, 1 - from, frame);
        // With the next number, and with another secret.
        let mut forged = frame.clone();
        let end = forged.len() - TRAILER;
        forged[end - SEAL..end - SEAL + 8].copy_from_slice(&u64::from(u32::MAX).to_be_bytes());
        seal(&mut forged);
        refused(&mut world, 1 - from, &forged);
        // Without a seal, as forged by a host that has read the key.
        let (header, body) = Header::parse(frame).unwrap();
        let mut bare = frame.clone();
        let header = Header { flags: 0, ..header };
        let bytes = header.emit(&mut bare, body.len() - SEAL);
        refused(&mut world, 1 - from, &bare[..bytes]);
    }
    let close = Header {
        kind: Kind::Close,
        flags: 0,
        ..Header::parse(&log[0].1).unwrap().0
    };
    let mut frame = [0; 100];
    let bytes = close.emit(&mut frame, CLOSE_BODY);
    refused(&mut world, 1 - log[0].0, &frame[..bytes]);
    // The connection still works.
    for _ in 0..20 {
        script.post(&mut world, 0, Level::Delivery);
    }
    world.posted(0);
    world.run(1_000_000_000);
    script.check(&world, 0);
    assert_eq!(script.checked, 40);
    let stats = world.sides[1].connection.as_ref().unwrap().stats();
    assert!(stats.wrong_seal > 40, "{stats:?}");
}

/// Without a secret a frame with a seal is refused.
#[test]
fn seals_without_a_secret_are_refused() {
    let frames = |seed: u64| {
        let mut world = World::new(seed, Level::Delivery, 1500, Faults::NONE);
        world.log = Some(Vec::new());
        let mut script = sim::script::Script::default();
        script.post(&mut world, 0, Level::Delivery);
        world.posted(0);
        world
    };
    let mut plain = frames(4);
    let mut frame = plain.log.as_ref().unwrap()[0].1.clone();
    frame[30] |= FLAG_SEALED;
    seal(&mut frame);
    plain.call(1, |connection, now, host| {
        let received = connection.received(&frame, now, host);
        assert_eq!(received, Received::Refused(Refused::Seal));
    });
}

/// A side that has forgotten the connection cannot seal its answer to a CLOSE; the answer is accepted nevertheless.
#[test]
fn a_sealed_close_is_confirmed_by_a_stranger() {
    let mut host = Host::new(1500, 0);
    let sealed = Config {
        seal: Some([9; 32]),
        ..config(0, KEY, Level::Delivery, 1500, 0)
    };
    let mut closing = Connection::new(&sealed).close(Reason::Disconnected, 0, &mut host);
    let close = host.out.pop().unwrap();
    assert!(Closing::answer_stray(&close, &mut host));
    let answer = host.out.pop().unwrap();
    closing.received(&answer, &mut host);
    assert!(closing.is_done());
}
