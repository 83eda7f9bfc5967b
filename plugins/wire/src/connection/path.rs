//! The path to the peer, as its owner sees it: the size of frames, and questions whether the peer receives them.

use super::{Connection, output};
use crate::env::Env;
use crate::frame::{Header, Kind, MTU_MIN};
use crate::send::{send_tried, send_try};

impl Connection {
    /// The largest frame in use, in bytes.
    pub fn frame_bytes(&self) -> u16 {
        self.send.frame_bytes()
    }

    /// From now on frames have at most so many bytes, at least [`MTU_MIN`](crate::MTU_MIN). The limit is not raised again.
    /// A longer frame that is lost is sent again in slices.
    #[cold]
    pub fn limit_frames(&mut self, bytes: u16) {
        self.send.limit_frames(bytes.max(MTU_MIN as u16));
    }

    /// The peer is at another address of the network: what is known of the path does not hold for this one.
    pub fn path_is_new(&mut self, now_ns: u64) {
        self.framing.set_now(now_ns);
        self.send.path_is_new(now_ns);
    }

    /// Asks whether the peer receives what is sent now: sends a TRY of this length, of [`ASKS`](crate::ASKS). When it
    /// has been answered, [`Connection::take_answer`] returns the length.
    #[cold]
    pub fn ask<E: Env>(&mut self, bytes: u16, now_ns: u64, env: &mut E) {
        debug_assert!(crate::ASKS.contains(&bytes));
        self.framing.set_now(now_ns);
        let mut out = output(&mut self.framing, &self.send, &self.receive, env);
        if let Some(frame) = out.env.frame() {
            send_try(frame, bytes, &mut out);
        }
    }

    /// How long an answer may take, in nanoseconds.
    pub fn answer_ns(&self) -> u64 {
        self.send.answer_ns()
    }

    /// Returns the length of the last TRY that was answered; once.
    pub fn take_answer(&mut self) -> Option<u16> {
        self.send.take_path_answer()
    }

    /// Answers this TRY once more, which [`Connection::received`] has just answered.
    #[cold]
    pub fn answer_from_here<E: Env>(&mut self, frame: &[u8], env: &mut E) {
        if let Ok((header, body)) = Header::parse(frame)
            && header.kind == Kind::Try
            && self.is_open()
        {
            let body = body.len().saturating_sub(self.framing.seal_bytes());
            let mut out = output(&mut self.framing, &self.send, &self.receive, env);
            send_tried(body, &mut out);
        }
    }
}
