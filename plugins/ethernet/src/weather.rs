//! What a faulty network does to frames, from a seed.
//!
//! Each connection has its own sequence of fates in each direction: the same seed gives the frame with
//! the same number the same fate. Frames are lost, doubled, held back behind later ones, changed, delayed,
//! and slowed down to a rate; what is late waits here until its time has come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::random::Random;

/// Bytes that may wait; more is lost, as in a switch.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// How long a frame that is to be overtaken is held back, in nanoseconds.
const HELD_NS: u64 = 300_000;

/// A kind of network.
#[derive(Clone, Debug, PartialEq)]
pub struct Weather {
    /// Where all chances come from.
    pub seed: u64,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that it arrives twice.
    pub duplicate: f64,
    /// Probability that later frames overtake it.
    pub reorder: f64,
    /// Probability that one of its bits is changed.
    pub corrupt: f64,
    /// So many bytes at the beginning of a frame are never changed: those of a header that the network
    /// itself guards.
    pub spared: usize,
    /// Delay in nanoseconds.
    pub delay_ns: u64,
    /// Bytes per second; 0: no limit.
    pub rate: u64,
}

impl std::ops::AddAssign for Fates {
    fn add_assign(&mut self, other: Fates) {
        self.lost += other.lost;
        self.crowded += other.crowded;
        self.doubled += other.doubled;
        self.held += other.held;
        self.spoiled += other.spoiled;
    }
}

impl Default for Weather {
    /// A network without faults.
    fn default() -> Weather {
        Weather {
            seed: 1,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            spared: 0,
            delay_ns: 0,
            rate: 0,
        }
    }
}

/// What became of frames; one may have several of these fates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Lost by chance.
    pub lost: u64,
    /// Lost for want of room, as in a switch.
    pub crowded: u64,
    /// Arrived twice.
    pub doubled: u64,
    /// Held back, so that later ones overtake them.
    pub held: u64,
    /// With a changed bit.
    pub spoiled: u64,
}

/// One direction of one connection under a weather.
#[derive(Debug)]
pub struct Sky {
    weather: Weather,
    fates: Fates,
    random: Random,
    /// Due time, number, frame.
    waiting: BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>,
    waiting_bytes: usize,
    number: u64,
    /// When the line is free again.
    free_at: u64,
}

impl Sky {
    /// `direction` tells the directions of all connections apart.
    pub fn new(weather: &Weather, direction: u64) -> Sky {
        // Neighbouring seeds and directions must not give neighbouring sequences.
        let mut seeds = Random::new(weather.seed);
        let mixed = seeds.next_u64() ^ direction.wrapping_mul(0xd6e8_feb8_6659_fd93);
        Sky {
            weather: weather.clone(),
            fates: Fates::default(),
            random: Random::new(mixed),
            waiting: BinaryHeap::new(),
            waiting_bytes: 0,
            number: 0,
            free_at: 0,
        }
    }

