//! A link emulator: a faulty network, from a seed.
//!
//! It loses, duplicates, reorders, corrupts and delays frames, and limits their rate. Delayed frames are held here
//! until they are due. Each direction of each connection has its own emulator, so that with the same seed the frame
//! with the same number meets the same faults. The plug-in `sim` uses it, and so does the tests' relay between network
//! namespaces. It knows neither sockets nor clocks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use vipl_sys::random::Random;

/// Capacity of the queue; frames beyond it are lost, as in a switch.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Delay of a frame that is to be reordered, in nanoseconds.
const REORDER_DELAY_NS: u64 = 300_000;

/// Impairments of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct Impairments {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame is duplicated.
    pub duplicate: f64,
    /// Probability that later frames overtake a frame.
    pub reorder: f64,
    /// Probability that one bit of a frame is inverted.
    pub corrupt: f64,
    /// This many bytes at the beginning of a frame are never corrupted: a header that the network itself checks.
    pub exempt_bytes: usize,
    /// Delay in nanoseconds.
    pub delay_ns: u64,
    /// Bytes per second; 0: no limit.
    pub rate: u64,
}

impl std::ops::AddAssign for FaultCounts {
    fn add_assign(&mut self, other: FaultCounts) {
        self.lost += other.lost;
        self.overflowed += other.overflowed;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
    }
}

impl Default for Impairments {
    /// No impairment.
    fn default() -> Impairments {
        Impairments {
            seed: 1,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            exempt_bytes: 0,
            delay_ns: 0,
            rate: 0,
        }
    }
}

/// Injected faults; one frame may have several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Lost.
    pub lost: u64,
    /// Lost because the queue was full.
    pub overflowed: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Delayed so that later frames overtake them.
    pub reordered: u64,
    /// With an inverted bit.
    pub corrupted: u64,
}

/// One direction of one link.
#[derive(Debug)]
pub struct LinkEmulator {
    impairments: Impairments,
    counts: FaultCounts,
    random: Random,
    /// Due time, number, frame.
    waiting: BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>,
    waiting_bytes: usize,
    number: u64,
    /// When the link has transmitted all earlier frames.
    free_at: u64,
}

impl LinkEmulator {
    /// `direction` distinguishes all directions of all links.
    pub fn new(impairments: &Impairments, direction: u64) -> LinkEmulator {
        // Adjacent seeds and directions must not give similar sequences.
        let mut seeds = Random::new(impairments.seed);
        let mixed = seeds.next_u64() ^ direction.wrapping_mul(0xd6e8_feb8_6659_fd93);
        LinkEmulator {
            impairments: impairments.clone(),
            counts: FaultCounts::default(),
            random: Random::new(mixed),
            waiting: BinaryHeap::new(),
            waiting_bytes: 0,
            number: 0,
            free_at: 0,
        }
    }

