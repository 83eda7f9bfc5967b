//! Copies between two processes by the kernel, with nothing around them: what an RDMA operation into
//! memory that is not shared costs at least.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::Instant;

use vipl_sys::process_vm::{self, Way, piece};
use vipl_tools::patience::Patience;
use vipl_tools::rendezvous::Side;
use vipl_tools::stats::median;
use vipl_tools::{Error, Result};

use crate::limits::Buffers;
use vipl_tools::arena::{Arena, until};
use vipl_tools::blocks::median_turn;

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    /// The process.
    pub(crate) pid: u32,
    /// The first byte.
    pub(crate) address: u64,
}

impl Remote {
    /// Copies `size` bytes between `local` and the same place of the peer's memory; whether all were.
    #[inline(always)]
    fn copy(self, way: Way, local: *mut u8, offset: usize, size: usize) -> bool {
        let here = piece(local.expose_provenance() as u64, size);
        let there = piece(self.address + offset as u64, size);
        // SAFETY: the callers pass `size` bytes of mapped local memory that no reference covers.
        let copied = unsafe { process_vm::copy(self.pid as i32, way, &[here], &[there]) };
        copied.is_ok_and(|bytes| bytes == size)
    }
}

/// Whether the kernel lets this process copy to and from the peer's memory.
///
/// # Errors
/// There is no memory.
pub(crate) fn is_allowed(buffers: &mut Buffers, remote: Remote) -> Result<bool> {
    let [source, target] = buffers.pair(8)?;
    Ok(remote.copy(Way::Read, target.as_ptr(), 0, 8)
        && remote.copy(Way::Write, source.as_ptr(), 0, 8))
}

/// Copies into the peer's memory, one call each, in GB/s; None where the kernel forbids it.
///
/// # Errors
/// There is no memory.
pub(crate) fn write_rate(
    buffers: &mut Buffers,
    remote: Remote,
    size: usize,
) -> Result<Option<f64>> {
    let [source, _] = buffers.pair(size)?;
    let calls = ((2 << 20) / size.max(1)).clamp(4, 400);
    let mut rates = Vec::with_capacity(calls);
    for _ in 0..calls {
        let start = Instant::now();
        if !remote.copy(Way::Write, source.as_ptr(), 0, size) {
            return Ok(None);
        }
        rates.push(size as f64 / start.elapsed().as_nanos() as f64);
    }
    Ok(Some(median(&rates[calls / 4..])))
}

/// Lines of the buffer that the turns go through.
const LINES: u64 = 64;

/// Writes eight bytes to the peer, which polls for them and writes eight bytes back. The driver gets the
/// median one-way time in ns. The target buffers of both sides must be zero: see `Buffers::clean_target`.
///
/// # Errors
/// The peer does not answer.
pub(crate) fn write_turns(
    buffers: &mut Buffers,
    remote: Remote,
    side: Side,
    turns: u64,
) -> Result<f64> {
    let [source, target] = buffers.pair(4096)?;
    let give = |turn: u64| {
        // SAFETY: mapped, aligned, and read by nothing but the system call below.
        unsafe { source.cast::<u64>().as_ptr().write_volatile(turn) };
        let offset = (turn % LINES) as usize * 64;
        if remote.copy(Way::Write, source.as_ptr(), offset, 8) {
            return Ok(());
        }
        Err(Error::Peer("memory cannot be written".to_owned()))
    };
    let take = |turn: u64| until(word(target, turn), turn, "waiting for the peer");
    median_turn(turns, |turn| match side {
        Side::Driver => {
            give(turn)?;
            take(turn)
        }
        Side::Server => {
            take(turn)?;
            give(turn)
        }
    })
}

fn word<'a>(target: NonNull<u8>, turn: u64) -> &'a std::sync::atomic::AtomicU64 {
    let offset = (turn % LINES) as usize * 64;
    // SAFETY: a page of it is mapped until the process ends; aligned; only used as an atomic.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(target.as_ptr().wrapping_add(offset).cast()) }
}

/// Words of the arena with the copies that each side has made.
const MADE: [usize; 2] = [0, 1];
/// Copies by which one side may be ahead.
const AHEAD: u64 = 16;

