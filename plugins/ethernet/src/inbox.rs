//! Frames for one VI that another thread has read from the socket.
//!
//! A thread that reads the socket gets the frames of all VIs of the NIC. It must not lock another VI, so it puts frames
//! of other VIs here. Only frames of the connection are accepted, up to a limit: other hosts cannot fill memory, and
//! frames beyond the limit are lost as on any network.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use vipl_netio::Address;
use vipl_sys::mutex::Mutex;

/// Most bytes that wait for one VI: more than a whole window of the protocol.
const BYTES_MAX: usize = 5 << 19;
/// Most frames that wait for one VI.
const FRAMES_MAX: usize = 2048;

/// A frame, its sender if the connection follows the peer, and whether a router has marked it.
pub(crate) type Arrived = (Option<Address>, Box<[u8]>, bool);

#[derive(Default)]
struct State {
    /// Key check of the connection whose frames are accepted.
    check: Option<u64>,
    /// The connection follows its peer, and needs the senders of its frames.
    follows: bool,
    frames: VecDeque<Arrived>,
    bytes: usize,
}

/// The inbox of one VI.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// Whether frames wait; read without the lock.
    filled: AtomicBool,
}

impl Inbox {
    /// Accepts frames with this key check from now on; `follows`: together with their senders.
    pub(crate) fn admit(&self, check: u64, follows: bool) {
        let mut state = self.state.lock();
        (state.check, state.follows) = (Some(check), follows);
    }

    /// Accepts no more frames, and drops waiting ones.
    pub(crate) fn dismiss(&self) {
        let mut state = self.state.lock();
        *state = State::default();
        self.filled.store(false, Ordering::Release);
    }

    /// Adds a frame with this key check. False: it does not belong to the connection, or the limit is reached. The
    /// engine compares the check again, after it has verified the CRC.
    pub(crate) fn put(
        &self,
        check: u64,
        sender: &dyn Fn() -> Address,
        (payload, marked): (&[u8], bool),
    ) -> bool {
        let mut state = self.state.lock();
        let fits = state.frames.len() < FRAMES_MAX && state.bytes + payload.len() <= BYTES_MAX;
        if !fits || state.check != Some(check) {
            return false;
        }
        state.bytes += payload.len();
        let from = state.follows.then(sender);
        state.frames.push_back((from, payload.into(), marked));
        self.filled.store(true, Ordering::Release);
        true
    }

    /// Whether frames wait.
    #[inline(always)]
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Removes the oldest frame.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<Arrived> {
        if self.is_filled() {
            self.take_locked()
        } else {
            None
        }
    }

    fn take_locked(&self) -> Option<Arrived> {
        let mut state = self.state.lock();
        let frame = state.frames.pop_front();
        state.bytes -= frame.as_ref().map_or(0, |(_, frame, _)| frame.len());
        self.filled
            .store(!state.frames.is_empty(), Ordering::Release);
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_of_the_connection_are_accepted_up_to_a_limit() {
        let (inbox, frame) = (Inbox::default(), [1; 100]);
        let from = || Address::Ethernet([2; 6]);
        assert!(!inbox.put(7, &from, (&frame, false)), "no connection");
        inbox.admit(7, false);
        assert!(!inbox.put(8, &from, (&frame, false)), "another key");
        assert!(inbox.put(7, &from, (&frame, true)));
        for _ in 1..FRAMES_MAX {
            assert!(inbox.put(7, &from, (&frame, false)));
        }
        assert!(
            !inbox.put(7, &from, (&frame, false)),
            "as many frames as there may be"
        );
        assert_eq!(inbox.take(), Some((None, frame.into(), true)));
        assert_eq!(inbox.take(), Some((None, frame.into(), false)));
        assert!(inbox.put(7, &from, (&frame, false)));
        inbox.dismiss();
        assert!(inbox.take().is_none() && !inbox.put(7, &from, (&frame, false)));
        inbox.admit(9, true);
        let mut put = 0;
        while inbox.put(9, &from, (&[0; 9000], false)) {
            put += 1;
        }
        assert_eq!(put, BYTES_MAX / 9000);
        assert_eq!(inbox.take().unwrap().0, Some(from()));
    }
}
