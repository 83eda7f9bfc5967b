//! Frames in flight: what each carried, so that it can be rebuilt, and which of them the peer has.
//!
//! A frame counts as lost when the peer has a frame that was transmitted later, by three frames or by more than a round
//! trip. "Later" refers to the count of transmissions, not to sequence numbers: a retransmission is a new transmission.
//! Across routers [`Rack`](crate::rack::Rack) says how much later it must have been.

use std::collections::VecDeque;

use crate::config::NEVER;
use crate::env::Remote;
use crate::rack::Rack;
use crate::rtt::Rtt;
use crate::spurious::{TimeoutCheck, is_newer};

/// A frame that so many later transmissions have overtaken is lost.
const REORDER: u32 = 3;
/// A frame that has been overtaken is not lost before this time has passed.
const REORDER_MIN_NS: u64 = 200_000;

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Whole operations, by their numbers.
    Whole { first: u32, count: u16 },
    /// A piece of one operation.
    Piece {
        number: u32,
        offset: u32,
        bytes: u16,
    },
    /// A piece of the answer to an RDMA Read of the peer.
    Answer {
        read: u32,
        operation: u32,
        range: Remote,
        offset: u32,
        bytes: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    Lost,
    Arrived,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    load: Load,
    sent_ns: u64,
    transmission: u32,
    again: bool,
    state: State,
    /// Counts as lost for this reduction of the congestion window ([`Rack`]).
    episode: u8,
}

/// Result of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Frames newly known to have arrived.
    pub(crate) arrived: u32,
    /// The oldest frame in flight has arrived.
    pub(crate) advanced: bool,
    /// The last retransmission timeout was spurious: nothing had been lost.
    pub(crate) spurious: bool,
    /// All frames for which the congestion window was reduced last were late, not lost.
    pub(crate) all_late: bool,
    /// Shortest and longest round trip of the frames that were sent once; shortest above longest if there is none.
    shortest_ns: u64,
    longest_ns: u64,
}

impl Progress {
    pub(crate) const NONE: Progress = Progress {
        arrived: 0,
        advanced: false,
        spurious: false,
        all_late: false,
        shortest_ns: u64::MAX,
        longest_ns: 0,
    };

    /// Adds the round trips to the measurement.
    #[inline(always)]
    pub(crate) fn measure(&self, rtt: &mut Rtt) {
        if self.shortest_ns <= self.longest_ns {
            rtt.sample(self.shortest_ns, self.longest_ns);
        }
    }
}

/// Frames from the oldest unacknowledged one to the next one.
pub(crate) struct Inflight {
    flights: VecDeque<Flight>,
    first: u32,
    transmissions: u32,
    under_way: u32,
    lost: u32,
    /// Latest transmission that has arrived, and its round trip.
    latest: Option<(u32, u64)>,
    timeout: TimeoutCheck,
    /// On a path with other users.
    rack: Option<Box<Rack>>,
    /// When the next frame counts as lost if it is not acknowledged before.
    pub(crate) lost_at_ns: u64,
}

impl Inflight {
    pub(crate) fn new(first: u32, shared_path: bool) -> Inflight {
        Inflight {
            flights: VecDeque::new(),
            first,
            transmissions: 0,
            under_way: 0,
            lost: 0,
            latest: None,
            timeout: TimeoutCheck::NONE,
            rack: shared_path.then(|| Box::new(Rack::new())),
            lost_at_ns: NEVER,
        }
    }

