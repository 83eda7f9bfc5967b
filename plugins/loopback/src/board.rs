//! The words by which both sides of a connection share one large copy.
//!
//! The *owner* has to make the copy: the receiver of a message, the initiator of RDMA. It writes a description onto its board
//! and opens the board; then it takes parts and copies them until none is left. A peer that polls meanwhile is the *helper*: it
//! takes parts too, and reports on its own board what it has copied. A peer that does not poll takes nothing, and the owner does
//! not wait for it.
//!
//! ```text
//!   owner    close │ describe │ open │ take, copy, take, copy … │ close │ wait for what the helper took
//!   helper                        read │ take, copy, report, take, copy, report …
//! ```
//!
//! **No part is copied twice or left out.** Parts are taken by compare-exchange of one word, the cursor. It never repeats a
//! value: it holds the generation, which grows with each copy, and the number of the first free unit, which only grows within a
//! generation.
//!
//! **A helper copies by the description of the parts that it took.** The owner writes a description only while the board is
//! closed, and closes the old generation before: close, fence, write. The helper reads the description, executes a fence, and
//! only then takes: if it has read any word of a later description, the fences make its compare-exchange see the closed cursor,
//! and it fails.
//!
//! **The helper copies nothing after the owner has gone on.** Closing returns the cursor, and so how much the helper took at
//! most; nothing is taken later. The owner goes on when the helper has reported as much, or that it has given up, which is its
//! last report of a generation.
//!
//! A hostile peer can leave parts uncopied, or keep the owner waiting: its own data, and its own connection. The owner takes
//! each unit once at most whatever the cursor says, because it counts what it took.
//!
//! `ctest/loom` compiles this file.

use crate::buffers::Segment;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::mem::offset_of;

/// Bytes of a unit, of which parts consist.
pub(crate) const UNIT: u32 = 4096;
/// Segments of the owner that fit onto the board.
pub(crate) const SEGMENTS: usize = 6;
/// Units of the smallest part that is not all there is, the first one apart; and of the largest part.
const PART_MIN: u32 = 32;
const PART_MAX: u32 = 128;
/// Instead of a unit: the board is closed.
const CLOSED: u32 = u32::MAX;
/// The helper has given up.
const GIVEN_UP: u64 = 1 << 31;

/// What is to be copied, as far as the helper does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// The message that the helper announced in this slot.
    Message(u32),
    /// An RDMA Write to this range of the helper.
    Write(Segment),
    /// An RDMA Read of this range of the helper.
    Read(Segment),
}

/// A description as the helper read it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) generation: u32,
    pub(crate) job: Job,
    /// Bytes that are shared, from the first one on.
    pub(crate) bytes: u32,
    segments: [Segment; SEGMENTS],
    count: usize,
}

impl Asked {
    /// The owner's own memory.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments[..self.count]
    }
}

#[derive(Default)]
#[repr(C)]
struct Place {
    address: AtomicU64,
    /// Handle 32, length 32.
    rest: AtomicU64,
}

/// A side's board; zeroes are a closed one, as generation 0 is never open. All of it is atomic: a peer may write it.
/// With one segment the helper reads one line.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Board {
    /// Generation 32, first free unit 32. Both sides take from it.
    cursor: AtomicU64,
    bytes: AtomicU32,
    /// Kind of job 8, segments 8.
    kind: AtomicU32,
    /// Slot of a message, or length of RDMA.
    number: AtomicU32,
    handle: AtomicU32,
    address: AtomicU64,
    segments: [Place; SEGMENTS],
    /// As a helper of the other side's copies: generation 32, given up 1, units copied 31.
    report: AtomicU64,
    pad: [AtomicU64; 7],
}

impl Board {
    /// Where its fields lie, which `segment` checks: models have other atomics.
    #[allow(dead_code, reason = "the models do without")]
    pub(crate) const FIELDS: [usize; 3] = [
        offset_of!(Board, address),
        offset_of!(Board, segments),
        offset_of!(Board, report),
    ];
}

/// How far a helper is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) units: u32,
    pub(crate) given_up: bool,
}

fn pack(generation: u32, low: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(low)
}

/// Units of a copy.
pub(crate) fn units_of(bytes: u32) -> u32 {
    bytes.div_ceil(UNIT)
}

/// How many units to take of so many when these are left: half of them. A second copy by the same side costs a system call, and
/// waiting for a part of the peer costs that part, so small copies are two halves, and large ones end with small parts.
fn part_of(units: u32, left: u32) -> u32 {
    let part = if left == units {
        left.div_ceil(2)
    } else {
        (left / 2).max(PART_MIN)
    };
    part.min(PART_MAX).min(left)
}

