//! What is written can be read, and nothing else can.

use super::*;

fn call() -> Call {
    Call {
        endpoint: 0x1234,
        vi: 77,
        remaining_ms: Some(5000),
        grace_ms: 250,
        attributes: Attributes {
            max_transfer_size: 65_536,
            qos: 0,
            reliability: 2,
            rdma_write: true,
            rdma_read: false,
        },
        local: Discriminator::new(b"").unwrap(),
        remote: Discriminator::new(&[7; 64]).unwrap(),
    }
}

fn bodies() -> Vec<Body> {
    let accepted = Accepted {
        endpoint: 9,
        vi: 1023,
        key: u64::MAX,
        attributes: call().attributes,
    };
    let mut bodies = vec![
        Body::Request(call()),
        Body::Peer(Call {
            remaining_ms: None,
            ..call()
        }),
        Body::Answer(Answer::Held),
        Body::Answer(Answer::Accepted(accepted)),
        Body::Ack,
        Body::Who,
        Body::Here,
    ];
    for from in [Side::Asker, Side::Answerer] {
        bodies.push(Body::Gone { from });
        bodies.extend([true, false].map(|orderly| Body::Disconnect { from, orderly }));
    }
    bodies.extend(REFUSALS.map(|refusal| Body::Answer(Answer::Refused(refusal))));
    bodies
}

fn frames() -> impl Iterator<Item = (Frame, Vec<u8>)> {
    bodies().into_iter().map(|body| {
        let exchange = 0x0102_0304_0506_0708;
        let frame = Frame { exchange, body };
        let mut room = [0xEE; FRAME_MAX];
        let length = frame.emit(&mut room);
        (frame, room[..length].to_vec())
    })
}

#[test]
fn the_crc_is_castagnolis() {
    // RFC 3720, B.4.
    assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
}

#[test]
fn every_frame_is_read_as_it_was_written() {
    for (frame, bytes) in frames() {
        assert_eq!(Frame::parse(&bytes), Ok(frame));
        let padded = [bytes.as_slice(), &[0; 40]].concat();
        assert_eq!(
            Frame::parse(&padded),
            Ok(frame),
            "Ethernet pads short frames"
        );
    }
}

#[test]
fn an_answer_is_not_longer_than_the_shortest_call() {
    let lengths = |wanted: fn(&Body) -> bool| {
        frames()
            .filter(move |(frame, _)| wanted(&frame.body))
            .map(|(_, bytes)| bytes.len())
    };
    let empty = Discriminator::new(b"").unwrap();
    let body = Body::Request(Call {
        remote: empty,
        ..call()
    });
    let shortest = Frame { exchange: 1, body }.emit(&mut [0; FRAME_MAX]);
    assert!(
        lengths(|body| matches!(body, Body::Answer(_)))
            .max()
            .unwrap()
            <= shortest
    );
    assert!(lengths(|_| true).max().unwrap() <= FRAME_MAX);
}

#[test]
fn one_wrong_bit_and_the_frame_is_refused() {
    for (_, bytes) in frames() {
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let read = Frame::parse(&wrong);
            assert!(read.is_err(), "bit {bit} of {bytes:?}: {read:?}");
        }
        for length in 0..bytes.len() {
            assert!(Frame::parse(&bytes[..length]).is_err(), "cut to {length}");
        }
    }
}

/// Bodies of noise under a good header and a good CRC.
#[test]
fn random_bodies_are_read_or_refused() {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut roll = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u32
    };
    let (mut read, mut refused) = (0, 0);
    for _ in 0..200_000 {
        let length = HEADER + (roll() as usize) % (FRAME_MAX - HEADER - TRAILER + 1);
        let mut bytes: Vec<u8> = (0..length).map(|_| roll() as u8 >> (roll() % 8)).collect();
        bytes[0] = VERSION;
        bytes[1] = (roll() % 10) as u8;
        bytes[2..4].copy_from_slice(&((length + TRAILER) as u16).to_be_bytes());
        let crc = crc32c(&bytes);
        bytes.extend(crc.to_be_bytes());
        match Frame::parse(&bytes) {
            Ok(frame) => {
                let mut room = [0; FRAME_MAX];
                let length = frame.emit(&mut room);
                assert_eq!(Frame::parse(&room[..length]), Ok(frame));
                read += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(
        read > 100 && refused > 100,
        "{read} read, {refused} refused"
    );
}

#[test]
fn another_version_is_answered_once_and_its_answer_never() {
    let (_, mut bytes) = frames().next().unwrap();
    bytes[0] = 9;
    // Changed on the way rather than written so.
    assert_eq!(Frame::parse(&bytes), Err(Refused::Corrupt));
    assert_eq!(answer_version(&bytes, &mut [0; FRAME_MAX]), None);
    let end = bytes.len() - TRAILER;
    let crc = crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(Frame::parse(&bytes), Err(Refused::Version(9)));
    let mut room = [0; FRAME_MAX];
    let length = answer_version(&bytes, &mut room).expect("an answer");
    assert!(length <= bytes.len());
    let answer = &mut room[..length];
    let read = Err(Refused::OtherVersion(
        0x0102_0304_0506_0708,
        VERSION,
        VERSION,
    ));
    assert_eq!(Frame::parse(answer), read);
    assert_eq!(answer_version(answer, &mut [0; FRAME_MAX]), None);
    // The same from a version to come.
    answer[0] = 200;
    let crc = crc32c(&answer[..length - TRAILER]);
    answer[length - TRAILER..].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(Frame::parse(answer), read);
    assert_eq!(answer_version(answer, &mut [0; FRAME_MAX]), None);
}
