//! A heap for a library that must not abort its process when memory is exhausted.
//!
//! Rust aborts the process when an allocation fails. Therefore allocations that the system refuses are served
//! from a reserve, which is part of the library and untouched until then. A call that begins while memory is
//! exhausted is refused ([`Heap::is_short`]); the reserve is for calls in progress, for the library's threads
//! and for messages in transit, which free what they allocate. See decision 78.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of the reserve, whose pages are untouched while there is memory.
const BYTES: usize = 512 << 10;
/// Granularity of the reserve in bytes.
const PIECE: usize = 64;
const PIECES: usize = BYTES / PIECE;
const WORDS: usize = PIECES / 64;
/// Bytes of a call's trial allocation, so that it does not begin with the last bytes.
const TRIAL: usize = 32 << 10;
/// Checks of the lock before an allocation fails. Its holder needs at most a few thousand instructions,
/// except in a child that was forked meanwhile.
const LOOKS: u32 = 1 << 22;

#[repr(C, align(4096))]
struct Room([u8; BYTES]);

/// The system's heap with a reserve.
pub struct Heap {
    room: UnsafeCell<Room>,
    /// A bit for each allocated piece.
    taken: UnsafeCell<[u64; WORDS]>,
    locked: AtomicBool,
    short: AtomicBool,
}

// SAFETY: `taken` is only used under the lock, and the pieces of `room` only by their owners.
unsafe impl Sync for Heap {}

impl Heap {
    /// With its whole reserve.
    pub const fn new() -> Heap {
        Heap {
            room: UnsafeCell::new(Room([0; BYTES])),
            taken: UnsafeCell::new([0; WORDS]),
            locked: AtomicBool::new(false),
            short: AtomicBool::new(false),
        }
    }

    /// Whether memory is exhausted for a new call. Costs one load unless it has been before.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) && self.is_still_short()
    }

    #[cold]
    fn is_still_short(&self) -> bool {
        let found = has_memory();
        self.short.store(!found, Ordering::Relaxed);
        !found
    }

    fn holds(&self, memory: *mut u8) -> bool {
        memory.addr().wrapping_sub(self.room.get().addr()) < BYTES
    }

    /// Runs a function under the lock; `None` if the lock cannot be acquired.
    fn locked<R>(&self, body: impl FnOnce(&mut [u64; WORDS]) -> R) -> Option<R> {
        let mut looks = 0;
        while self.locked.swap(true, Ordering::Acquire) {
            looks += 1;
            if looks == LOOKS {
                return None;
            }
            std::hint::spin_loop();
        }
        // SAFETY: under the lock.
        let result = body(unsafe { &mut *self.taken.get() });
        self.locked.store(false, Ordering::Release);
        Some(result)
    }

    /// Allocates from the reserve.
    #[cold]
    fn take(&self, layout: Layout) -> *mut u8 {
        self.short.store(true, Ordering::Relaxed);
        if layout.align() > PIECE {
            return null_mut();
        }
        let wanted = pieces(layout);
        let first = self.locked(|taken| {
            let first = find(taken, wanted)?;
            mark(taken, first, wanted, true);
            Some(first)
        });
        match first.flatten() {
            Some(first) => self.room.get().cast::<u8>().wrapping_add(first * PIECE),
            None => null_mut(),
        }
    }

    #[cold]
    fn free(&self, memory: *mut u8, layout: Layout) {
        let first = (memory.addr() - self.room.get().addr()) / PIECE;
        // Without the lock the pieces are leaked, in a child that was forked while it was held.
        let _ = self.locked(|taken| mark(taken, first, pieces(layout), false));
    }
}

impl Default for Heap {
    fn default() -> Heap {
        Heap::new()
    }
}

/// Whether the system has memory. Checked before an operation in which the C library would abort without it:
/// a thread's first access to the thread-local data of a library that was loaded later.
pub fn has_memory() -> bool {
    // SAFETY: freed as it was made.
    unsafe {
        // Hidden from the compiler, which would remove both calls.
        let memory = std::hint::black_box(libc::malloc(TRIAL));
        libc::free(memory);
        !memory.is_null()
    }
}

fn pieces(layout: Layout) -> usize {
    layout.size().div_ceil(PIECE).max(1)
}