impl Board {
    /// The generation on the board, which changes when the owner offers a copy.
    #[inline(always)]
    pub(crate) fn generation(&self) -> u32 {
        (self.cursor.load(Ordering::Relaxed) >> 32) as u32
    }

    /// The owner offers a copy. `generation` is a new one and not 0, and the board is closed.
    pub(crate) fn open(&self, generation: u32, job: Job, bytes: u32, segments: &[Segment]) {
        // Pairs with the fence in `read`.
        fence(Ordering::Release);
        let (kind, number, range) = match job {
            Job::Message(slot) => (0, slot, None),
            Job::Write(range) => (1, range.length, Some(range)),
            Job::Read(range) => (2, range.length, Some(range)),
        };
        let count = segments.len().min(SEGMENTS);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.kind
            .store(kind | (count as u32) << 8, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        if let Some(range) = range {
            self.handle.store(range.handle, Ordering::Relaxed);
            self.address.store(range.address, Ordering::Relaxed);
        }
        for (place, segment) in self.segments.iter().zip(segments) {
            place.address.store(segment.address, Ordering::Relaxed);
            let rest = pack(segment.handle, segment.length);
            place.rest.store(rest, Ordering::Relaxed);
        }
        // Release: a helper that sees the generation finds its description.
        self.cursor.store(pack(generation, 0), Ordering::Release);
    }

    /// The owner's offer, if the board is open. Every word is read once, and is the peer's: to be checked.
    pub(crate) fn read(&self) -> Option<Asked> {
        let cursor = self.cursor.load(Ordering::Acquire);
        if cursor as u32 == CLOSED || cursor >> 32 == 0 {
            return None;
        }
        let (kind, number) = (
            self.kind.load(Ordering::Relaxed),
            self.number.load(Ordering::Relaxed),
        );
        let range = Segment {
            address: self.address.load(Ordering::Relaxed),
            handle: self.handle.load(Ordering::Relaxed),
            length: number,
        };
        let job = match kind & 0xFF {
            0 => Job::Message(number),
            1 => Job::Write(range),
            2 => Job::Read(range),
            _ => return None,
        };
        let mut asked = Asked {
            generation: (cursor >> 32) as u32,
            job,
            bytes: self.bytes.load(Ordering::Relaxed),
            segments: [Segment::default(); SEGMENTS],
            count: (kind >> 8) as usize,
        };
        if asked.count > SEGMENTS {
            return None;
        }
        for (segment, place) in asked.segments[..asked.count].iter_mut().zip(&self.segments) {
            let rest = place.rest.load(Ordering::Relaxed);
            *segment = Segment {
                address: place.address.load(Ordering::Relaxed),
                handle: (rest >> 32) as u32,
                length: rest as u32,
            };
        }
        // Pairs with the fence in `open`: what is taken after this was described by what was read before.
        fence(Ordering::Acquire);
        Some(asked)
    }

    /// Takes a part of at most `most` units: its first unit and how many they are. `None`: nothing is left of this generation.
    pub(crate) fn take(&self, generation: u32, units: u32, most: u32) -> Option<(u32, u32)> {
        let mut cursor = self.cursor.load(Ordering::Relaxed);
        loop {
            let first = cursor as u32;
            if (cursor >> 32) as u32 != generation || first >= units {
                return None;
            }
            let part = part_of(units, units - first).min(most);
            let next = pack(generation, first + part);
            match self.cursor.compare_exchange_weak(
                cursor,
                next,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some((first, part)),
                Err(seen) => cursor = seen,
            }
        }
    }

    /// The owner closes the board: nothing is taken any more. Gives how many units were taken.
    pub(crate) fn close(&self, generation: u32, units: u32) -> u32 {
        let cursor = self.cursor.swap(pack(generation, CLOSED), Ordering::AcqRel);
        (cursor as u32).min(units)
    }

    /// The helper reports how far it is; after `given_up` it copies nothing of this generation.
    pub(crate) fn report(&self, generation: u32, report: Report) {
        let given_up = if report.given_up { GIVEN_UP } else { 0 };
        let units = u64::from(report.units & !(GIVEN_UP as u32));
        // Release: the copies come before it.
        let word = u64::from(generation) << 32 | given_up | units;
        self.report.store(word, Ordering::Release);
    }

    /// What the helper, whose board this is, has reported of a generation.
    pub(crate) fn reported(&self, generation: u32) -> Report {
        // Acquire pairs with the release in `report`.
        let word = self.report.load(Ordering::Acquire);
        let reported = (word >> 32) as u32 == generation;
        Report {
            units: if reported {
                word as u32 & !(GIVEN_UP as u32)
            } else {
                0
            },
            given_up: reported && word & GIVEN_UP != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    const UNITS: u32 = 100;

    fn segment(generation: u32) -> Segment {
        Segment {
            address: u64::from(generation) << 20,
            handle: generation,
            length: UNITS * UNIT,
        }
    }

    #[test]
    fn parts_are_the_whole() {
        let board = Board::default();
        for units in (1..300).chain([1 << 20]) {
            board.open(units, Job::Message(9), units * 7, &[segment(1), segment(2)]);
            let mut next = 0;
            while let Some((first, part)) = board.take(units, units, units) {
                assert_eq!(first, next);
                assert!(part > 0);
                next += part;
            }
            assert_eq!(next, units);
            assert!(board.take(units - 1, units, units).is_none());
            assert_eq!(board.close(units, units), units);
        }
    }

    #[test]
    fn what_is_described_is_what_is_asked() {
        let board = Board::default();
        assert_eq!(board.generation(), 0);
        assert!(board.read().is_none());
        let range = Segment {
            address: 5 << 40,
            handle: 77,
            length: 90_000,
        };
        let jobs = [Job::Message(u32::MAX), Job::Write(range), Job::Read(range)];
        for (generation, job) in (1..).zip(jobs) {
            let list = [segment(3), segment(4)];
            board.open(generation, job, 12_345, &list);
            let asked = board.read().expect("an open board");
            assert_eq!((asked.job, asked.bytes), (job, 12_345));
            assert_eq!(asked.segments(), list);
            assert_eq!(asked.generation, board.generation());
            board.close(generation, 4);
            assert!(board.read().is_none());
            assert!(board.take(generation, 4, 4).is_none());
        }
    }

    #[test]
    fn a_report_counts_for_its_generation() {
        let board = Board::default();
        let report = Report {
            units: 70_000,
            given_up: true,
        };
        board.report(8, report);
        assert_eq!(board.reported(8), report);
        assert_eq!(board.reported(9).units, 0);
        assert!(!board.reported(9).given_up);
    }

    /// Owner and helper as fast as they can: every unit is copied once, by the description of its own generation, and
    /// nothing is copied after the owner has gone on.
    #[test]
    fn two_sides_share_every_copy() {
        const COPIES: u32 = 20_000;
        let (board, reports) = (Board::default(), Board::default());
        let copied: Vec<AtomicU32> = (0..UNITS).map(|_| AtomicU32::new(0)).collect();
        let end = AtomicBool::new(false);
        let helped = AtomicU32::new(0);
        let looked = AtomicU32::new(0);
        let copy = |generation: u32, first: u32, part: u32| {
            for unit in first..first + part {
                // From the copy before to this one: any other order is a unit copied twice, or too late.
                let before = copied[unit as usize].swap(generation, Ordering::Relaxed);
                assert_eq!(before, generation - 1, "unit {unit}");
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seen = 0;
                while !end.load(Ordering::Acquire) {
                    if board.generation() == seen {
                        std::hint::spin_loop();
                        continue;
                    }
                    seen = board.generation();
                    looked.store(seen, Ordering::Release);
                    let Some(asked) = board.read() else { continue };
                    let mut report = Report {
                        units: 0,
                        given_up: false,
                    };
                    while let Some((first, part)) = board.take(asked.generation, UNITS, 16) {
                        assert_eq!(asked.job, Job::Message(asked.generation));
                        assert_eq!(asked.bytes, asked.generation);
                        assert_eq!(asked.segments(), [segment(asked.generation)]);
                        copy(asked.generation, first, part);
                        report.units += part;
                        helped.fetch_add(part, Ordering::Relaxed);
                        reports.report(asked.generation, report);
                    }
                }
            });
            for generation in 1..=COPIES {
                let list = [segment(generation)];
                board.open(generation, Job::Message(generation), generation, &list);
                if generation % 64 == 0 {
                    // The helper takes part on any number of processors.
                    while looked.load(Ordering::Acquire) != generation {
                        std::thread::yield_now();
                    }
                }
                let mut mine = 0;
                while let Some((first, part)) = board.take(generation, UNITS, UNITS) {
                    copy(generation, first, part);
                    mine += part;
                    // Sometimes the owner stops early.
                    if generation % 7 == 0 {
                        break;
                    }
                }
                let theirs = board.close(generation, UNITS) - mine;
                while reports.reported(generation).units < theirs {
                    std::thread::yield_now();
                }
                assert_eq!(reports.reported(generation).units, theirs);
                for unit in &copied {
                    let last = unit.swap(generation, Ordering::Relaxed);
                    assert!(last == generation || generation % 7 == 0);
                }
            }
            end.store(true, Ordering::Release);
        });
        assert!(
            helped.load(Ordering::Relaxed) > 0,
            "the helper took nothing"
        );
    }
}
