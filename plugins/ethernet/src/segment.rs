//! Frames between two processes of one host, through the shared segment of their connection.
//!
//! An interface does not deliver a frame to the host that has sent it, so peers on one host need another path. Each
//! direction is a byte ring with one writer and one reader:
//!
//! ```text
//!   page 0      Ends of direction 0 │ Ends of direction 1
//!   then        direction 0: 256 KiB      direction 1: 256 KiB
//!   a record    length 32 │ frame │ padding to 8;   length SKIP: continue at the start
//! ```
//!
//! Positions count bytes and wrap. Each side keeps its own position privately and publishes a copy. The peer's position
//! is checked: an impossible one ends the connection. A frame is copied before it is parsed, because the peer could
//! change it meanwhile.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use vipl_plugin_sdk::shm::Mapping;

/// Bytes of one direction.
const RING: u32 = 256 << 10;
const HEADER: usize = 4096;
/// Size of the segment.
pub(crate) const SEGMENT: usize = HEADER + 2 * RING as usize;
/// Largest frame.
pub(crate) const FRAME_MAX: usize = 16 << 10;
const SKIP: u32 = u32::MAX;

/// Positions of one direction, on separate cache lines. The peer can write to all of it, so the padding is atomic, too.
#[repr(C, align(64))]
struct Ends {
    /// Writer: bytes written so far.
    head: AtomicU32,
    /// Writer: it waits for space.
    starved: AtomicU32,
    pad0: [AtomicU32; 14],
    /// Reader: bytes read so far.
    tail: AtomicU32,
    pad1: [AtomicU32; 15],
}

const _: () = assert!(2 * size_of::<Ends>() <= HEADER);

/// A position or length that the peer has published is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidCursor;

/// One side's view of the segment.
pub(crate) struct Segment {
    mapping: Mapping,
    side: usize,
    /// Bytes written, and bytes that the peer has read as far as known.
    head: u32,
    published: u32,
    freed: u32,
    /// Bytes read.
    tail: u32,
}

impl Segment {
    /// The view of side 0 or 1.
    pub(crate) fn new(mapping: Mapping, side: u32) -> Segment {
        Segment {
            mapping,
            side: (side & 1) as usize,
            head: 0,
            published: 0,
            freed: 0,
            tail: 0,
        }
    }

    fn ends(&self, direction: usize) -> &Ends {
        let at = self.mapping.base().cast::<Ends>().wrapping_add(direction);
        // SAFETY: in the first page of the mapping, all atomic.
        unsafe { &*at }
    }

    fn bytes(&self, direction: usize) -> *mut u8 {
        let at = HEADER + direction * RING as usize;
        self.mapping.base().wrapping_add(at)
    }

    fn record(length: usize) -> u32 {
        (4 + length as u32).next_multiple_of(8)
    }

    /// Whether a frame of this length can be written now. If not, the peer is asked to ring when there is space.
    pub(crate) fn has_room(&mut self, length: usize) -> bool {
        // At the end of the ring the rest of it may have to be skipped.
        let need = 2 * Self::record(length);
        if RING - self.head.wrapping_sub(self.freed) >= need {
            return true;
        }
        self.learn_freed();
        if RING - self.head.wrapping_sub(self.freed) >= need {
            return true;
        }
        self.ends(self.side).starved.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.learn_freed();
        RING - self.head.wrapping_sub(self.freed) >= need
    }

    /// An impossible position is ignored: then there is no space, and the connection times out.
    fn learn_freed(&mut self) {
        let tail = self.ends(self.side).tail.load(Ordering::Acquire);
        let used = self.head.wrapping_sub(tail);
        if used <= self.head.wrapping_sub(self.freed) {
            self.freed = tail;
        }
    }

    /// Writes a frame, after `has_room` has returned true.
    pub(crate) fn put(&mut self, frame: &[u8]) {
        let record = Self::record(frame.len());
        let base = self.bytes(self.side);
        let mut at = self.head & (RING - 1);
        if at + record > RING {
            // SAFETY: positions are multiples of 8 inside the ring; the writer owns what is not published.
            unsafe { base.add(at as usize).cast::<u32>().write_volatile(SKIP) };
            self.head = self.head.wrapping_add(RING - at);
            at = 0;
        }
        // SAFETY: the record fits between `at` and the end of the ring.
        unsafe {
            let to = base.add(at as usize);
            to.cast::<u32>().write_volatile(frame.len() as u32);
            std::ptr::copy_nonoverlapping(frame.as_ptr(), to.add(4), frame.len());
        }
        self.head = self.head.wrapping_add(record);
        // Release pairs with the acquire in `take`.
        self.ends(self.side)
            .head
            .store(self.head, Ordering::Release);
    }

    /// Whether a frame was written since the last call.
    pub(crate) fn has_written(&mut self) -> bool {
        let written = self.head != self.published;
        self.published = self.head;
        written
    }

