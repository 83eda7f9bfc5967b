//! What the path carries: the size of frames in use, and the frames that search for it.

use std::ops::Range;

use crate::config::Config;
use crate::env::{Level, Transmit};
use crate::frame::{HEADER, Kind, MTU_MIN, TRAILER, body_max, u16_at};
use crate::framing::Output;
use crate::seal::SEAL;
use crate::search::{CONTROL, Change, Search};

/// Lengths of TRYs of [`Connection::ask`](crate::Connection::ask): those of a search are others.
pub const ASKS: Range<u16> = CONTROL + 1..MTU_MIN as u16;
/// Bytes of the body of a TRIED.
const TRIED: usize = 2;

/// The path to the peer.
pub(crate) struct Path {
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
    pub(crate) fn new(config: &Config) -> Path {
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

    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// The largest frame in use.
    pub(crate) fn size(&self) -> u16 {
        self.search.size()
    }

    pub(crate) fn black_holes(&self) -> u64 {
        self.black_holes
    }

    /// When the search continues.
    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        self.search.deadline()
    }

    /// Frames are lost repeatedly: they may be too long for the path.
    #[cold]
    pub(crate) fn suspect(&mut self, now_ns: u64) {
        self.search.suspect(now_ns);
    }

    /// Begins anew if the path has other users. Returns whether it does.
    pub(crate) fn start_again(&mut self, now_ns: u64) -> bool {
        if self.shared {
            self.search = Search::new(self.mtu, true, self.blind, now_ns);
            self.set_room();
        }
        self.shared
    }

    /// The device is full: the search continues later.
    pub(crate) fn postpone(&mut self, now_ns: u64) {
        self.search.postpone(now_ns);
    }

    /// The deadline has passed. Returns what has changed, and the length of a TRY to send.
    pub(crate) fn due(&mut self, now_ns: u64, wait_ns: u64) -> (Change, Option<u16>) {
        let (change, size) = self.search.due(now_ns, wait_ns);
        self.set_room();
        (change, size)
    }

    /// A TRIED with this body has arrived. Returns what has changed.
    pub(crate) fn tried(&mut self, body: &[u8], now_ns: u64) -> Change {
        if body.len() != TRIED {
            return Change::Nothing;
        }
        let bytes = u16_at(body, 0);
        self.answered = Some(bytes);
        let change = self.search.answered(bytes, now_ns);
        self.set_room();
        change
    }

    /// Returns the length of the last TRY that was answered; once.
    pub(crate) fn take_answer(&mut self) -> Option<u16> {
        self.answered.take()
    }

    /// Counts a black hole. Returns whether the owner must be informed of the size in use.
    pub(crate) fn report(&mut self, change: Change) -> bool {
        let black_hole = change == Change::BlackHole;
        self.black_holes += u64::from(black_hole);
        let report = black_hole || (change == Change::Found && self.size() != self.reported);
        if report {
            self.reported = self.size();
        }
        report
    }

    fn set_room(&mut self) {
        self.room = body_max(usize::from(self.size())) - self.seal;
    }
}

/// Sends a TRY of this length; `sequence` is the number of the next DATA frame.
pub(crate) fn send_try<T: Transmit>(
    mut frame: T::Frame,
    bytes: u16,
    sequence: u32,
    out: &mut Output<'_, T>,
) {
    let body = body_max(usize::from(bytes)) - out.seal_bytes();
    // Buffers hold earlier frames, perhaps of other connections.
    frame.as_mut()[HEADER..HEADER + body].fill(0);
    let header = out.header(Kind::Try, sequence);
    out.send(frame, &header, body);
}

/// Answers a TRY whose body, without its seal, has this length. If the device is full the TRY counts as lost.
#[cold]
pub(crate) fn send_tried<T: Transmit>(body: usize, sequence: u32, out: &mut Output<'_, T>) {
    let Some(mut frame) = out.frame() else {
        return;
    };
    let length = HEADER + body + out.seal_bytes() + TRAILER;
    let answer = &mut frame.as_mut()[HEADER..HEADER + TRIED];
    answer.copy_from_slice(&(length as u16).to_be_bytes());
    let header = out.header(Kind::Tried, sequence);
    out.send(frame, &header, TRIED);
}
