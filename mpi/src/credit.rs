//! Flow control of one connection: each side may have as many messages under way as the other has receives posted.
//!
//! VIA breaks a connection when a message finds no receive, so both sides count. The receiver reports the total number of
//! receives that it has ever posted, in every message and, without traffic in that direction, in a message of its own. The
//! sender subtracts the number of messages that it has ever sent. Both numbers wrap.
//!
//! ```text
//!   posted by the peer ──────────────────────────────┐
//!   sent by us ─────────────────────┐                │
//!                                   ▼◀── available ─▶▼
//!                                            │reserve│   for messages about the connection only
//! ```
//!
//! Why this cannot lock up: application data stops when only the reserve is left. A message about the connection never
//! waits for the application at its receiver, which posts the receive again at once; so the reserve comes back with the
//! next message in the other direction. Two sides that both have nothing but their reserve left owe each other a
//! message of credit only after they have freed receives, and such a message is due for half a window of freed receives:
//! far fewer are sent than are freed.

/// Receives that are kept for messages about the connection: credit, and both parts of reads that are emulated.
pub(crate) const RESERVE: u32 = 2 + 2 * READS;
/// Emulated reads that one side may have under way.
pub(crate) const READS: u32 = 3;
/// Smallest window: half of it must exceed the reserve.
pub(crate) const SMALLEST_WINDOW: u32 = 2 * RESERVE + 8;

/// The counts of one side.
#[derive(Debug, Default)]
pub(crate) struct Credit {
    /// Messages that we have sent.
    sent: u32,
    /// Receives that the peer has posted, as far as we know.
    granted: u32,
    /// Receives that we have posted.
    posted: u32,
    /// How many of them the peer knows of.
    reported: u32,
    /// Receives that we keep posted when all is quiet.
    window: u32,
}

impl Credit {
    /// With a window of receives posted. Until the peer reports its own window it is known to have posted one receive.
    pub(crate) fn new(window: u32) -> Credit {
        Credit {
            granted: 1,
            posted: window,
            window,
            ..Credit::default()
        }
    }

    /// Whether application data may be sent.
    #[inline]
    pub(crate) fn for_data(&self) -> bool {
        self.available() > RESERVE
    }

    /// Whether a message about the connection may be sent.
    #[inline]
    pub(crate) fn for_control(&self) -> bool {
        self.available() > 0
    }

    #[inline]
    fn available(&self) -> u32 {
        let left = self.granted.wrapping_sub(self.sent);
        // A peer that takes back what it has granted gives a huge number: nothing is available then.
        if left > i32::MAX as u32 { 0 } else { left }
    }

    /// Counts a message that is about to be sent; returns the number that it reports.
    #[inline]
    pub(crate) fn send(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.reported = self.posted;
        self.posted
    }

    /// Counts a receive that was posted again.
    #[inline]
    pub(crate) fn posted_again(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// The peer reports the number of receives that it has posted. True: it grants more than before.
    #[inline]
    pub(crate) fn peer_posted(&mut self, granted: u32) -> bool {
        let more = granted.wrapping_sub(self.granted);
        let is_more = more != 0 && more <= i32::MAX as u32;
        if is_more {
            self.granted = granted;
        }
        is_more
    }

    /// Whether a report to the peer is due, if only in a message of its own.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.posted.wrapping_sub(self.reported) >= self.window / 2
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[derive(Clone, Copy)]
    enum Message {
        Data(u32),
        Credit(u32),
    }

    /// One side: receives hold data until the application takes it.
    struct Side {
        credit: Credit,
        holds: u32,
        received: u32,
    }

    impl Side {
        fn send(&mut self, to: &mut VecDeque<Message>) -> bool {
            let may = self.credit.for_data();
            if may {
                let reported = self.credit.send();
                to.push_back(Message::Data(reported));
            }
            may
        }

        fn arrive(&mut self, message: Message) {
            let (Message::Data(granted) | Message::Credit(granted)) = message;
            self.credit.peer_posted(granted);
            match message {
                Message::Data(_) => self.holds += 1,
                Message::Credit(_) => self.credit.posted_again(),
            }
        }

        fn take(&mut self, count: u32, to: &mut VecDeque<Message>) {
            for _ in 0..count.min(self.holds) {
                self.holds -= 1;
                self.received += 1;
                self.credit.posted_again();
            }
            self.report(to);
        }

        fn report(&mut self, to: &mut VecDeque<Message>) {
            if self.credit.owes() {
                assert!(self.credit.for_control(), "no credit for the report");
                let reported = self.credit.send();
                to.push_back(Message::Credit(reported));
            }
        }
    }

    fn side(window: u32, peer: u32, start: u32) -> Side {
        let mut credit = Credit::new(window);
        credit.posted = credit.posted.wrapping_add(start);
        credit.reported = credit.posted;
        credit.sent = start;
        credit.granted = start;
        credit.peer_posted(start.wrapping_add(peer));
        Side {
            credit,
            holds: 0,
            received: 0,
        }
    }

    /// Random orders of sending, delivering and taking: no message finds all receives occupied, and nothing locks up.
    #[test]
    fn never_more_than_posted_and_never_stuck() {
        let mut state = 0x2545_F491_4F6C_DD1Du64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for round in 0..400 {
            let start = if round % 2 == 0 { u32::MAX - 40 } else { 0 };
            let windows = [
                SMALLEST_WINDOW + random(60) as u32,
                SMALLEST_WINDOW + random(60) as u32,
            ];
            let mut sides = [
                side(windows[0], windows[1], start),
                side(windows[1], windows[0], start),
            ];
            let mut links = [VecDeque::new(), VecDeque::new()];
            let mut sent = [0, 0];
            for _ in 0..3000 {
                let who = random(2) as usize;
                match random(3) {
                    0 => sent[who] += u32::from(sides[who].send(&mut links[who])),
                    1 => {
                        if let Some(message) = links[1 - who].pop_front() {
                            sides[who].arrive(message);
                            assert!(
                                sides[who].holds <= windows[who],
                                "a message found no receive"
                            );
                            sides[who].report(&mut links[who]);
                        }
                    }
                    _ => sides[who].take(random(9) as u32, &mut links[who]),
                }
                for who in 0..2 {
                    let under_way = links[1 - who].len() as u32 + sides[who].holds;
                    assert!(under_way <= windows[who], "more under way than receives");
                }
            }
            // Whatever the state: once both take what they hold, both can send again.
            for _ in 0..4 {
                for who in 0..2 {
                    while let Some(message) = links[1 - who].pop_front() {
                        sides[who].arrive(message);
                    }
                    sides[who].take(u32::MAX, &mut links[who]);
                }
            }
            for who in 0..2 {
                assert_eq!(sides[1 - who].received, sent[who]);
                assert!(sides[who].credit.for_data(), "stuck");
            }
        }
    }

    #[test]
    fn a_peer_that_takes_credit_back_is_not_believed() {
        let mut credit = Credit::new(64);
        assert!(credit.peer_posted(20));
        assert!(!credit.peer_posted(10));
        assert!(credit.for_data());
        for _ in 0..20 {
            credit.send();
        }
        assert!(!credit.for_control());
        credit.send(); // an engine never does; even then nothing is available
        assert!(!credit.for_control());
    }
}
