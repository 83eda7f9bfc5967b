//! Memory that a plug-in may write only where it was told to.

use std::ops::Range;
use std::sync::OnceLock;

/// A block of memory with a copy of what it should hold.
pub struct Watched {
    bytes: Box<[u64]>,
    expected: Vec<u8>,
}

impl Watched {
    /// A block filled with a pattern; `bytes` is a multiple of 64.
    pub fn new(bytes: usize) -> Self {
        /// Made once: byte by byte it would be most of a run.
        static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
        let pattern =
            PATTERN.get_or_init(|| (0..1 << 20).map(|at| (at * 7 + at / 251) as u8).collect());
        // A block of whole cache lines, aligned to one, is cut out of a larger one.
        let mut watched = Watched {
            bytes: vec![0u64; bytes / 8 + 8].into_boxed_slice(),
            expected: pattern[..bytes].to_vec(),
        };
        watched.raw().copy_from_slice(&pattern[..bytes]);
        watched
    }

    /// First byte; aligned to 64.
    pub fn base(&self) -> *mut u8 {
        let at = self.bytes.as_ptr().cast_mut().cast::<u8>();
        at.wrapping_add(at.align_offset(64))
    }

    /// Its address in a number, for descriptors.
    pub fn address(&self, at: usize) -> u64 {
        self.base().wrapping_add(at).expose_provenance() as u64
    }

    fn raw(&mut self) -> &mut [u8] {
        // SAFETY: inside `bytes`, which has room for the alignment.
        unsafe { std::slice::from_raw_parts_mut(self.base(), self.expected.len()) }
    }

    /// What is there.
    pub fn get(&self, range: Range<usize>) -> &[u8] {
        assert!(range.end <= self.expected.len());
        // SAFETY: inside the block; no thread writes while the caller reads.
        unsafe { std::slice::from_raw_parts(self.base().wrapping_add(range.start), range.len()) }
    }

    /// The program writes.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.raw()[at..at + bytes.len()].copy_from_slice(bytes);
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Nothing outside these ranges has changed since the last look; what changed inside is taken over.
    pub fn check(&mut self, allowed: &mut [Range<usize>]) {
        allowed.sort_by_key(|range| range.start);
        let mut at = 0;
        for range in allowed.iter() {
            if range.start > at {
                self.compare(at..range.start);
            }
            let inside = at.max(range.start)..range.end.max(at);
            // SAFETY: inside the block, which no other thread writes now; `expected` is another one.
            let now = unsafe {
                std::slice::from_raw_parts(self.base().wrapping_add(inside.start), inside.len())
            };
            at = inside.end;
            self.expected[inside].copy_from_slice(now);
        }
        self.compare(at..self.expected.len());
    }

    fn compare(&self, range: Range<usize>) {
        if self.get(range.clone()) != &self.expected[range.clone()] {
            let first = range
                .clone()
                .find(|&at| self.get(at..at + 1)[0] != self.expected[at]);
            panic!("a byte that nobody may write has changed, at {first:?} of {range:?}");
        }
    }
}
