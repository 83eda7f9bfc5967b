//! What comes by UDP: to an agent, before and after the cookie, envelopes and the frames inside them; to a data socket,
//! frames with and without a seal, and the same content as one frame and as slices.
#![no_main]

use kagent_proto::setup::{Datagram, FRAME_MAX, Frame, SEAL, answer_version};
use libfuzzer_sys::fuzz_target;
use vipl_fuzz::plain::Plain;
use vipl_wire::*;

/// A frame of data: what is read is written in the same way, and nothing is taken for sealed that is not.
fn data(bytes: &[u8]) {
    let known = vipl_wire::address(bytes);
    let Ok((header, body)) = Header::parse(bytes) else {
        return;
    };
    let known = known.expect("what is parsed has an address");
    assert_eq!((known.vi, known.check), (header.to_vi, header.check));
    let length = HEADER + body.len() + TRAILER;
    let mut again = bytes[..length].to_vec();
    assert_eq!(header.emit(&mut again, body.len()), length);
    assert_eq!(Header::parse(&again), Ok((header, body)));
    for part in Parts::new(body) {
        if part.is_err() {
            break;
        }
    }
    // It is not from the peer, who has a secret: no answer but to a CLOSE that is forgotten.
    let mut closing = Connection::new(&Config {
        seal: Some([7; 32]),
        ..config(&header)
    })
    .close(Reason::Disconnected, 0, &mut Nowhere);
    closing.received(&again, &mut Nowhere);
    assert_eq!(
        closing.is_done(),
        header.kind == Kind::Closed && header.flags & FLAG_SEALED == 0
    );
}

/// The side that such frames are for.
fn config(header: &Header) -> Config {
    Config {
        key: header.check,
        side: 1,
        level: Level::Delivery,
        mtu: 1500,
        max_transfer: 1 << 16,
        own_vi: header.to_vi,
        peer_vi: 7,
        own_endpoint: header.to_endpoint,
        peer_endpoint: header.from_endpoint,
        carry_immediate: false,
        ack_delay_ns: 0,
        patience_ns: vipl_wire::PATIENCE_NS,
        now_ns: 0,
        shared_path: false,
        seal: None,
        count_from: 0,
    }
}

/// The first DATA frame of a connection.
const FIRST: Header = Header {
    kind: Kind::Data,
    to_endpoint: 1,
    from_endpoint: 2,
    to_vi: 3,
    check: 0x0123_4567_89AB_CDEF,
    sequence: 0x89AB_CDEF,
    acknowledged: 0x0123_4567,
    window: 256,
    flags: 0,
    marks: 0,
};

/// A frame with this body has the effect of its slices, in any order, with some of them twice; frames of the kinds that ask
/// about the path change nothing of it.
fn slices(bytes: &[u8]) {
    let Some(([length, order, other], body)) = bytes.split_first_chunk::<3>() else {
        return;
    };
    let body = &body[..body.len().min(1400)];
    let frame = |header: Header, body: &[u8]| {
        let mut frame = vec![0; HEADER + body.len() + TRAILER];
        frame[HEADER..][..body.len()].copy_from_slice(body);
        header.emit(&mut frame, body.len());
        frame
    };
    let mut ends = [(); 2].map(|()| (Connection::new(&config(&FIRST)), Plain::new(1500)));
    let [whole, sliced] = &mut ends;
    whole.0.received(&frame(FIRST, body), 1, &mut whole.1);
    let length = 128 * (1 + usize::from(*length) % 4);
    let mut all: Vec<Vec<u8>> = Vec::new();
    for (number, bytes) in body.chunks(length).enumerate() {
        let offset = (number * length) as u16;
        let total = body.len() as u16;
        let head = [offset.to_be_bytes(), total.to_be_bytes(), [0; 2], [0; 2]].concat();
        let slice = Header {
            kind: Kind::Slice,
            ..FIRST
        };
        all.push(frame(slice, &[&head[..], bytes].concat()));
    }
    if let Some(middle) = usize::from(*order).checked_rem(all.len()) {
        let again = all[middle].clone();
        all.rotate_left(middle);
        if order & 128 != 0 {
            all.reverse();
        }
        all.insert(0, again);
    }
    let kind = if other & 1 == 0 {
        Kind::Try
    } else {
        Kind::Tried
    };
    let asks = frame(Header { kind, ..FIRST }, &[*other, *order]);
    for slice in &all {
        sliced.0.received(&asks, 1, &mut sliced.1);
        sliced.0.received(slice, 1, &mut sliced.1);
    }
    // A frame without a body is a violation of the protocol, and has no slices.
    if !body.is_empty() {
        assert_eq!(whole.1, sliced.1);
        assert_eq!(whole.0.is_open(), sliced.0.is_open());
    }
    assert_eq!(sliced.0.frame_bytes(), 1500);
}

/// A device that is full.
struct Nowhere;

impl Transmit for Nowhere {
    type Frame = Vec<u8>;

    fn frame(&mut self) -> Option<Vec<u8>> {
        None
    }

    fn transmit(&mut self, _frame: Vec<u8>, _bytes: usize) {}
}

fuzz_target!(|bytes: &[u8]| {
    // The fuzzer does not find a CRC by trying: it gets the right one.
    let mut whole = bytes.to_vec();
    if bytes.len() >= HEADER + TRAILER {
        let end = bytes.len() - TRAILER;
        whole[0] = 1;
        whole[6..8].copy_from_slice(&(bytes.len() as u16).to_be_bytes());
        let crc = vipl_sys::crc::crc32c(&whole[..end]);
        whole[end..].copy_from_slice(&crc.to_be_bytes());
    }
    data(&whole);
    slices(bytes);
    let Some(opened) = Datagram::open(bytes) else {
        return;
    };
    // What is read is written in the same way, but for what is ignored.
    let sealed = opened.seal.is_some();
    let mut again = opened.datagram.emit(sealed);
    assert_eq!(again.len(), opened.sealed.len());
    if let Some(seal) = opened.seal {
        assert_eq!(opened.sealed.len() + SEAL, bytes.len());
        again.extend(seal);
    }
    let reread = Datagram::open(&again).expect("its own datagram");
    assert_eq!(reread.datagram, opened.datagram);
    let Some(frame) = opened.datagram.frame else {
        return;
    };
    let mut room = [0; FRAME_MAX];
    if let Ok(read) = Frame::parse(frame) {
        let length = read.emit(&mut room);
        assert_eq!(Frame::parse(&room[..length]), Ok(read));
    }
    if let Some(length) = answer_version(frame, &mut room) {
        assert!(
            length <= frame.len(),
            "an answer is no longer than the question"
        );
    }
});
