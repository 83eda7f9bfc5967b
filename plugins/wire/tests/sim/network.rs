//! The network between the two hosts.

use vipl_sys::random::Random;

/// Behaviour of a router regarding congestion marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// Clears marks.
    ClearsMarks,
    /// Marks frames when the queue exceeds this length in bytes.
    MarksAbove(u64),
    /// Marks all frames.
    MarksAll,
    /// Drops frames that may be marked.
    Refuses,
}

/// A frame that has arrived, and whether it is marked.
pub type Carried = (Vec<u8>, bool);

/// Faults of the network, in permille and nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub latency_ns: u64,
    pub jitter_ns: u64,
    pub loss: u64,
    pub duplication: u64,
    pub reordering: u64,
    /// Maximum delay of a reordered frame; 0: three times the latency.
    pub hold_ns: u64,
    pub corruption: u64,
    /// Bytes per microsecond; 0: no limit.
    pub rate: u64,
    /// Length of the queue in bytes, beyond which frames are dropped.
    pub queue: u64,
    /// The router before the line.
    pub router: Router,
    /// Larger frames do not arrive; 0: all do.
    pub largest: usize,
    /// They are fragmented instead, and arrive if all fragments do.
    pub fragments: bool,
    /// Frames of later kinds do not arrive: the peer does not know them. 0: it knows all.
    pub newest_kind: u8,
    /// Nothing arrives between these times.
    pub cut: Option<(u64, u64)>,
}

impl Faults {
    pub const NONE: Faults = Faults {
        latency_ns: 20_000,
        jitter_ns: 0,
        loss: 0,
        duplication: 0,
        reordering: 0,
        hold_ns: 0,
        corruption: 0,
        rate: 0,
        queue: 0,
        router: Router::ClearsMarks,
        largest: 0,
        fragments: false,
        newest_kind: 0,
        cut: None,
    };
}

/// One direction.
pub struct Line {
    pub faults: Faults,
    free_ns: u64,
    last_ns: u64,
    pub frames: u64,
    pub lost: u64,
}

impl Line {
    pub fn new(faults: Faults) -> Line {
        Line {
            faults,
            free_ns: 0,
            last_ns: 0,
            frames: 0,
            lost: 0,
        }
    }

    /// Bytes that wait for the line.
    pub fn waiting(&self, now: u64) -> u64 {
        self.free_ns.saturating_sub(now) * self.faults.rate / 1000
    }

    /// Whether a frame that may be marked is.
    pub fn marks(&self, now: u64) -> bool {
        match self.faults.router {
            Router::ClearsMarks | Router::Refuses => false,
            Router::MarksAbove(bytes) => self.waiting(now) > bytes,
            Router::MarksAll => true,
        }
    }

    /// When a packet leaves the queue before the line; `None`: the queue is full.
    pub fn leaves(&mut self, bytes: usize, now: u64) -> Option<u64> {
        let Faults { rate, queue, .. } = self.faults;
        if rate == 0 {
            return Some(now);
        }
        let start = now.max(self.free_ns);
        if self.waiting(now) > queue {
            return None;
        }
        self.free_ns = start + bytes as u64 * 1000 / rate;
        Some(self.free_ns)
    }

    /// When and how a frame arrives: not at all, once or twice.
    pub fn carry(
        &mut self,
        mut frame: Vec<u8>,
        may_mark: bool,
        now: u64,
        rng: &mut Random,
    ) -> Vec<(u64, Carried)> {
        let faults = self.faults;
        self.frames += 1;
        let cut = faults
            .cut
            .is_some_and(|(from, to)| (from..to).contains(&now));
        let pieces = match faults.largest {
            0 => 1,
            largest => frame.len().div_ceil(largest),
        };
        let large = pieces > 1 && !faults.fragments;
        let unknown = faults.newest_kind > 0 && frame[1] > faults.newest_kind;
        let refused = may_mark && faults.router == Router::Refuses;
        let marked = may_mark && self.marks(now);
        let stopped = cut || large || unknown || refused;
        if stopped || (0..pieces).any(|_| rng.below(1000) < faults.loss) {
            self.lost += 1;
            return Vec::new();
        }
        let Some(start) = self.leaves(frame.len(), now) else {
            self.lost += 1;
            return Vec::new();
        };
        let mut at = start + faults.latency_ns + rng.below(faults.jitter_ns + 1);
        if rng.below(1000) < faults.reordering {
            let most = match faults.hold_ns {
                0 => 3 * faults.latency_ns,
                hold_ns => hold_ns,
            };
            at += rng.between(1, most);
        } else {
            // Jitter alone keeps the order.
            at = at.max(self.last_ns);
            self.last_ns = at;
        }
        if rng.below(1000) < faults.corruption {
            self.lost += 1;
            for _ in 0..rng.between(1, 4) {
                let bit = rng.below(8 * frame.len() as u64) as usize;
                frame[bit / 8] ^= 1 << (bit % 8);
            }
        }
        // Short frames are padded by the link.
        if frame.len() < 46 {
            frame.resize(46, 0);
        }
        let mut arrivals = Vec::new();
        if rng.below(1000) < faults.duplication {
            arrivals.push((
                at + rng.below(2 * faults.latency_ns),
                (frame.clone(), marked),
            ));
        }
        arrivals.push((at, (frame, marked)));
        arrivals
    }
}
