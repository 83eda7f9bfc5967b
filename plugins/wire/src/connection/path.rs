//! What the path carries: TRYs and their answers, the size of frames, and slices of frames that have become too long.

use std::ops::Range;

use super::Connection;
use crate::env::{Env, Level};
use crate::frame::{HEADER, Header, Kind, MTU_MIN, TRAILER, body_max, u16_at};
use crate::pace::Pace;
use crate::seal::SEAL;
use crate::search::{CONTROL, Change, Search};

/// Lengths of TRYs of [`Connection::ask`]: those of a search are others.
pub const ASKS: Range<u16> = CONTROL + 1..MTU_MIN as u16;
/// Bytes of the body of a TRIED.
const TRIED: usize = 2;

impl Connection {
    /// Bytes that a seal adds to each frame.
    fn seal_bytes(&self) -> usize {
        if self.config.seal.is_some() { SEAL } else { 0 }
    }

    /// Bytes for the parts of a frame of this length.
    pub(super) fn room_of(&self, bytes: u16) -> usize {
        body_max(usize::from(bytes)) - self.seal_bytes()
    }

    /// The search is due.
    #[cold]
    pub(super) fn search_path<E: Env>(&mut self, env: &mut E) {
        let wait_ns = self.sender.rtt.answer_ns();
        while self.search.deadline() <= self.now_ns {
            let Some(frame) = env.frame() else {
                self.search.postpone(self.now_ns);
                return self.set_rare();
            };
            let (change, tried) = self.search.due(self.now_ns, wait_ns);
            self.path_changed(change, env);
            if let Some(bytes) = tried {
                self.send_try(frame, bytes, env);
            }
        }
    }

    /// The peer is at another address of the network: what is known of the path is not known of this one.
    pub fn path_is_new(&mut self, now_ns: u64) {
        if self.config.shared_path {
            self.now_ns = now_ns;
            let blind = self.config.level == Level::Unreliable;
            self.search = Search::new(self.config.mtu, true, blind, now_ns);
            self.sender.pace = Pace::new(true);
            self.size = self.search.size();
            self.room = self.room_of(self.size);
            self.set_rare();
        }
    }

    /// Frames are lost again and again: they may be too long for the path.
    #[cold]
    pub(super) fn suspect_path(&mut self) {
        self.search.suspect(self.now_ns);
        self.set_rare();
    }

    /// Sends a TRY of this length.
    fn send_try<E: Env>(&mut self, mut frame: E::Frame, bytes: u16, env: &mut E) {
        let body = self.room_of(bytes);
        let buffer = frame.as_mut();
        // Buffers hold earlier frames, perhaps of other connections.
        buffer[HEADER..HEADER + body].fill(0);
        let header = self.header(Kind::Try, self.sender.inflight.next());
        let bytes = header.emit_sealed(buffer, body, &mut self.seals);
        env.transmit(frame, bytes);
        self.stats.frames_sent += 1;
    }

    /// Handles a TRY whose body, without its seal, has this length.
    #[cold]
    pub(super) fn take_try<E: Env>(&mut self, body: usize, env: &mut E) {
        let Some(mut frame) = env.frame() else {
            return;
        };
        let length = HEADER + body + self.seal_bytes() + TRAILER;
        let buffer = frame.as_mut();
        buffer[HEADER..HEADER + TRIED].copy_from_slice(&(length as u16).to_be_bytes());
        let header = self.header(Kind::Tried, self.sender.inflight.next());
        let bytes = header.emit_sealed(buffer, TRIED, &mut self.seals);
        env.transmit(frame, bytes);
        self.stats.frames_sent += 1;
    }

    /// Asks whether the peer gets what is sent now: with a TRY of this length, of [`ASKS`], which
    /// [`Connection::take_answer`] gives when it has been answered.
    #[cold]
    pub fn ask<E: Env>(&mut self, bytes: u16, now_ns: u64, env: &mut E) {
        debug_assert!(ASKS.contains(&bytes));
        self.now_ns = now_ns;
        if let Some(frame) = env.frame() {
            self.send_try(frame, bytes, env);
        }
    }

    /// How long an answer may take.
    pub fn answer_ns(&self) -> u64 {
        self.sender.rtt.answer_ns()
    }

    /// The length of the last TRY that was answered; once.
    pub fn take_answer(&mut self) -> Option<u16> {
        self.answered.take()
    }

    /// Answers this TRY, which [`Connection::received`] has just answered, once more.
    #[cold]
    pub fn answer_from_here<E: Env>(&mut self, frame: &[u8], env: &mut E) {
        if let Ok((header, body)) = Header::parse(frame)
            && header.kind == Kind::Try
            && self.is_open()
        {
            self.take_try(body.len().saturating_sub(self.seal_bytes()), env);
        }
    }

    /// Handles a TRIED.
    #[cold]
    pub(super) fn take_tried<E: Env>(&mut self, body: &[u8], env: &mut E) {
        if body.len() == TRIED {
            self.answered = Some(u16_at(body, 0));
            let change = self.search.answered(u16_at(body, 0), self.now_ns);
            self.path_changed(change, env);
        }
    }

    fn path_changed<E: Env>(&mut self, change: Change, env: &mut E) {
        self.set_rare();
        let (before, size) = (self.size, self.search.size());
        if size != before {
            self.size = size;
            self.sender.pace.resize(before, size);
        }
        self.room = self.room_of(size);
        let black_hole = change == Change::BlackHole;
        if black_hole {
            self.stats.black_holes += 1;
            // What was in vain so far was so for this reason.
            self.sender.stuck_ns = 0;
        }
        if black_hole || (change == Change::Found && size != self.size_told) {
            self.size_told = size;
            env.path_carries(size, black_hole);
        }
    }

    /// Handles a SLICE.
    #[cold]
    pub(super) fn take_slice<E: Env>(&mut self, header: &Header, body: &[u8], env: &mut E) {
        let ahead = header.sequence.wrapping_sub(self.receiver.next());
        if self.config.level == Level::Unreliable || ahead as i32 >= i32::from(self.config.window())
        {
            return;
        }
        if (ahead as i32) < 0 || self.receiver.has(ahead as usize) {
            // The frame is here already.
            self.acks.hurry(self.now_ns);
            self.stats.duplicates += 1;
        } else if let Some(whole) = self.receiver.slices.add(header.sequence, body) {
            self.take_data(header, &whole, env);
            self.receiver.slices.recycle(whole);
        }
    }
}
