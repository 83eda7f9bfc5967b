//! The flow of DATA frames in one direction: when the next one may leave, and what an acknowledgement, a congestion
//! mark or a timeout changes.

use crate::config::{Config, NEVER, Stats, WINDOW};
use crate::ecn::{Marks, Meaning};
use crate::env::Transmit;
use crate::frame::{HEADER, Header, Kind};
use crate::framing::Output;
use crate::inflight::{Inflight, Load, Progress};
use crate::pace::Pace;
use crate::rtt::Rtt;

/// How long the oldest frame may be retransmitted in vain while the peer answers PROBEs. Then the path is broken: it
/// carries PROBEs and not our frames, not even the smallest.
const STUCK_NS: u64 = 7_000_000_000;
/// The same for the first frame, until frames leave without the ECT codepoint.
const REFUSED_NS: u64 = 1_000_000_000;

/// What may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    Nothing,
    /// The oldest lost frame.
    Retransmission,
    /// A new frame.
    New,
}

/// What a retransmission timeout shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeout {
    /// Frames are lost repeatedly: they may be too long for the path.
    pub(crate) suspect_path: bool,
    /// No frame has arrived yet: a router may drop frames with the ECT codepoint.
    pub(crate) suspect_ect: bool,
    /// The path is broken.
    pub(crate) is_stuck: bool,
}

/// Frames in flight, with the congestion window, the pace and the timers.
pub(crate) struct Flow {
    inflight: Inflight,
    rtt: Rtt,
    pace: Pace,
    marks: Marks,
    /// The peer's window, at most `window_max`.
    window: u32,
    window_max: u16,
    retry_at_ns: u64,
    /// When the next paced frame may leave.
    pace_at_ns: u64,
    /// Sum of the timeouts of the oldest frame.
    stuck_ns: u64,
    /// The timeout has expired, and nothing has been retransmitted since.
    overdue: bool,
    retransmissions: u64,
    timeouts: u64,
    repeated_timeouts: u64,
}

impl Flow {
    pub(crate) fn new(config: &Config) -> Flow {
        let (first, shared_path) = (config.first(config.side), config.shared_path);
        Flow {
            inflight: Inflight::new(first, shared_path),
            rtt: Rtt::new(shared_path),
            pace: Pace::new(shared_path),
            marks: Marks::new(first),
            window: u32::from(WINDOW),
            window_max: config.window(),
            retry_at_ns: NEVER,
            pace_at_ns: NEVER,
            stuck_ns: 0,
            overdue: false,
            retransmissions: 0,
            timeouts: 0,
            repeated_timeouts: 0,
        }
    }

    /// Frames in flight.
    pub(crate) fn inflight(&self) -> &Inflight {
        &self.inflight
    }

    /// How long an answer may take.
    pub(crate) fn answer_ns(&self) -> u64 {
        self.rtt.answer_ns()
    }

