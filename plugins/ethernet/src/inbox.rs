//! Frames for one VI that some other thread has read from the socket.
//!
//! Whoever reads the socket gets the frames of all VIs of the NIC. Those of other VIs it puts here, since
//! it must not take another VI's lock. Only frames of the VI's connections are accepted, and only so many:
//! a stranger on the network cannot fill memory, and what does not fit is lost as on any network.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Bytes of frames that wait for one VI: a whole window of the protocol, and something to spare.
const BYTES_MAX: usize = 5 << 19;
/// Frames that wait for one VI.
const FRAMES_MAX: usize = 512;

/// The proof, in a frame of the protocol, that its sender knows the connection's key. The connection
/// itself looks at it again, after the frame's CRC.
#[inline(always)]
pub(crate) fn check_of(payload: &[u8]) -> Option<u64> {
    let bytes = payload.get(12..20)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

#[derive(Default)]
struct State {
    /// Key check of the connection whose frames are accepted.
    check: Option<u64>,
    frames: VecDeque<Box<[u8]>>,
    bytes: usize,
}

/// The inbox of one VI.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// Something is in it; read without the lock.
    filled: AtomicBool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
    }

    /// Accepts frames with this key check from now on.
    pub(crate) fn admit(&self, check: u64) {
        self.lock().check = Some(check);
    }

    /// Accepts none any more, and drops what is there.
    pub(crate) fn dismiss(&self) {
        let mut state = self.lock();
        *state = State::default();
        self.filled.store(false, Ordering::Release);
    }

    /// Puts a frame in. False: nobody wants it, or there is no room.
    pub(crate) fn put(&self, payload: &[u8]) -> bool {
        let mut state = self.lock();
        let fits = state.frames.len() < FRAMES_MAX && state.bytes + payload.len() <= BYTES_MAX;
        if !fits || state.check.is_none() || check_of(payload) != state.check {
            return false;
        }
        state.bytes += payload.len();
        state.frames.push_back(payload.into());
        self.filled.store(true, Ordering::Release);
        true
    }

    /// Takes the oldest frame out.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<Box<[u8]>> {
        if self.filled.load(Ordering::Acquire) {
            self.take_locked()
        } else {
            None
        }
    }

    fn take_locked(&self) -> Option<Box<[u8]>> {
        let mut state = self.lock();
        let frame = state.frames.pop_front();
        state.bytes -= frame.as_ref().map_or(0, |frame| frame.len());
        self.filled
            .store(!state.frames.is_empty(), Ordering::Release);
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(check: u64, bytes: usize) -> Vec<u8> {
        let mut frame = vec![0; bytes];
        frame[12..20].copy_from_slice(&check.to_be_bytes());
        frame
    }

    #[test]
    fn only_the_connection_gets_in_and_only_so_much() {
        let inbox = Inbox::default();
        assert!(!inbox.put(&frame(7, 100)), "nobody is connected");
        inbox.admit(7);
        assert!(!inbox.put(&frame(8, 100)), "a stranger");
        assert!(!inbox.put(&[0; 19]), "too short for a check");
        for _ in 0..FRAMES_MAX {
            assert!(inbox.put(&frame(7, 100)));
        }
        assert!(!inbox.put(&frame(7, 100)), "as many frames as there may be");
        assert_eq!(inbox.take().unwrap()[..], frame(7, 100));
        assert!(inbox.put(&frame(7, 100)));
        inbox.dismiss();
        assert!(inbox.take().is_none() && !inbox.put(&frame(7, 100)));
        inbox.admit(9);
        let mut put = 0;
        while inbox.put(&frame(9, 9000)) {
            put += 1;
        }
        assert_eq!(put, BYTES_MAX / 9000);
    }

    #[test]
    fn the_check_is_where_the_protocol_has_it() {
        let header = vipl_wire::Header {
            kind: vipl_wire::Kind::Ack,
            to_endpoint: 1,
            from_endpoint: 2,
            to_vi: 3,
            check: 0x0102_0304_0506_0708,
            sequence: 4,
            acknowledged: 5,
            window: 6,
            flags: 0,
        };
        let mut frame = [0; 64];
        header.emit(&mut frame, 0);
        assert_eq!(check_of(&frame), Some(header.check));
    }
}
