//! What comes by UDP: to an agent, before and after the cookie, envelopes and the frames inside them; to a data socket,
//! frames with and without a seal.
#![no_main]

use kagent_setup::{Datagram, FRAME_MAX, Frame, SEAL, answer_version};
use libfuzzer_sys::fuzz_target;
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
        key: header.check,
        side: 1,
        level: Level::Delivery,
        mtu: 1500,
        max_transfer: 1 << 16,
        own_vi: header.to_vi,
        partner_vi: 7,
        own_endpoint: header.to_endpoint,
        partner_endpoint: header.from_endpoint,
        carry_immediate: false,
        ack_delay_ns: 0,
        probes_max: 7,
        now_ns: 0,
        shared_path: false,
        seal: Some([7; 32]),
    })
    .close(Reason::Disconnected, 0, &mut Nowhere);
    closing.received(&again, &mut Nowhere);
    assert_eq!(
        closing.is_done(),
        header.kind == Kind::Closed && header.flags & FLAG_SEALED == 0
    );
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
        let crc = vipl_wire::crc32c(&whole[..end]);
        whole[end..].copy_from_slice(&crc.to_be_bytes());
    }
    data(&whole);
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
