//! What the path carries: the size of frames in use, the frames that search for it, and what a change of the size
//! means for the flow.

use std::ops::Range;

use super::SendSide;
use crate::config::{Config, Stats};
use crate::env::{Env, Level};
use crate::frame::{HEADER, Kind, MTU_MIN, TRAILER, body_max, u16_at};
use crate::framing::Output;
use crate::seal::SEAL;
use crate::search::{CONTROL, Change, Search};

/// Lengths of TRYs of [`Connection::ask`](crate::Connection::ask): those of a search are others.
pub const ASKS: Range<u16> = CONTROL + 1..MTU_MIN as u16;
/// Bytes of the body of a TRIED.
const TRIED: usize = 2;

/// The path to the peer.
pub(super) struct Path {
    search: Search,
    /// Bytes for the parts of one DATA frame.
    room: usize,
    /// The size that the owner knows.
    reported: u16,
    /// Length of the last TRY that was answered.
    answered: Option<u16>,
    black_holes: u64,
    /// Bytes of a seal.
    seal: usize,
    mtu: u16,
    shared: bool,
    blind: bool,
}

impl Path {
    pub(super) fn new(config: &Config) -> Path {
        let blind = config.level == Level::Unreliable;
        let search = Search::new(config.mtu, config.shared_path, blind, config.now_ns);
        let seal = if config.seal.is_some() { SEAL } else { 0 };
        Path {
            search,
            room: body_max(usize::from(search.size())) - seal,
            reported: search.size(),
            answered: None,
            black_holes: 0,
            seal,
            mtu: config.mtu,
            shared: config.shared_path,
            blind,
        }
    }

    /// When the search continues.
    pub(super) fn deadline(&self) -> u64 {
        self.search.deadline()
    }

    /// Frames are lost repeatedly: they may be too long for the path.
    pub(super) fn suspect(&mut self, now_ns: u64) {
        self.search.suspect(now_ns);
    }
}

impl SendSide {
    /// Bytes for the parts of one DATA frame.
    pub(crate) fn room(&self) -> usize {
        self.path.room
    }

    /// The largest frame in use.
    pub(crate) fn frame_bytes(&self) -> u16 {
        self.path.search.size()
    }

    /// Adds the counters of this side.
    #[inline(always)]
    pub(crate) fn count(&self, stats: &mut Stats) {
        self.flow.count(stats);
        stats.black_holes = self.path.black_holes;
    }

    /// Continues the search if it is due.
    #[cold]
    pub(crate) fn search_path<E: Env>(&mut self, out: &mut Output<'_, E>) {
        let now_ns = out.framing.now_ns();
        let wait_ns = self.flow.answer_ns();
        while self.path.deadline() <= now_ns {
            let Some(frame) = out.env.frame() else {
                return self.path.search.postpone(now_ns);
            };
            let before = self.frame_bytes();
            let (change, tried) = self.path.search.due(now_ns, wait_ns);
            self.path_changed(before, change, out.env);
            if let Some(bytes) = tried {
                send_try(frame, bytes, out);
            } else {
                out.env.take_back(frame);
            }
        }
    }

    /// Handles the body of a TRIED.
    #[cold]
    pub(crate) fn path_tried<E: Env>(&mut self, body: &[u8], now_ns: u64, env: &mut E) {
        if body.len() == TRIED {
            let (before, bytes) = (self.frame_bytes(), u16_at(body, 0));
            self.path.answered = Some(bytes);
            let change = self.path.search.answered(bytes, now_ns);
            self.path_changed(before, change, env);
        }
    }

    fn path_changed<E: Env>(&mut self, before: u16, change: Change, env: &mut E) {
        let size = self.frame_bytes();
        let path = &mut self.path;
        path.room = body_max(usize::from(size)) - path.seal;
        let black_hole = change == Change::BlackHole;
        path.black_holes += u64::from(black_hole);
        self.flow.resize(before, size, black_hole);
        if black_hole || (change == Change::Found && size != path.reported) {
            path.reported = size;
            env.path_carries(size, black_hole);
        }
    }

    /// Frames have at most so many bytes from now on.
    pub(crate) fn limit_frames(&mut self, bytes: u16) {
        let path = &mut self.path;
        path.mtu = path.mtu.min(bytes);
        path.search.limit(bytes);
        path.room = body_max(usize::from(path.search.size())) - path.seal;
    }

    /// The peer is at another address of the network: what is known of the path does not hold for this one.
    pub(crate) fn path_is_new(&mut self, now_ns: u64) {
        let path = &mut self.path;
        if path.shared {
            path.search = Search::new(path.mtu, true, path.blind, now_ns);
            path.room = body_max(usize::from(path.search.size())) - path.seal;
            self.flow.start_again();
        }
    }

    /// Returns the length of the last TRY that was answered; once.
    pub(crate) fn take_path_answer(&mut self) -> Option<u16> {
        self.path.answered.take()
    }
}

/// Sends a TRY of this length.
pub(crate) fn send_try<E: Env>(mut frame: E::Frame, bytes: u16, out: &mut Output<'_, E>) {
    let body = body_max(usize::from(bytes)) - out.framing.seal_bytes();
    // Buffers hold earlier frames, perhaps of other connections.
    frame.as_mut()[HEADER..HEADER + body].fill(0);
    let header = out.header(Kind::Try);
    out.send(frame, &header, body);
}

/// Answers a TRY whose body, without its seal, has this length. If the device is full the TRY counts as lost.
#[cold]
pub(crate) fn send_tried<E: Env>(body: usize, out: &mut Output<'_, E>) {
    if let Some(mut frame) = out.env.frame() {
        let length = HEADER + body + out.framing.seal_bytes() + TRAILER;
        let answer = &mut frame.as_mut()[HEADER..HEADER + TRIED];
        answer.copy_from_slice(&(length as u16).to_be_bytes());
        let header = out.header(Kind::Tried);
        out.send(frame, &header, TRIED);
    }
}