    /// Adds the counters.
    #[inline(always)]
    pub(crate) fn count(&self, stats: &mut Stats) {
        stats.sent_again = self.retransmissions;
        stats.timeouts = self.timeouts;
        stats.repeated_timeouts = self.repeated_timeouts;
    }

    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        let lost = self.inflight.deadline();
        self.retry_at_ns.min(self.pace_at_ns).min(lost)
    }

    /// Whether a frame may leave now that need not ask for an acknowledgement, and none is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.inflight.is_empty() && !self.pace.is_careful() && self.window > 1
    }

    /// Continues after a pause that the pace has imposed. A late sender sends what would have left meanwhile.
    #[inline(always)]
    pub(crate) fn resume<T: Transmit>(&mut self, out: &mut Output<'_, T>) {
        let held_ns = std::mem::replace(&mut self.pace_at_ns, NEVER);
        if held_ns != NEVER {
            out.read_clock();
            if held_ns <= out.framing.now_ns() {
                self.pace.resume(out.framing.now_ns(), held_ns);
            }
        }
    }

    /// What window and pace permit to send now.
    #[inline(always)]
    pub(crate) fn permit<T: Transmit>(&mut self, out: &mut Output<'_, T>) -> Permit {
        if self.overdue && self.inflight.has_lost() {
            // Regardless of the window: all frames in flight may be lost.
            return Permit::Retransmission;
        }
        if self.inflight.in_flight() >= self.pace.window() {
            return Permit::Nothing;
        }
        let next_ns = self.pace.next_ns(self.rtt.smoothed_ns());
        if next_ns > out.framing.now_ns() {
            out.read_clock();
        }
        if next_ns > out.framing.now_ns() {
            // Continues with the next acknowledgement, or else at this time.
            self.pace_at_ns = next_ns;
            return Permit::Nothing;
        }
        if self.inflight.has_lost() {
            Permit::Retransmission
        } else if self.has_window() {
            Permit::New
        } else {
            Permit::Nothing
        }
    }

    /// Whether the peer's window has room for a new frame.
    fn has_window(&self) -> bool {
        self.inflight.span() < self.window
    }

    /// Adds a new frame. Returns its sequence number, and whether no frame can follow before it is acknowledged.
    #[inline(always)]
    pub(crate) fn push(&mut self, load: Load) -> (u32, bool) {
        let sequence = self.inflight.next();
        self.inflight.push(load);
        let full = self.inflight.in_flight() >= self.pace.window() || !self.has_window();
        (sequence, full)
    }

    /// A frame of an Unreliable connection was sent.
    pub(crate) fn skip(&mut self) {
        self.inflight.skip();
    }

    /// The frame in flight with this number was sent.
    #[inline(always)]
    pub(crate) fn sent(&mut self, sequence: u32, now_ns: u64) {
        self.inflight.sent(sequence, now_ns);
        self.pace.sent(now_ns, self.rtt.smoothed_ns());
        if self.retry_at_ns == NEVER {
            self.retry_at_ns = now_ns + self.rtt.timeout_ns();
        }
    }

    /// Sends a DATA frame that is in flight, whose body ends at `end`. The time is read afterwards, so that the frame
    /// does not wait for the clock.
    #[inline(always)]
    pub(crate) fn send<T: Transmit>(
        &mut self,
        frame: T::Frame,
        header: &Header,
        end: usize,
        out: &mut Output<'_, T>,
    ) {
        out.send(frame, header, end - HEADER);
        out.read_clock();
        self.sent(header.sequence, out.framing.now_ns());
    }

    /// The same for a slice after which others follow: the DATA frame stays lost until its last slice was sent.
    pub(crate) fn send_slice<T: Transmit>(
        &mut self,
        frame: T::Frame,
        header: &Header,
        end: usize,
        out: &mut Output<'_, T>,
    ) {
        out.send(frame, header, end - HEADER);
        out.read_clock();
        self.pace.sent(out.framing.now_ns(), self.rtt.smoothed_ns());
    }

    /// The oldest lost frame is sent again now.
    pub(crate) fn retransmit(&mut self, sequence: u32) {
        let overdue = std::mem::take(&mut self.overdue);
        self.inflight.retransmit(sequence, overdue);
        self.retransmissions += 1;
    }

    /// A lost frame is not sent again, since its operation has failed.
    pub(crate) fn give_up(&mut self, sequence: u32) {
        self.inflight.give_up(sequence);
    }

    /// Handles the acknowledgement in a header; `body` is the map of an ACK. Returns whether the oldest frame has
    /// arrived.
    #[inline(always)]
    pub(crate) fn acknowledged(&mut self, header: &Header, body: &[u8], now_ns: u64) -> bool {
        let sequence = header.acknowledged;
        let progress = self.inflight.acknowledged(sequence, now_ns, &self.rtt);
        let Some(mut progress) = progress else {
            return false;
        };
        if header.kind == Kind::Ack && !body.is_empty() {
            self.inflight
                .selected(body, now_ns, &self.rtt, &mut progress);
        }
        self.apply(header, &progress, now_ns);
        progress.advanced
    }

    /// The same for the only frame in flight; false if it is not the only one, or is not acknowledged.
    #[inline(always)]
    pub(crate) fn only_one_acknowledged(&mut self, header: &Header, now_ns: u64) -> bool {
        let sequence = header.acknowledged;
        let progress = self.inflight.only_one_acknowledged(sequence, now_ns);
        if let Some(progress) = &progress {
            self.apply(header, progress, now_ns);
        }
        progress.is_some()
    }

    #[inline(always)]
    fn apply(&mut self, header: &Header, progress: &Progress, now_ns: u64) {
        // A window of 0 would stop the connection forever.
        self.window = u32::from(header.window.min(self.window_max).max(1));
        if self.marks.differ(header.marks) {
            self.count_marks(header.marks, now_ns);
        }
        if progress.arrived == 0 && !progress.advanced {
            return;
        }
        if progress.spurious {
            self.pace.undo_timeout();
        }
        if progress.all_late {
            self.pace.undo_loss();
        }
        self.rtt.progress();
        progress.measure(&mut self.rtt);
        let in_flight = self.inflight.in_flight();
        self.pace
            .delivered(progress.arrived, in_flight, now_ns, &self.rtt);
        if self.inflight.is_empty() {
            self.inflight.all_arrived();
            self.retry_at_ns = NEVER;
        } else {
            self.retry_at_ns = now_ns + self.rtt.timeout_ns();
            self.find_lost(now_ns);
        }
        if progress.advanced {
            self.stuck_ns = 0;
        }
    }

    #[inline(always)]
    fn find_lost(&mut self, now_ns: u64) {
        let reduced_ns = self.pace.reduced_ns();
        let (lost, sent_ns) = self.inflight.find_lost(now_ns, &self.rtt, reduced_ns);
        self.pace.lost(lost, sent_ns, now_ns);
    }

    /// The peer's count of marked frames has changed.
    #[cold]
    fn count_marks(&mut self, count: u8, now_ns: u64) {
        let meaning = self.marks.received(count, self.inflight.first());
        if meaning == Meaning::All && self.pace.forget_marks(now_ns) {
            self.marks.ignore();
        } else if meaning != Meaning::Nothing {
            let sent_ns = now_ns.saturating_sub(self.inflight.latest_rtt_ns());
            self.pace.marked(sent_ns, now_ns);
        }
    }

    /// Runs expired timers. `probing`: a PROBE is unanswered.
    pub(crate) fn timeout(&mut self, probing: bool, now_ns: u64) -> Option<Timeout> {
        if self.inflight.deadline() <= now_ns {
            self.find_lost(now_ns);
        }
        if self.retry_at_ns > now_ns {
            return None;
        }
        // A timeout counts with its nominal duration, however late this function is called. While the peer is silent
        // it does not count: the keepalive handles that.
        if !probing {
            self.stuck_ns += self.rtt.timeout_ns();
        }
        self.inflight.lose_first();
        self.overdue = true;
        let again = self.rtt.back_off();
        self.pace.timed_out(again, now_ns);
        self.retry_at_ns = now_ns + self.rtt.timeout_ns();
        self.timeouts += 1;
        let suspect_path = again && !probing;
        self.repeated_timeouts += u64::from(suspect_path);
        Some(Timeout {
            suspect_path,
            suspect_ect: self.stuck_ns > REFUSED_NS && self.rtt.smoothed_ns() == 0,
            is_stuck: self.stuck_ns > STUCK_NS,
        })
    }

    /// The length of frames has changed. If the path swallowed the longer ones, this explains the timeouts so far.
    pub(crate) fn resize(&mut self, before: u16, after: u16, black_hole: bool) {
        if before != after {
            self.pace.resize(before, after);
        }
        if black_hole {
            self.stuck_ns = 0;
        }
    }

    /// The path has been replaced by another one with other users.
    pub(crate) fn start_again(&mut self) {
        self.pace = Pace::new(true);
    }
}
