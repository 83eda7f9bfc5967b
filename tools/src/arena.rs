//! Memory that two processes share, and what the machine lets them do with it: pass a cache line to and
//! fro, and pass a stream of cache lines. No library is faster between the same two processors.
//!
//! ```text
//!   words | lines A -> B | lines B -> A | ring | bytes A -> B (1 MiB) | bytes B -> A (1 MiB)
//! ```
//!
//! The latency of one cache line depends on its address, by a factor of two on machines whose last-level
//! cache is distributed. Every turn therefore uses the next of `LINES` pairs of lines, and the figure is
//! the mean over all of them.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use vipl_sys::futex;

use crate::blocks::median_turn;
use crate::patience::Patience;
use crate::rendezvous::Side;
use crate::stats::median;
use crate::{Result, sys};

/// Largest message of the raw ping-pong.
pub const RAW_MAX: usize = 1 << 20;
/// Bytes of the arena's file.
pub const ARENA_BYTES: usize = BUFFERS + 2 * RAW_MAX;

/// Pairs of lines that the turns go through.
const LINES: usize = 128;
/// Distance of two lines: no prefetcher that fetches pairs of lines joins them.
const LINE_STRIDE: usize = 128;
const WORDS: usize = 4096;
const RING: usize = WORDS + 2 * LINES * LINE_STRIDE;
const BUFFERS: usize = RING + SLOTS * SLOT;

/// Slots of the raw ring, each a cache line with a flag and a payload.
const SLOTS: usize = 256;
const SLOT: usize = 64;
/// Messages that the consumer takes before it publishes how many it has taken.
const ACKNOWLEDGE: u64 = 32;
/// Word in which it does.
const TAKEN: usize = 0;
/// How long a side sleeps before it looks whether it waits for too long.
const FUTEX_NS: u64 = 1_000_000_000;

/// Memory of two processes: words, lines and buffers.
pub struct Arena {
    base: NonNull<u8>,
    own: [NonNull<u8>; 2],
}

impl Arena {
    /// Maps the arena's file.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(file: &File) -> Result<Self> {
        let base = sys::map(ARENA_BYTES, Some(file))?;
        Ok(Self {
            base,
            own: [sys::map(RAW_MAX, None)?, sys::map(RAW_MAX, None)?],
        })
    }

    #[inline(always)]
    fn atomic(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= ARENA_BYTES && offset.is_multiple_of(8));
        // SAFETY: inside the mapping, which is never unmapped; aligned; only used as an atomic.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().wrapping_add(offset).cast()) }
    }

    /// A shared word on a cache line of its own; there are 32.
    #[inline(always)]
    #[must_use]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        self.atomic(index % (WORDS / LINE_STRIDE) * LINE_STRIDE)
    }

    #[inline(always)]
    fn line(&self, direction: usize, turn: u64) -> &AtomicU64 {
        let index = direction * LINES + turn as usize % LINES;
        self.atomic(WORDS + index * LINE_STRIDE)
    }

    #[inline(always)]
    fn slot(&self, message: u64) -> [&AtomicU64; 2] {
        let offset = RING + message as usize % SLOTS * SLOT;
        [self.atomic(offset), self.atomic(offset + 8)]
    }

    /// Sets all words, lines and slots to zero: before the peer begins to serve.
    pub fn reset(&self) {
        for offset in (0..BUFFERS).step_by(SLOT) {
            self.atomic(offset).store(0, Ordering::SeqCst);
        }
    }

    /// Takes this many turns with messages of `size` bytes, copied in and copied out (0: the lines alone).
    /// The driver gets the median one-way time in ns.
    ///
    /// # Errors
    /// The other side does not answer.
    pub fn ping_pong(&self, side: Side, size: usize, turns: u64) -> Result<f64> {
        assert!(size <= RAW_MAX);
        median_turn(turns, |turn| match side {
            Side::Driver => {
                self.give(0, turn, size);
                self.take(1, turn, size)
            }
            Side::Server => {
                self.take(0, turn, size)?;
                self.give(1, turn, size);
                Ok(())
            }
        })
    }

    #[inline(always)]
    fn give(&self, direction: usize, turn: u64, size: usize) {
        if size > 0 {
            let target = self.buffer(direction, turn, size);
            // SAFETY: both are mapped for RAW_MAX bytes; the peer reads only after the store below.
            unsafe { self.own[0].as_ptr().copy_to_nonoverlapping(target, size) };
        }
        // Pairs with the load in `take`.
        self.line(direction, turn).store(turn, Ordering::Release);
    }

    #[inline(always)]
    fn take(&self, direction: usize, turn: u64, size: usize) -> Result<()> {
        // Pairs with the store in `give`.
        until(self.line(direction, turn), turn, "waiting for the peer")?;
        if size > 0 {
            let source = self.buffer(direction, turn, size);
            // SAFETY: both are mapped for RAW_MAX bytes; the peer writes again only after our turn.
            unsafe { source.copy_to_nonoverlapping(self.own[1].as_ptr(), size) };
        }
        Ok(())
    }

    /// The buffer of a turn. Small messages go through as many lines as the turns themselves.
    #[inline(always)]
    fn buffer(&self, direction: usize, turn: u64, size: usize) -> *mut u8 {
        let stride = size.next_multiple_of(SLOT).next_power_of_two();
        let places = (LINES * SLOT / stride).max(1);
        let offset = BUFFERS + direction * RAW_MAX + turn as usize % places * stride;
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Takes this many turns in which a side sleeps until the peer wakes it. The driver gets the median one-way
    /// time in ns.
    ///
    /// # Errors
    /// The other side does not answer.
    pub fn futex_turns(&self, side: Side, turns: u64) -> Result<f64> {
        let give = |word: usize, turn: u32| {
            self.futex(word).store(turn, Ordering::Release); // Pairs with the load in `take`.
            futex::wake(self.futex(word));
        };
        let take = |word: usize, turn: u32| {
            let mut patience = Patience::new("waiting to be woken");
            while self.futex(word).load(Ordering::Acquire) != turn {
                futex::wait(self.futex(word), turn - 1, FUTEX_NS);
                patience.look()?;
            }
            Ok(())
        };
        median_turn(turns, |turn| match side {
            Side::Driver => {
                give(2, turn as u32);
                take(3, turn as u32)
            }
            Side::Server => {
                take(2, turn as u32)?;
                give(3, turn as u32);
                Ok(())
            }
        })
    }

    /// The low half of a shared word.
    fn futex(&self, index: usize) -> &AtomicU32 {
        // SAFETY: a mapped word, which only this uses, and only as an atomic.
        unsafe { AtomicU32::from_ptr(self.word(index).as_ptr().cast()) }
    }

    /// Streams messages of 8 bytes through a ring of cache lines, flag and payload in one line: the driver
    /// produces, the server consumes. The driver gets the median rate in messages per second.
    ///
    /// # Errors
    /// The other side does not go on.
    pub fn stream(&self, side: Side, messages: u64) -> Result<f64> {
        match side {
            Side::Driver => self.produce(messages),
            Side::Server => self.consume(messages).map(|()| 0.0),
        }
    }

    fn produce(&self, messages: u64) -> Result<f64> {
        let block = (messages / 40).max(1);
        let (mut taken, mut rates) = (0, Vec::new());
        let mut start = Instant::now();
        for message in 1..=messages {
            let mut patience = Patience::new("waiting for room in a ring");
            while message - taken > SLOTS as u64 {
                // Pairs with the store in `consume`: the slot's message has been read.
                taken = self.word(TAKEN).load(Ordering::Acquire);
                patience.spend()?;
            }
            let [flag, payload] = self.slot(message);
            payload.store(message, Ordering::Relaxed);
            flag.store(message, Ordering::Release); // Pairs with the load in `consume`.
            if message.is_multiple_of(block) {
                let now = Instant::now();
                rates.push(block as f64 / (now - start).as_secs_f64().max(1e-9));
                start = now;
            }
        }
        until(self.word(TAKEN), messages, "waiting for the consumer")?;
        Ok(median(&rates[rates.len() / 5..]))
    }

    fn consume(&self, messages: u64) -> Result<()> {
        let mut sum = 0u64;
        for message in 1..=messages {
            let [flag, payload] = self.slot(message);
            until(flag, message, "waiting for a message in a ring")?;
            sum = sum.wrapping_add(payload.load(Ordering::Relaxed));
            if message.is_multiple_of(ACKNOWLEDGE) || message == messages {
                self.word(TAKEN).store(message, Ordering::Release);
            }
        }
        std::hint::black_box(sum);
        Ok(())
    }
}