/// Moves messages of `size` bytes from the driver's memory to the server's, one half copied by each
/// side, at the same time. The driver gets the rate in GB/s.
///
/// # Errors
/// The peer does not go on.
pub(crate) fn copy_halves(
    buffers: &mut Buffers,
    arena: &Arena,
    remote: Remote,
    (side, size, copies): (Side, usize, u64),
) -> Result<f64> {
    let [source, target] = buffers.pair(size)?;
    let half = size / 2;
    let (own, other) = (side as usize, 1 - side as usize);
    let block = (copies / 8).max(1);
    let (mut rates, mut start) = (Vec::new(), Instant::now());
    for copy in 1..=copies {
        let done = match side {
            Side::Driver => remote.copy(Way::Write, source.as_ptr(), 0, half),
            Side::Server => {
                let rest = target.as_ptr().wrapping_add(half);
                remote.copy(Way::Read, rest, half, size - half)
            }
        };
        if !done {
            return Err(Error::Peer("memory cannot be copied".to_owned()));
        }
        arena.word(MADE[own]).store(copy, Ordering::Release);
        let behind = if copy.is_multiple_of(block) || copy == copies {
            0
        } else {
            AHEAD
        };
        let mut patience = Patience::new("waiting for the other half");
        while arena.word(MADE[other]).load(Ordering::Acquire) + behind < copy {
            patience.spend()?;
        }
        if copy.is_multiple_of(block) {
            let now = Instant::now();
            rates.push((size as u64 * block) as f64 / (now - start).as_nanos() as f64);
            start = now;
        }
    }
    Ok(median(&rates[rates.len() / 4..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipl_tools::arena::ARENA_BYTES;
    use vipl_tools::sys;

    fn myself(buffers: &mut Buffers, size: usize) -> Remote {
        Remote {
            pid: std::process::id(),
            address: buffers.target(size).unwrap(),
        }
    }

    #[test]
    fn writing_has_a_rate() {
        let mut buffers = Buffers::default();
        let remote = myself(&mut buffers, 4096);
        // Into this very process: allowed everywhere that has the call.
        let rate = write_rate(&mut buffers, remote, 4096).unwrap();
        assert_eq!(rate.is_some(), is_allowed(&mut buffers, remote).unwrap());
        assert!(rate.is_none_or(|rate| rate > 0.0));
        // No process can write to address 0.
        let nowhere = Remote {
            address: 0,
            ..remote
        };
        assert_eq!(write_rate(&mut buffers, nowhere, 4096).unwrap(), None);
        assert!(!is_allowed(&mut buffers, nowhere).unwrap());
    }

    /// Both sides as two threads, which is allowed where the call exists.
    #[test]
    fn two_sides_write_in_turn_and_copy_halves() {
        const SIZE: usize = 1 << 16;
        let file = sys::anonymous_file(ARENA_BYTES).unwrap();
        let play = |buffers: &mut Buffers,
                    side: Side,
                    file: &std::fs::File,
                    [turns, halves]: [Remote; 2]| {
            let arena = Arena::new(file).unwrap();
            let one_way = write_turns(buffers, turns, side, 200).unwrap();
            let rate = copy_halves(buffers, &arena, halves, (side, SIZE, 64)).unwrap();
            (one_way, rate)
        };
        let mut buffers = Buffers::default();
        let own = myself(&mut buffers, SIZE);
        let source = Remote {
            address: buffers.source(SIZE).unwrap(),
            ..own
        };
        if !is_allowed(&mut buffers, own).unwrap() {
            return println!("SKIP: the kernel has no process_vm_writev");
        }
        buffers.clean_target().unwrap();
        // SAFETY: mapped for so many bytes; nothing else uses it yet.
        unsafe { (source.address as *mut u8).write_bytes(7, SIZE) };
        let (sender, receiver) = std::sync::mpsc::channel();
        let other_file = file.try_clone().unwrap();
        let server = std::thread::spawn(move || {
            let mut buffers = Buffers::default();
            let target = myself(&mut buffers, SIZE);
            buffers.clean_target().unwrap();
            sender.send(target).unwrap();
            play(&mut buffers, Side::Server, &other_file, [own, source]);
            let bytes = target.address as *const u8;
            // SAFETY: mapped for so many bytes, and nothing writes any more.
            (0..SIZE)
                .filter(|at| unsafe { bytes.add(*at).read_volatile() } == 7)
                .count()
        });
        let peer = receiver.recv().unwrap();
        let (one_way, rate) = play(&mut buffers, Side::Driver, &file, [peer, peer]);
        assert!(one_way > 0.0 && rate > 0.0);
        // The first eight bytes are the number of the last turn.
        assert_eq!(server.join().unwrap(), SIZE - 8);
    }
}