    /// Copies the next frame into `frame`, if there is one.
    pub(crate) fn take(&mut self, frame: &mut Vec<u8>) -> Result<bool, InvalidCursor> {
        let from = self.side ^ 1;
        let head = self.ends(from).head.load(Ordering::Acquire);
        let ready = head.wrapping_sub(self.tail);
        if ready == 0 {
            return Ok(false);
        }
        if ready > RING || !ready.is_multiple_of(8) {
            return Err(InvalidCursor);
        }
        let base = self.bytes(from);
        let mut at = self.tail & (RING - 1);
        // SAFETY: a multiple of 8 inside the ring; read once.
        let mut length = unsafe { base.add(at as usize).cast::<u32>().read_volatile() };
        let mut used = 0;
        if length == SKIP {
            used = RING - at;
            if used >= ready {
                return Err(InvalidCursor);
            }
            at = 0;
            // SAFETY: as above.
            length = unsafe { base.cast::<u32>().read_volatile() };
        }
        if length as usize > FRAME_MAX {
            return Err(InvalidCursor);
        }
        let record = Self::record(length as usize);
        if used + record > ready || at + record > RING {
            return Err(InvalidCursor);
        }
        frame.clear();
        frame.reserve(length as usize);
        // SAFETY: the record lies inside the ring; there is room for it.
        unsafe {
            let start = base.add(at as usize + 4);
            std::ptr::copy_nonoverlapping(start, frame.as_mut_ptr(), length as usize);
            frame.set_len(length as usize);
        }
        self.tail = self.tail.wrapping_add(used + record);
        // Release: the writer may use the place again.
        self.ends(from).tail.store(self.tail, Ordering::Release);
        Ok(true)
    }

    /// Whether the peer waits for the space that `take` has made; true once.
    pub(crate) fn peer_starves(&self) -> bool {
        fence(Ordering::SeqCst);
        let starved = &self.ends(self.side ^ 1).starved;
        starved.load(Ordering::Relaxed) != 0 && starved.swap(0, Ordering::SeqCst) != 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::AsRawFd;

    use super::*;
    use vipl_plugin_sdk::shm;

    fn pair() -> (Segment, Segment) {
        let fd = shm::create(c"vipl-test", SEGMENT).unwrap();
        let map = || Mapping::open(fd.as_raw_fd(), SEGMENT, true).unwrap();
        (Segment::new(map(), 0), Segment::new(map(), 1))
    }

    /// Random writes and reads against a queue; fixed seed.
    #[test]
    fn frames_come_out_as_they_went_in() {
        let seed = 0x5eed_u64;
        let mut random = vipl_sys::random::Random::new(seed);
        let (mut left, mut right) = pair();
        let mut model = VecDeque::new();
        let mut frame = Vec::new();
        let mut sent = 0u32;
        for _ in 0..200_000 {
            if random.below(2) == 0 {
                let length = match random.below(4) {
                    0 => random.below(FRAME_MAX as u64 + 1) as usize,
                    _ => random.below(100) as usize,
                };
                if left.has_room(length) {
                    let bytes: Vec<u8> = (0..length).map(|i| (i as u32 ^ sent) as u8).collect();
                    left.put(&bytes);
                    model.push_back(bytes);
                    sent += 1;
                }
            } else {
                let found = right.take(&mut frame).unwrap();
                assert_eq!(found, !model.is_empty(), "seed {seed}");
                if found {
                    assert_eq!(Some(frame.clone()), model.pop_front(), "seed {seed}");
                }
            }
        }
        assert!(sent > 10_000);
    }

    #[test]
    fn a_writer_without_room_is_informed_of_new_room() {
        let (mut left, mut right) = pair();
        while left.has_room(1000) {
            left.put(&[7; 1000]);
        }
        let mut frame = Vec::new();
        assert!(right.take(&mut frame).unwrap());
        assert!(right.peer_starves());
        assert!(!right.peer_starves());
        while right.take(&mut frame).unwrap() {}
        assert!(left.has_room(1000));
    }

    #[test]
    fn impossible_positions_and_lengths_are_refused() {
        let mut frame = Vec::new();
        for head in [RING + 8, u32::MAX, 4, 8] {
            let (left, mut right) = pair();
            let length = if head == 8 { 5 } else { 0 };
            // SAFETY: the test's own memory.
            unsafe { left.bytes(0).cast::<u32>().write(length) };
            left.ends(0).head.store(head, Ordering::SeqCst);
            assert_eq!(right.take(&mut frame), Err(InvalidCursor), "head {head}");
        }
        let (left, mut right) = pair();
        // SAFETY: the test's own memory.
        unsafe { left.bytes(0).cast::<u32>().write(FRAME_MAX as u32 + 1) };
        left.ends(0).head.store(RING, Ordering::SeqCst);
        assert_eq!(right.take(&mut frame), Err(InvalidCursor));
        // A reader that claims to have read more than was written makes no space.
        let (mut left, right) = pair();
        while left.has_room(1000) {
            left.put(&[7; 1000]);
        }
        right.ends(0).tail.store(left.head + 8, Ordering::SeqCst);
        assert!(!left.has_room(1000));
    }
}