/// The first of `wanted` consecutive free pieces.
fn find(taken: &[u64; WORDS], wanted: usize) -> Option<usize> {
    let (mut first, mut at) = (0, 0);
    while at < PIECES {
        let word = taken[at / 64];
        if at % 64 == 0 && word == u64::MAX {
            at += 64;
            first = at;
            continue;
        }
        if word >> (at % 64) & 1 != 0 {
            first = at + 1;
        } else if at + 1 - first >= wanted {
            return Some(first);
        }
        at += 1;
    }
    None
}

fn mark(taken: &mut [u64; WORDS], first: usize, count: usize, on: bool) {
    for at in first..first + count {
        let bit = 1 << (at % 64);
        if on {
            taken[at / 64] |= bit;
        } else {
            taken[at / 64] &= !bit;
        }
    }
}

// SAFETY: memory comes from the system, or is an exclusive range of the reserve until it is freed; both have
// the requested size and alignment.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { System.alloc(layout) };
        if memory.is_null() {
            return self.take(layout);
        }
        memory
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            return memory;
        }
        let memory = self.take(layout);
        if !memory.is_null() {
            // SAFETY: this range has just been allocated.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        memory
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if self.holds(memory) {
            self.free(memory, layout);
        } else {
            // SAFETY: guaranteed by the caller; it is not part of the reserve.
            unsafe { System.dealloc(memory, layout) };
        }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if !self.holds(memory) {
            // SAFETY: guaranteed by the caller; it is not part of the reserve.
            let moved = unsafe { System.realloc(memory, layout, bytes) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: by contract `bytes` fits the alignment; both ranges have the stated sizes.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(memory, bytes.min(layout.size()));
                self.dealloc(memory, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_handed_out_and_comes_back() {
        static HEAP: Heap = Heap::new();
        let layout = |bytes, align| Layout::from_size_align(bytes, align).unwrap();
        let mut held: Vec<(*mut u8, Layout)> = Vec::new();
        let mut random = 1u64;
        let mut refused = 0;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
            let (what, bytes) = (random >> 33, 1 + (random >> 40) as usize % 9000);
            if what % 2 == 0 || held.is_empty() {
                let wanted = layout(bytes, 1 << (what % 7));
                let memory = HEAP.take(wanted);
                if memory.is_null() {
                    refused += 1;
                    continue;
                }
                assert!(HEAP.holds(memory) && memory.addr().is_multiple_of(wanted.align()));
                // SAFETY: allocated.
                unsafe { memory.write_bytes(what as u8, bytes) };
                held.push((memory, wanted));
            } else {
                let (memory, layout) = held.swap_remove(what as usize % held.len());
                // SAFETY: allocated, and written above.
                unsafe {
                    let end = memory.add(layout.size() - 1);
                    assert_eq!(memory.read(), end.read(), "nobody else has it");
                    HEAP.dealloc(memory, layout);
                }
            }
        }
        for (memory, layout) in held.drain(..) {
            // SAFETY: allocated.
            unsafe { HEAP.dealloc(memory, layout) };
        }
        let whole = layout(BYTES, 64);
        let memory = HEAP.take(whole);
        assert!(
            !memory.is_null(),
            "all of it is there again; {refused} refused"
        );
        assert!(HEAP.take(layout(1, 1)).is_null());
        assert!(HEAP.short.load(Ordering::Relaxed));
        assert!(!HEAP.is_short(), "the system has memory");
        // SAFETY: allocated.
        unsafe { HEAP.dealloc(memory, whole) };
    }

    #[test]
    fn what_grows_leaves_the_reserve() {
        static HEAP: Heap = Heap::new();
        let small = Layout::from_size_align(100, 8).unwrap();
        let memory = HEAP.take(small);
        // SAFETY: allocated; grown with the layout that it has.
        unsafe {
            memory.write_bytes(7, 100);
            let moved = HEAP.realloc(memory, small, 5000);
            assert!(!HEAP.holds(moved));
            assert_eq!((moved.read(), moved.add(99).read()), (7, 7));
            HEAP.dealloc(moved, Layout::from_size_align(5000, 8).unwrap());
        }
        assert_eq!(HEAP.take(small), memory, "it was handed back");
    }
}