    /// Oldest unacknowledged frame.
    #[inline(always)]
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// Number of the next frame.
    #[inline(always)]
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.flights.len() as u32)
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Frames between the oldest and the next.
    #[inline(always)]
    pub(crate) fn span(&self) -> u32 {
        self.flights.len() as u32
    }

    /// Frames that are in the network, as far as is known.
    #[inline(always)]
    pub(crate) fn under_way(&self) -> u32 {
        self.under_way
    }

    #[inline(always)]
    pub(crate) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// Whether a piece of an answer to an RDMA Read has not arrived yet.
    pub(crate) fn has_answer(&self) -> bool {
        let answer =
            |f: &Flight| f.state != State::Arrived && matches!(f.load, Load::Answer { .. });
        self.flights.iter().any(answer)
    }

    /// Round trip of the latest transmission that has arrived.
    pub(crate) fn latest_took_ns(&self) -> u64 {
        self.latest.map_or(0, |(_, took_ns)| took_ns)
    }

    /// Adds a new frame.
    #[inline(always)]
    pub(crate) fn push(&mut self, load: Load) {
        self.flights.push_back(Flight {
            load,
            sent_ns: 0,
            transmission: self.transmissions,
            again: false,
            state: State::UnderWay,
            episode: 0,
        });
        self.transmissions = self.transmissions.wrapping_add(1);
        self.under_way += 1;
    }

    /// The frame was sent at this time.
    #[inline(always)]
    pub(crate) fn left(&mut self, sequence: u32, now_ns: u64) {
        let place = sequence.wrapping_sub(self.first) as usize;
        self.flights[place].sent_ns = now_ns;
    }

    /// A frame without acknowledgement has been sent.
    #[inline(always)]
    pub(crate) fn skip(&mut self) {
        self.first = self.first.wrapping_add(1);
    }

    /// The oldest lost frame: its sequence number and its content.
    pub(crate) fn lost(&self) -> Option<(u32, Load)> {
        let place = self.flights.iter().position(|f| f.state == State::Lost)?;
        Some((
            self.first.wrapping_add(place as u32),
            self.flights[place].load,
        ))
    }

    /// Prepares the retransmission of a lost frame; `overdue`: after a timeout.
    pub(crate) fn sent_again(&mut self, sequence: u32, overdue: bool) {
        if overdue {
            self.timeout = TimeoutCheck::of(self.transmissions);
        }
        let place = sequence.wrapping_sub(self.first) as usize;
        let flight = &mut self.flights[place];
        flight.transmission = self.transmissions;
        flight.again = true;
        flight.state = State::UnderWay;
        self.transmissions = self.transmissions.wrapping_add(1);
        self.lost -= 1;
        self.under_way += 1;
    }

    /// The peer has all frames before `sequence`. `None`: that is impossible, or old.
    #[inline(always)]
    pub(crate) fn acknowledged(
        &mut self,
        sequence: u32,
        now_ns: u64,
        rtt: &Rtt,
    ) -> Option<Progress> {
        let count = sequence.wrapping_sub(self.first);
        if count > self.flights.len() as u32 {
            return None;
        }
        let mut progress = Progress::NONE;
        for place in 0..count {
            let flight = self.flights.pop_front()?;
            let arrived = self.first.wrapping_add(place);
            self.note(arrived, &flight, now_ns, rtt, &mut progress);
        }
        self.first = sequence;
        progress.advanced = count > 0;
        Some(progress)
    }

    /// The same for the only frame in flight, if it was sent once and no timeout is undecided. `None`: it is not so.
    #[inline(always)]
    pub(crate) fn only_one_arrived(&mut self, sequence: u32, now_ns: u64) -> Option<Progress> {
        let flight = *self.flights.front()?;
        let is_only_one = sequence.wrapping_sub(self.first) == 1 && self.flights.len() == 1;
        let is_plain = flight.state == State::UnderWay && !flight.again && !self.timeout.is_open();
        if !is_only_one || !is_plain {
            return None;
        }
        self.flights.clear();
        (self.first, self.under_way) = (sequence, 0);
        let took_ns = now_ns.saturating_sub(flight.sent_ns);
        if !self.arrived(flight.transmission, took_ns) {
            self.arrived_late(sequence.wrapping_sub(1));
        }
        Some(Progress {
            arrived: 1,
            advanced: true,
            shortest_ns: took_ns,
            longest_ns: took_ns,
            ..Progress::NONE
        })
    }

    /// Counts a frame that has arrived.
    #[inline(always)]
    fn note(
        &mut self,
        sequence: u32,
        flight: &Flight,
        now_ns: u64,
        rtt: &Rtt,
        progress: &mut Progress,
    ) {
        match flight.state {
            State::Arrived => return,
            State::Lost => {
                self.lost -= 1;
                progress.all_late |= self.was_late(flight.episode, now_ns, rtt);
            }
            State::UnderWay => self.under_way -= 1,
        }
        progress.arrived += 1;
        let took = now_ns.saturating_sub(flight.sent_ns);
        if flight.again {
            let episode = (flight.state == State::UnderWay).then_some(flight.episode);
            progress.all_late |=
                self.again_arrived(flight.transmission, episode, took, now_ns, rtt);
            return;
        }
        progress.shortest_ns = progress.shortest_ns.min(took);
        progress.longest_ns = progress.longest_ns.max(took);
        progress.spurious |= self.timeout.was_spurious(flight.transmission);
        if !self.arrived(flight.transmission, took) {
            self.arrived_late(sequence);
        }
    }

    /// A frame has arrived that was sent more than once, and counted as lost for `episode` before the last time. Returns
    /// [`Progress::all_late`].
    #[cold]
    fn again_arrived(
        &mut self,
        transmission: u32,
        episode: Option<u8>,
        took_ns: u64,
        now_ns: u64,
        rtt: &Rtt,
    ) -> bool {
        let decided_ns = now_ns + patience_ns(rtt);
        let undecided = self.timeout.is_acknowledged(transmission, decided_ns);
        if took_ns < rtt.shortest_ns() {
            // An earlier transmission has arrived, or the network has become faster.
            return episode.is_some_and(|episode| self.was_late(episode, now_ns, rtt));
        }
        if !undecided {
            self.arrived(transmission, took_ns);
        }
        false
    }

    #[cold]
    fn arrived_late(&mut self, sequence: u32) {
        if let Some(rack) = &mut self.rack {
            rack.arrived_late(sequence);
        }
    }

    /// Returns whether no later transmission has arrived.
    #[inline(always)]
    fn arrived(&mut self, transmission: u32, took_ns: u64) -> bool {
        let newest = self
            .latest
            .is_none_or(|(latest, _)| is_newer(transmission, latest));
        if newest {
            self.latest = Some((transmission, took_ns));
        }
        newest
    }

    /// A frame that counted as lost has arrived, and not by a transmission since. Returns [`Progress::all_late`].
    #[cold]
    fn was_late(&mut self, episode: u8, now_ns: u64, rtt: &Rtt) -> bool {
        let rack = self.rack.as_mut();
        rack.is_some_and(|rack| rack.was_late(episode, now_ns, rtt))
    }

    /// All frames have been acknowledged.
    #[inline(always)]
    pub(crate) fn all_arrived(&mut self) {
        self.timeout = TimeoutCheck::NONE;
        self.lost_at_ns = NEVER;
    }

    /// The peer has these frames too: bit `i` of the map, lowest bit first, is frame `first + 1 + i`.
    pub(crate) fn selected(&mut self, map: &[u8], now_ns: u64, rtt: &Rtt, progress: &mut Progress) {
        for (at, byte) in map.iter().enumerate() {
            let mut bits = *byte;
            while bits != 0 {
                let place = 8 * at + bits.trailing_zeros() as usize + 1;
                bits &= bits - 1;
                let Some(flight) = self.flights.get(place).copied() else {
                    return;
                };
                let sequence = self.first.wrapping_add(place as u32);
                self.note(sequence, &flight, now_ns, rtt, progress);
                self.flights[place].state = State::Arrived;
                if let Some(rack) = &mut self.rack {
                    rack.arrived_early(sequence);
                }
            }
        }
    }

    /// Finds lost frames by what has overtaken them. Returns the number of new ones, and when the last of them was sent.
    /// The congestion window was reduced last at `reduced_ns`.
    pub(crate) fn find_lost(&mut self, now_ns: u64, rtt: &Rtt, reduced_ns: u64) -> (u32, u64) {
        if let Some(transmission) = self.timeout.decide(now_ns) {
            self.arrived(transmission, rtt.smoothed_ns());
        }
        self.lost_at_ns = self.timeout.until_ns;
        let Some((latest, took_ns)) = self.latest else {
            return (0, 0);
        };
        if self
            .flights
            .front()
            .is_some_and(|first| !first.again && is_newer(first.transmission, latest))
        {
            // All others were sent later.
            return (0, 0);
        }
        let (by_count, patience) = match &self.rack {
            None => (true, patience_ns(rtt)),
            Some(rack) => {
                let patience = took_ns + rack.window_ns(rtt);
                (rack.keeps_order(), patience.max(REORDER_MIN_NS))
            }
        };
        let (mut found, mut since, mut sent_ns) = (0, 0, 0);
        for flight in &mut self.flights {
            if flight.state != State::UnderWay {
                continue;
            }
            let behind = latest.wrapping_sub(flight.transmission) as i32;
            if behind <= 0 {
                continue;
            }
            let at = flight.sent_ns + patience;
            if (by_count && behind >= REORDER as i32) || at <= now_ns {
                flight.state = State::Lost;
                sent_ns = sent_ns.max(flight.sent_ns);
                found += 1;
                if let Some(rack) = &self.rack {
                    let next = flight.sent_ns >= reduced_ns;
                    flight.episode = rack.episode(next);
                    since += u32::from(next);
                }
            } else {
                self.lost_at_ns = self.lost_at_ns.min(at);
            }
        }
        if let Some(rack) = &mut self.rack {
            rack.claim(since, found - since);
        }
        self.under_way -= found;
        self.lost += found;
        (found, sent_ns)
    }

    /// The retransmission timeout: the oldest frame counts as lost.
    pub(crate) fn lose_first(&mut self) {
        if let Some(flight) = self.flights.front_mut()
            && flight.state == State::UnderWay
        {
            flight.state = State::Lost;
            if let Some(rack) = &self.rack {
                // Not by the rule: nothing is learned from it.
                flight.episode = rack.episode(false).wrapping_sub(1);
            }
            self.under_way -= 1;
            self.lost += 1;
        }
    }

    /// A lost frame that is not retransmitted, since its operation has failed.
    pub(crate) fn give_up(&mut self, sequence: u32) {
        let place = sequence.wrapping_sub(self.first) as usize;
        self.flights[place].state = State::Arrived;
        self.lost -= 1;
    }
}

