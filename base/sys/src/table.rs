//! Tables for as many objects as a device may have, which take memory for those that are used only.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Objects of one chunk.
const CHUNK: usize = 64;

/// Objects that are made in chunks of 64 when the first of a chunk is needed, and stay.
pub struct Chunks<T>(Box<[OnceLock<Box<[T]>>]>);

impl<T: Default> Chunks<T> {
    /// Room for so many.
    pub fn new(most: usize) -> Chunks<T> {
        let chunks = most.div_ceil(CHUNK);
        Chunks((0..chunks).map(|_| OnceLock::new()).collect())
    }

    /// The object with this number, which is below `most`.
    #[inline(always)]
    pub fn make(&self, number: usize) -> &T {
        let fresh = || (0..CHUNK).map(|_| T::default()).collect();
        &self.0[number / CHUNK].get_or_init(fresh)[number % CHUNK]
    }

    /// The object with this number, if its chunk is there. Makes nothing: the number may be from a hostile peer.
    #[inline(always)]
    pub fn get(&self, number: usize) -> Option<&T> {
        self.0.get(number / CHUNK)?.get()?.get(number % CHUNK)
    }
}

/// So many objects of zeroes. If they are many, the kernel provides each page when it is written to.
///
/// # Safety
/// Zeroes are a valid `T`.
pub unsafe fn zeroed<T>(count: usize) -> Box<[T]> {
    let Ok(layout) = Layout::array::<T>(count) else {
        return Box::default();
    };
    if layout.size() == 0 {
        return Box::default();
    }
    // SAFETY: the layout is that of the slice and not empty; zeroes are valid, as asked of the caller.
    unsafe {
        let first = alloc_zeroed(layout).cast::<T>();
        if first.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(std::ptr::slice_from_raw_parts_mut(first, count))
    }
}

/// How many words are in use of bits for objects, 64 in a word. Objects have the lowest numbers that are free, so the bits of all
/// are in the first words.
#[derive(Debug, Default)]
pub struct WordsInUse(AtomicUsize);

impl WordsInUse {
    /// The object with this number is in use, now or later.
    pub fn include(&self, index: u32) {
        self.0.fetch_max(index as usize / 64 + 1, Ordering::SeqCst);
    }

    /// How many words.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64};

    use super::*;

    #[test]
    fn chunks_are_made_when_they_are_needed() {
        let chunks = Chunks::<AtomicU32>::new(130);
        assert!(chunks.get(0).is_none() && chunks.get(usize::MAX).is_none());
        chunks.make(65).store(7, Ordering::Relaxed);
        assert_eq!(chunks.get(65).unwrap().load(Ordering::Relaxed), 7);
        assert_eq!(chunks.get(64).unwrap().load(Ordering::Relaxed), 0);
        assert!(chunks.get(63).is_none() && chunks.get(128).is_none());
        chunks.make(129).store(8, Ordering::Relaxed);
        assert_eq!(chunks.make(129).load(Ordering::Relaxed), 8);
    }

    #[test]
    fn a_large_table_of_zeroes_is_freed_as_it_was_made() {
        for count in [0, 1, 100_000] {
            // SAFETY: zeroes are valid.
            let table = unsafe { zeroed::<AtomicU64>(count) };
            assert_eq!(table.len(), count);
            assert!(table.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        }
    }

    #[test]
    fn words_count_to_the_highest_number() {
        let words = WordsInUse::default();
        assert_eq!(words.count(), 0);
        for (index, count) in [(63, 1), (200, 4), (64, 4)] {
            words.include(index);
            assert_eq!(words.count(), count);
        }
    }
}
