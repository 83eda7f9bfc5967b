//! What comes by UDP to an agent, before and after the cookie: envelopes and the frames inside them.
#![no_main]

use kagent_setup::{Datagram, FRAME_MAX, Frame, SEAL, answer_version};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
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
        assert!(length <= frame.len(), "an answer is no longer than the question");
    }
});