    /// A frame is sent. Time in nanoseconds.
    pub fn send(&mut self, now: u64, frame: &[u8]) {
        let weather = &self.weather;
        // The same number of chances for each frame, whatever becomes of it.
        let lost = self.random.chance(weather.loss);
        let copies = 1 + usize::from(self.random.chance(weather.duplicate));
        let held = self.random.chance(weather.reorder);
        let corrupt = self.random.chance(weather.corrupt);
        let spared = weather.spared;
        let open = frame.len().saturating_sub(spared);
        let bit = 8 * spared as u64 + self.random.below(8 * open.max(1) as u64);
        if lost {
            self.fates.lost += 1;
            return;
        }
        self.fates.doubled += copies as u64 - 1;
        self.fates.held += u64::from(held);
        let mut frame = frame.to_vec();
        if corrupt && open > 0 {
            self.fates.spoiled += 1;
            frame[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        for _ in 0..copies {
            if self.waiting_bytes + frame.len() > WAITING_BYTES_MAX {
                self.fates.crowded += 1;
                return;
            }
            let time = (frame.len() as u64 * 1_000_000_000)
                .checked_div(weather.rate)
                .unwrap_or(0);
            self.free_at = self.free_at.max(now) + time;
            let due = self.free_at + weather.delay_ns + if held { HELD_NS } else { 0 };
            self.waiting_bytes += frame.len();
            self.waiting
                .push(Reverse((due, self.number, frame.clone())));
            self.number += 1;
        }
    }

    /// Another weather from now on; its seed does not count.
    pub fn turn(&mut self, weather: &Weather) {
        self.weather = weather.clone();
    }

    /// What became of the frames so far.
    pub fn fates(&self) -> Fates {
        self.fates
    }

    /// Whether more may be sent without being lost for want of room.
    pub fn has_room(&self) -> bool {
        self.waiting_bytes < WAITING_BYTES_MAX / 2
    }

    /// When the next frame arrives.
    pub fn next_due(&self) -> Option<u64> {
        self.waiting.peek().map(|Reverse((due, _, _))| *due)
    }

    /// Bytes of the next frame, if its time has come.
    pub fn next_bytes(&self, now: u64) -> Option<usize> {
        let Reverse((due, _, frame)) = self.waiting.peek()?;
        (*due <= now).then_some(frame.len())
    }

    /// The next frame, if its time has come.
    pub fn arrival(&mut self, now: u64) -> Option<Vec<u8>> {
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

    fn run(weather: &Weather, direction: u64) -> Vec<Vec<u8>> {
        let mut sky = Sky::new(weather, direction);
        let mut arrived = Vec::new();
        for number in 0..5000u64 {
            let now = number * 10_000;
            sky.send(now, &number.to_le_bytes());
            while let Some(frame) = sky.arrival(now) {
                arrived.push(frame);
            }
        }
        while let Some(frame) = sky.arrival(u64::MAX) {
            arrived.push(frame);
        }
        arrived
    }

    #[test]
    fn the_same_seed_gives_the_same_fates() {
        let weather = Weather {
            seed: 7,
            loss: 0.1,
            duplicate: 0.05,
            reorder: 0.1,
            corrupt: 0.02,
            ..Weather::default()
        };
        assert_eq!(run(&weather, 0), run(&weather, 0));
        assert_ne!(run(&weather, 0), run(&weather, 1));
        let other = Weather { seed: 8, ..weather };
        assert_ne!(run(&weather_of(7, &other), 0), run(&other, 0));
    }

    fn weather_of(seed: u64, like: &Weather) -> Weather {
        Weather {
            seed,
            ..like.clone()
        }
    }

    #[test]
    fn each_fault_happens_as_often_as_asked() {
        let clear = run(&Weather::default(), 0);
        assert_eq!(clear.len(), 5000);
        assert!(clear.is_sorted_by_key(|f| u64::from_le_bytes(f[..].try_into().unwrap())));
        let lossy = Weather {
            loss: 0.1,
            ..Weather::default()
        };
        let arrived = run(&lossy, 0).len();
        assert!((4300..4700).contains(&arrived), "{arrived}");
        let doubled = Weather {
            duplicate: 0.1,
            ..Weather::default()
        };
        let arrived = run(&doubled, 0).len();
        assert!((5300..5700).contains(&arrived), "{arrived}");
        let mixed = Weather {
            reorder: 0.1,
            ..Weather::default()
        };
        let mut arrived = run(&mixed, 0);
        assert!(!arrived.is_sorted_by_key(|f| u64::from_le_bytes(f[..].try_into().unwrap())));
        arrived.sort_by_key(|f| u64::from_le_bytes(f[..].try_into().unwrap()));
        assert_eq!(arrived.len(), 5000);
        let broken = Weather {
            corrupt: 0.1,
            ..Weather::default()
        };
        let same = run(&broken, 0)
            .iter()
            .zip(&clear)
            .filter(|(a, b)| a == b)
            .count();
        assert!((4300..4700).contains(&same), "{same}");
    }

    #[test]
    fn delay_and_rate_tell_when() {
        let slow = Weather {
            delay_ns: 1000,
            rate: 1_000_000,
            ..Weather::default()
        };
        let mut sky = Sky::new(&slow, 0);
        sky.send(0, &[0; 1000]);
        sky.send(0, &[1; 1000]);
        assert_eq!(sky.next_due(), Some(1_001_000));
        assert!(sky.arrival(1_000_999).is_none());
        assert!(sky.arrival(1_001_000).is_some());
        assert_eq!(sky.next_due(), Some(2_001_000));
    }
}