/// How long a frame may be in flight after another one has overtaken it.
fn patience_ns(rtt: &Rtt) -> u64 {
    (rtt.smoothed_ns() * 9 / 8).max(REORDER_MIN_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(inflight: &mut Inflight, number: u32, now_ns: u64) {
        let sequence = inflight.next();
        inflight.push(Load::Whole {
            first: number,
            count: 1,
        });
        inflight.left(sequence, now_ns);
    }

    fn sent(first: u32, count: u32) -> Inflight {
        let mut inflight = Inflight::new(first, false);
        for number in 0..count {
            send(&mut inflight, number, 1000);
        }
        inflight
    }

    /// Gives how many are new.
    fn select(inflight: &mut Inflight, map: &[u8], now_ns: u64) -> u32 {
        let mut progress = Progress::NONE;
        inflight.selected(map, now_ns, &Rtt::default(), &mut progress);
        progress.arrived
    }

    #[test]
    fn acknowledgements_wrap_and_impossible_ones_are_refused() {
        let (rtt, first) = (Rtt::default(), u32::MAX - 1);
        let mut inflight = sent(first, 5);
        assert_eq!(inflight.next(), 3);
        assert_eq!(inflight.acknowledged(4, 2000, &rtt), None, "not sent yet");
        assert_eq!(inflight.acknowledged(first - 1, 2000, &rtt), None, "old");
        let progress = inflight.acknowledged(1, 2000, &rtt).unwrap();
        assert_eq!((progress.arrived, progress.advanced), (3, true));
        assert_eq!((inflight.first(), inflight.under_way()), (1, 2));
    }

    #[test]
    fn three_later_ones_make_a_loss_and_a_second_loss_is_found_too() {
        let rtt = Rtt::default();
        let mut inflight = sent(0, 6);
        // Frames 1 and 2 have arrived.
        select(&mut inflight, &[0b11], 2000);
        assert_eq!(
            inflight.find_lost(2000, &rtt, 0).0,
            0,
            "two later ones are not enough"
        );
        assert_eq!(
            inflight.lost_at_ns,
            1000 + REORDER_MIN_NS,
            "but time will be"
        );
        select(&mut inflight, &[0b111], 2000);
        assert_eq!(inflight.find_lost(2000, &rtt, 0).0, 1);
        assert_eq!(
            inflight.lost(),
            Some((0, Load::Whole { first: 0, count: 1 }))
        );
        inflight.sent_again(0, false);
        inflight.left(0, 3000);
        assert_eq!(inflight.find_lost(3000, &rtt, 0).0, 0);
        // The rest arrives, and three new ones: the second transmission was lost as well.
        for number in 6..9 {
            send(&mut inflight, number, 3100);
        }
        select(&mut inflight, &[0xFF], 4100);
        assert_eq!(inflight.find_lost(4100, &rtt, 0).0, 1);
        assert_eq!((inflight.under_way(), inflight.has_lost()), (0, true));
    }

    #[test]
    fn a_map_that_is_too_long_is_harmless() {
        let mut inflight = sent(0, 3);
        assert_eq!(select(&mut inflight, &[0xFF; 32], 2000), 2);
        assert_eq!(select(&mut inflight, &[0xFF; 32], 2000), 0);
    }
}
