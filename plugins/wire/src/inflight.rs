//! Frames in flight: the content of each, so that it can be rebuilt, and which of them the peer has.

use std::collections::VecDeque;

use crate::answers::Answer;
use crate::loss::{Judgement, Loss, Transmission};
use crate::rtt::Rtt;

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
    Answer(Answer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InFlight,
    Lost,
    Arrived,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    load: Load,
    state: State,
    last: Transmission,
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
    in_flight: u32,
    lost: u32,
    loss: Loss,
}

impl Inflight {
    pub(crate) fn new(first: u32, shared_path: bool) -> Inflight {
        Inflight {
            flights: VecDeque::new(),
            first,
            transmissions: 0,
            in_flight: 0,
            lost: 0,
            loss: Loss::new(shared_path),
        }
    }

    /// Oldest unacknowledged frame.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// Number of the next frame.
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.flights.len() as u32)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Frames between the oldest and the next.
    pub(crate) fn span(&self) -> u32 {
        self.flights.len() as u32
    }

    /// Frames that are in the network, as far as is known.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(crate) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// When the next frame counts as lost if it is not acknowledged before.
    pub(crate) fn deadline(&self) -> u64 {
        self.loss.deadline()
    }

    /// Whether a piece of an answer to an RDMA Read has not arrived yet.
    pub(crate) fn has_answer(&self) -> bool {
        let answer = |f: &Flight| f.state != State::Arrived && matches!(f.load, Load::Answer(_));
        self.flights.iter().any(answer)
    }

    /// Round trip of the latest transmission that has arrived.
    pub(crate) fn latest_rtt_ns(&self) -> u64 {
        self.loss.latest_rtt_ns()
    }

    /// Adds a new frame.
    #[inline(always)]
    pub(crate) fn push(&mut self, load: Load) {
        self.flights.push_back(Flight {
            load,
            state: State::InFlight,
            last: Transmission {
                number: self.transmissions,
                sent_ns: 0,
                again: false,
                episode: 0,
            },
        });
        self.transmissions = self.transmissions.wrapping_add(1);
        self.in_flight += 1;
    }

    /// A frame was sent at this time.
    #[inline(always)]
    pub(crate) fn sent(&mut self, sequence: u32, now_ns: u64) {
        let place = sequence.wrapping_sub(self.first) as usize;
        self.flights[place].last.sent_ns = now_ns;
    }

    /// A frame that is never acknowledged has been sent.
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
    pub(crate) fn retransmit(&mut self, sequence: u32, overdue: bool) {
        if overdue {
            self.loss.retried(self.transmissions);
        }
        let place = sequence.wrapping_sub(self.first) as usize;
        let flight = &mut self.flights[place];
        flight.last.number = self.transmissions;
        flight.last.again = true;
        flight.state = State::InFlight;
        self.transmissions = self.transmissions.wrapping_add(1);
        self.lost -= 1;
        self.in_flight += 1;
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
            self.arrived(arrived, &flight, now_ns, rtt, &mut progress);
        }
        self.first = sequence;
        progress.advanced = count > 0;
        Some(progress)
    }

    /// The same for the only frame in flight, if it was sent once and no timeout is undecided; `None` otherwise.
    #[inline(always)]
    pub(crate) fn only_one_acknowledged(&mut self, sequence: u32, now_ns: u64) -> Option<Progress> {
        let flight = *self.flights.front()?;
        let is_only_one = sequence.wrapping_sub(self.first) == 1 && self.flights.len() == 1;
        let is_first = flight.state == State::InFlight && !flight.last.again;
        if !is_only_one || !is_first || self.loss.is_undecided() {
            return None;
        }
        self.flights.clear();
        (self.first, self.in_flight) = (sequence, 0);
        let rtt_ns = now_ns.saturating_sub(flight.last.sent_ns);
        let number = flight.last.number;
        self.loss.arrived(sequence.wrapping_sub(1), number, rtt_ns);
        Some(Progress {
            arrived: 1,
            advanced: true,
            shortest_ns: rtt_ns,
            longest_ns: rtt_ns,
            ..Progress::NONE
        })
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
                self.arrived(sequence, &flight, now_ns, rtt, progress);
                self.flights[place].state = State::Arrived;
                self.loss.arrived_early(sequence);
            }
        }
    }

    /// All frames have been acknowledged.
    pub(crate) fn all_arrived(&mut self) {
        self.loss.all_arrived();
    }

    /// Counts a frame that has arrived.
    #[inline(always)]
    fn arrived(
        &mut self,
        sequence: u32,
        flight: &Flight,
        now_ns: u64,
        rtt: &Rtt,
        progress: &mut Progress,
    ) {
        let last = &flight.last;
        match flight.state {
            State::Arrived => return,
            State::Lost => {
                self.lost -= 1;
                progress.all_late |= self.loss.was_late(last.episode, now_ns, rtt);
            }
            State::InFlight => self.in_flight -= 1,
        }
        progress.arrived += 1;
        if last.again {
            let again = flight.state == State::InFlight;
            progress.all_late |= self.loss.again_arrived(last, again, now_ns, rtt);
            return;
        }
        let rtt_ns = now_ns.saturating_sub(last.sent_ns);
        progress.shortest_ns = progress.shortest_ns.min(rtt_ns);
        progress.longest_ns = progress.longest_ns.max(rtt_ns);
        progress.spurious |= self.loss.arrived(sequence, last.number, rtt_ns);
    }

    /// Finds lost frames by the transmissions that have overtaken them. Returns the number of new ones, and when the
    /// last of them was sent. The congestion window was reduced last at `reduced_ns`.
    pub(crate) fn find_lost(&mut self, now_ns: u64, rtt: &Rtt, reduced_ns: u64) -> (u32, u64) {
        let oldest = self.flights.front().map(|flight| &flight.last);
        let Some(rule) = self.loss.rule(oldest, now_ns, rtt) else {
            return (0, 0);
        };
        let (mut found, mut since, mut sent_ns) = (0, 0, 0);
        for flight in &mut self.flights {
            if flight.state != State::InFlight {
                continue;
            }
            match rule.judge(&flight.last) {
                Judgement::InOrder => {}
                Judgement::LostAt(at_ns) => self.loss.expect(at_ns),
                Judgement::Lost => {
                    flight.state = State::Lost;
                    let next = flight.last.sent_ns >= reduced_ns;
                    flight.last.episode = self.loss.episode(next);
                    sent_ns = sent_ns.max(flight.last.sent_ns);
                    since += u32::from(next);
                    found += 1;
                }
            }
        }
        if found > 0 {
            self.loss.claim(since, found - since);
            self.in_flight -= found;
            self.lost += found;
        }
        (found, sent_ns)
    }

    /// The retransmission timeout: the oldest frame counts as lost.
    pub(crate) fn lose_first(&mut self) {
        if let Some(flight) = self.flights.front_mut()
            && flight.state == State::InFlight
        {
            flight.state = State::Lost;
            // Not by the rule: nothing is learned from it.
            flight.last.episode = self.loss.episode(false).wrapping_sub(1);
            self.in_flight -= 1;
            self.lost += 1;
        }
    }

    /// A lost frame is not retransmitted: its operation has failed.
    pub(crate) fn give_up(&mut self, sequence: u32) {
        let place = sequence.wrapping_sub(self.first) as usize;
        self.flights[place].state = State::Arrived;
        self.lost -= 1;
    }
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
        inflight.sent(sequence, now_ns);
    }

    fn sent(first: u32, count: u32) -> Inflight {
        let mut inflight = Inflight::new(first, false);
        for number in 0..count {
            send(&mut inflight, number, 1000);
        }
        inflight
    }

    /// Returns how many are new.
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
        assert_eq!((inflight.first(), inflight.in_flight()), (1, 2));
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
        assert_eq!(inflight.deadline(), 1000 + 200_000, "but time will be");
        select(&mut inflight, &[0b111], 2000);
        assert_eq!(inflight.find_lost(2000, &rtt, 0).0, 1);
        assert_eq!(
            inflight.lost(),
            Some((0, Load::Whole { first: 0, count: 1 }))
        );
        inflight.retransmit(0, false);
        inflight.sent(0, 3000);
        assert_eq!(inflight.find_lost(3000, &rtt, 0).0, 0);
        // The rest arrives, and three new ones: the second transmission was lost as well.
        for number in 6..9 {
            send(&mut inflight, number, 3100);
        }
        select(&mut inflight, &[0xFF], 4100);
        assert_eq!(inflight.find_lost(4100, &rtt, 0).0, 1);
        assert_eq!((inflight.in_flight(), inflight.has_lost()), (0, true));
    }

    #[test]
    fn a_map_that_is_too_long_is_harmless() {
        let mut inflight = sent(0, 3);
        assert_eq!(select(&mut inflight, &[0xFF; 32], 2000), 2);
        assert_eq!(select(&mut inflight, &[0xFF; 32], 2000), 0);
    }
}