    /// Sends a frame. Times are in nanoseconds.
    pub fn send(&mut self, now: u64, frame: &[u8]) {
        let impairments = &self.impairments;
        // Each frame takes the same number of random decisions, whatever their outcome.
        let lost = self.random.chance(impairments.loss);
        let copies = 1 + usize::from(self.random.chance(impairments.duplicate));
        let held = self.random.chance(impairments.reorder);
        let corrupt = self.random.chance(impairments.corrupt);
        let exempt_bytes = impairments.exempt_bytes;
        let open = frame.len().saturating_sub(exempt_bytes);
        let bit = 8 * exempt_bytes as u64 + self.random.below(8 * open.max(1) as u64);
        if lost {
            self.counts.lost += 1;
            return;
        }
        self.counts.duplicated += copies as u64 - 1;
        self.counts.reordered += u64::from(held);
        let mut frame = frame.to_vec();
        if corrupt && open > 0 {
            self.counts.corrupted += 1;
            frame[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        for _ in 0..copies {
            if self.waiting_bytes + frame.len() > WAITING_BYTES_MAX {
                self.counts.overflowed += 1;
                return;
            }
            let time = (frame.len() as u64 * 1_000_000_000)
                .checked_div(impairments.rate)
                .unwrap_or(0);
            self.free_at = self.free_at.max(now) + time;
            let due = self.free_at + impairments.delay_ns + if held { REORDER_DELAY_NS } else { 0 };
            self.waiting_bytes += frame.len();
            self.waiting
                .push(Reverse((due, self.number, frame.clone())));
            self.number += 1;
        }
    }

    /// Changes the impairments from now on, except the seed.
    pub fn set_impairments(&mut self, impairments: &Impairments) {
        self.impairments = impairments.clone();
    }

    /// Faults so far.
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Whether the next frame cannot overflow the queue.
    pub fn has_room(&self) -> bool {
        self.waiting_bytes < WAITING_BYTES_MAX / 2
    }

    /// When the next frame is due.
    pub fn next_due(&self) -> Option<u64> {
        self.waiting.peek().map(|Reverse((due, _, _))| *due)
    }

    /// Length of the next frame, if it is due.
    pub fn next_bytes(&self, now: u64) -> Option<usize> {
        let Reverse((due, _, frame)) = self.waiting.peek()?;
        (*due <= now).then_some(frame.len())
    }

    /// The next frame, if it is due.
    pub fn receive(&mut self, now: u64) -> Option<Vec<u8>> {
        if self.next_due()? > now {
            return None;
        }
        let Reverse((_, _, frame)) = self.waiting.pop()?;
        self.waiting_bytes -= frame.len();
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(impairments: &Impairments, direction: u64) -> Vec<Vec<u8>> {
        let mut link = LinkEmulator::new(impairments, direction);
        let mut arrived = Vec::new();
        for number in 0..5000u64 {
            let now = number * 10_000;
            link.send(now, &number.to_le_bytes());
            while let Some(frame) = link.receive(now) {
                arrived.push(frame);
            }
        }
        while let Some(frame) = link.receive(u64::MAX) {
            arrived.push(frame);
        }
        arrived
    }

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let impairments = Impairments {
            seed: 7,
            loss: 0.1,
            duplicate: 0.05,
            reorder: 0.1,
            corrupt: 0.02,
            ..Impairments::default()
        };
        assert_eq!(run(&impairments, 0), run(&impairments, 0));
        assert_ne!(run(&impairments, 0), run(&impairments, 1));
        let other = Impairments {
            seed: 8,
            ..impairments
        };
        assert_ne!(run(&with_seed(7, &other), 0), run(&other, 0));
    }

    fn with_seed(seed: u64, like: &Impairments) -> Impairments {
        Impairments {
            seed,
            ..like.clone()
        }
    }

    #[test]
    fn each_fault_happens_as_often_as_asked() {
        let clear = run(&Impairments::default(), 0);
        assert_eq!(clear.len(), 5000);
        assert!(clear.is_sorted_by_key(|f| u64::from_le_bytes(f[..].try_into().unwrap())));
        let lossy = Impairments {
            loss: 0.1,
            ..Impairments::default()
        };
        let arrived = run(&lossy, 0).len();
        assert!((4300..4700).contains(&arrived), "{arrived}");
        let duplicated = Impairments {
            duplicate: 0.1,
            ..Impairments::default()
        };
        let arrived = run(&duplicated, 0).len();
        assert!((5300..5700).contains(&arrived), "{arrived}");
        let mixed = Impairments {
            reorder: 0.1,
            ..Impairments::default()
        };
        let mut arrived = run(&mixed, 0);
        assert!(!arrived.is_sorted_by_key(|f| u64::from_le_bytes(f[..].try_into().unwrap())));
        arrived.sort_by_key(|f| u64::from_le_bytes(f[..].try_into().unwrap()));
        assert_eq!(arrived.len(), 5000);
        let broken = Impairments {
            corrupt: 0.1,
            ..Impairments::default()
        };
        let same = run(&broken, 0)
            .iter()
            .zip(&clear)
            .filter(|(a, b)| a == b)
            .count();
        assert!((4300..4700).contains(&same), "{same}");
    }

    #[test]
    fn delay_and_rate_decide_when_a_frame_is_due() {
        let slow = Impairments {
            delay_ns: 1000,
            rate: 1_000_000,
            ..Impairments::default()
        };
        let mut link = LinkEmulator::new(&slow, 0);
        link.send(0, &[0; 1000]);
        link.send(0, &[1; 1000]);
        assert_eq!(link.next_due(), Some(1_001_000));
        assert!(link.receive(1_000_999).is_none());
        assert!(link.receive(1_001_000).is_some());
        assert_eq!(link.next_due(), Some(2_001_000));
    }
}
