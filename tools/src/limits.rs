//! The machine's own limits, which every figure is divided by: what two processes on these two CPUs
//! can do at all, without any library between them.
//!
//! ```text
//!   arena   | turn A | turn B |  bytes A -> B (1 MiB) |  bytes B -> A (1 MiB) |
//! ```
//!
//! A side waits for the other's turn counter and then advances its own. Both processes map the arena;
//! one drives, the other serves the same number of turns.

use std::fs::File;
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::PATIENCE_S;
use crate::stats::median;
use crate::{Error, Result, sys};

/// Largest message of the raw ping-pong.
pub const RAW_MAX: usize = 1 << 20;
/// Bytes of the arena's file.
pub const ARENA_BYTES: usize = HEADER + 2 * RAW_MAX;

const HEADER: usize = 4096;
/// The two counters are on lines that no prefetcher fetches together.
const COUNTERS: [usize; 2] = [0, 128];

/// Shared memory of two processes, with nothing in it but two counters and two buffers.
pub struct Arena {
    base: NonNull<u8>,
    own: [NonNull<u8>; 2],
}

/// Which side of the ping-pong this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Moves first and measures.
    Driver,
    /// Answers.
    Server,
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

    fn counter(&self, index: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping, which is never unmapped; aligned; only used as an atomic.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().wrapping_add(COUNTERS[index]).cast()) }
    }

    /// Sets both counters to zero: before the partner is told to serve.
    pub fn reset(&self) {
        self.counter(0).store(0, Ordering::SeqCst);
        self.counter(1).store(0, Ordering::SeqCst);
    }

    /// Takes this many turns with messages of `size` bytes, copied in and copied out (0: the counters
    /// alone). The driver gets the median one-way time in ns.
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
            let target = self.buffer(direction);
            // SAFETY: both are mapped for RAW_MAX bytes; the partner reads only after the store below.
            unsafe { self.own[0].as_ptr().copy_to_nonoverlapping(target, size) };
        }
        self.counter(direction).store(turn, Ordering::Release); // Pairs with the load in `take`.
    }

    #[inline(always)]
    fn take(&self, direction: usize, turn: u64, size: usize) -> Result<()> {
        let counter = self.counter(direction);
        let mut patience = Patience::new("waiting for the peer");
        // The loop is as tight as it can be: a load and a branch. Pairs with the store in `give`.
        'turn: loop {
            for _ in 0..1 << 16 {
                if counter.load(Ordering::Acquire) == turn {
                    break 'turn;
                }
            }
            patience.look()?;
        }
        if size > 0 {
            let source = self.buffer(direction);
            // SAFETY: both are mapped for RAW_MAX bytes; the partner writes again only after our turn.
            unsafe { source.copy_to_nonoverlapping(self.own[1].as_ptr(), size) };
        }
        Ok(())
    }

    #[inline(always)]
    fn buffer(&self, direction: usize) -> *mut u8 {
        self.base
            .as_ptr()
            .wrapping_add(HEADER + direction * RAW_MAX)
    }
}

const BLOCKS: u64 = 40;

/// Takes so many turns, numbered from 1, and gives half the median time of one in ns: the way there, or
/// back. Both sides take equally many when they are given the same number.
#[inline(always)]
pub(crate) fn median_turn(turns: u64, mut take: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let blocks = BLOCKS.min(turns.max(1));
    let per_block = (turns / blocks).max(1);
    let mut times = Vec::with_capacity(blocks as usize);
    let mut turn = 0;
    for _ in 0..blocks {
        let start = Instant::now();
        for _ in 0..per_block {
            turn += 1;
            take(turn)?;
        }
        times.push(start.elapsed().as_nanos() as f64 / (2 * per_block) as f64);
    }
    let settled = times.len() / 5; // The first blocks warm up.
    Ok(median(&times[settled..]))
}

/// Turns that take some ten milliseconds.
#[must_use]
pub fn turns_for(size: usize) -> u64 {
    match size {
        0..=64 => 20_000,
        65..=4096 => 8_000,
        4097..=65536 => 1_600,
        _ => 160,
    }
}

/// Hot copies between two buffers of this process, in GB/s.
///
/// # Errors
/// There is no memory.
pub fn memcpy_rate(buffers: &mut Buffers, size: usize) -> Result<f64> {
    let [source, target] = buffers.pair(size)?;
    let copies = ((2 << 20) / size.max(1)).clamp(1, 20_000);
    let rates = (0..24).map(|_| {
        let start = Instant::now();
        for _ in 0..copies {
            // SAFETY: two different mappings of at least `size` bytes.
            unsafe {
                black_box(source.as_ptr())
                    .copy_to_nonoverlapping(black_box(target.as_ptr()), black_box(size));
            }
        }
        (size * copies) as f64 / start.elapsed().as_nanos() as f64
    });
    let rates: Vec<f64> = rates.collect();
    Ok(median(&rates[4..]))
}