/// Polls a word until it has a value. The loop is as tight as it can be: a load and a branch.
///
/// # Errors
/// It takes too long.
#[inline(always)]
pub fn until(word: &AtomicU64, value: u64, what: &'static str) -> Result<()> {
    let mut patience = Patience::new(what);
    loop {
        for _ in 0..1 << 16 {
            if word.load(Ordering::Acquire) == value {
                return Ok(());
            }
        }
        patience.look()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs both sides of a measurement in two threads; returns the driver's figure.
    fn both(measure: impl Fn(&Arena, Side) -> Result<f64> + Send + Copy + 'static) -> f64 {
        let file = sys::anonymous_file(ARENA_BYTES).unwrap();
        let other = file.try_clone().unwrap();
        let arena = Arena::new(&file).unwrap();
        arena.reset();
        let server = std::thread::spawn(move || {
            measure(&Arena::new(&other).unwrap(), Side::Server).map(|_| ())
        });
        let figure = measure(&arena, Side::Driver).unwrap();
        server.join().unwrap().unwrap();
        figure
    }

    #[test]
    fn two_sides_take_turns() {
        for size in [0, 8, 64, 5000] {
            let turns = 3 * LINES as u64;
            assert!(both(move |arena, side| arena.ping_pong(side, size, turns)) > 0.0);
        }
    }

    #[test]
    fn a_stream_goes_round_the_ring() {
        let messages = 10 * SLOTS as u64 + 7;
        assert!(both(move |arena, side| arena.stream(side, messages)) > 0.0);
        assert!(both(move |arena, side| arena.futex_turns(side, 100)) > 0.0);
    }

    #[test]
    fn lines_slots_and_buffers_do_not_overlap() {
        let arena = Arena::new(&sys::anonymous_file(ARENA_BYTES).unwrap()).unwrap();
        let at = |word: &AtomicU64| word.as_ptr().addr() - arena.base.as_ptr().addr();
        let lines = (0..2).flat_map(|way| (0..LINES as u64).map(move |turn| (way, turn)));
        let mut lines: Vec<usize> = lines.map(|(way, turn)| at(arena.line(way, turn))).collect();
        lines.dedup();
        assert_eq!(lines.len(), 2 * LINES);
        assert_eq!(lines.first(), Some(&WORDS));
        assert!(lines.last() < Some(&RING));
        assert_eq!(at(arena.slot(0)[0]), RING);
        assert!(at(arena.slot(SLOTS as u64 - 1)[1]) < BUFFERS);
        let end = |size: usize, turn| arena.buffer(1, turn, size).addr() + size;
        let limit = arena.base.as_ptr().addr() + ARENA_BYTES;
        for size in [1, 64, 100, 4096, RAW_MAX] {
            assert!((0..200).all(|turn| end(size, turn) <= limit), "{size}");
        }
    }
}