/// Copies into another process by the kernel, in GB/s; None where the kernel forbids it.
///
/// # Errors
/// There is no memory.
pub fn write_rate(
    buffers: &mut Buffers,
    pid: u32,
    address: u64,
    size: usize,
) -> Result<Option<f64>> {
    let [source, _] = buffers.pair(size)?;
    let local = libc::iovec {
        iov_base: source.as_ptr().cast(),
        iov_len: size,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: size,
    };
    let calls = ((2 << 20) / size.max(1)).clamp(4, 400);
    let mut rates = Vec::with_capacity(calls);
    for _ in 0..calls {
        let start = Instant::now();
        // SAFETY: the local side is mapped; the remote side is checked by the kernel and belongs to a
        // buffer that the partner made for this.
        let moved = unsafe {
            libc::process_vm_writev(pid as i32, &raw const local, 1, &raw const remote, 1, 0)
        };
        if moved != size as isize {
            return Ok(None);
        }
        rates.push(size as f64 / start.elapsed().as_nanos() as f64);
    }
    Ok(Some(median(&rates[calls / 4..])))
}

/// Buffers of this process that grow as needed and are touched.
#[derive(Default)]
pub struct Buffers {
    pair: Option<([NonNull<u8>; 2], usize)>,
}

impl Buffers {
    fn pair(&mut self, size: usize) -> Result<[NonNull<u8>; 2]> {
        let size = size.max(1);
        if let Some((pair, have)) = self.pair
            && have >= size
        {
            return Ok(pair);
        }
        let length = size.next_multiple_of(4096);
        let pair = [sys::map(length, None)?, sys::map(length, None)?];
        for (buffer, value) in pair.iter().zip([1, 2]) {
            // SAFETY: just mapped, this long.
            unsafe { buffer.as_ptr().write_bytes(value, length) };
        }
        self.pair = Some((pair, length));
        Ok(pair)
    }

    /// Address of a touched buffer of at least `size` bytes, for `write_rate` of the partner.
    ///
    /// # Errors
    /// There is no memory.
    pub fn target(&mut self, size: usize) -> Result<u64> {
        Ok(self.pair(size)?[1].as_ptr().addr() as u64)
    }
}

/// Ends a spin that lasts too long. Costs an increment.
pub struct Patience {
    spins: u32,
    start: Option<Instant>,
    what: &'static str,
}

impl Patience {
    /// Patience for one spin.
    #[inline(always)]
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self {
            spins: 0,
            start: None,
            what,
        }
    }

    /// Once around.
    ///
    /// # Errors
    /// It has lasted too long.
    #[inline(always)]
    pub fn spend(&mut self) -> Result<()> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(1 << 20) {
            self.look()
        } else {
            Ok(())
        }
    }

    #[cold]
    fn look(&mut self) -> Result<()> {
        let start = *self.start.get_or_insert_with(Instant::now);
        if start.elapsed() > Duration::from_secs(PATIENCE_S) {
            return Err(Error::Silence(self.what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_take_turns() {
        let file = sys::anonymous_file(ARENA_BYTES).unwrap();
        let other = file.try_clone().unwrap();
        Arena::new(&file).unwrap().reset();
        let server = std::thread::spawn(move || {
            Arena::new(&other)
                .unwrap()
                .ping_pong(Side::Server, 64, 40)
                .map(|_| ())
        });
        let one_way = Arena::new(&file)
            .unwrap()
            .ping_pong(Side::Driver, 64, 40)
            .unwrap();
        server.join().unwrap().unwrap();
        assert!(one_way > 0.0);
    }

    #[test]
    fn copying_has_a_rate() {
        let mut buffers = Buffers::default();
        assert!(memcpy_rate(&mut buffers, 4096).unwrap() > 0.0);
        let address = buffers.target(8192).unwrap();
        assert_eq!(address % 4096, 0);
        // Into this very process: allowed everywhere that has the call.
        let rate = write_rate(&mut buffers, std::process::id(), address, 4096).unwrap();
        assert!(rate.is_none_or(|rate| rate > 0.0));
        // Nobody can write to address 0.
        assert_eq!(
            write_rate(&mut buffers, std::process::id(), 0, 4096).unwrap(),
            None
        );
    }
}
