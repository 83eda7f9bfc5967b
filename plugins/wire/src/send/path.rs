//! The search for the size of frames, and what a change of the size means for the flow.

use super::SendSide;
use crate::env::Env;
use crate::framing::Output;
use crate::path::{send_tried, send_try};
use crate::search::Change;

impl SendSide {
    /// Continues the search if it is due.
    #[cold]
    pub(crate) fn search_path<E: Env>(&mut self, out: &mut Output<'_, E>) {
        let now_ns = out.now_ns();
        let wait_ns = self.flow.answer_ns();
        while self.path.deadline() <= now_ns {
            let Some(frame) = out.frame() else {
                return self.path.postpone(now_ns);
            };
            let before = self.path.size();
            let (change, tried) = self.path.due(now_ns, wait_ns);
            self.path_changed(before, change, out.env);
            if let Some(bytes) = tried {
                send_try(frame, bytes, self.inflight().next(), out);
            }
        }
    }

    /// Asks whether the peer receives what is sent now, with a TRY of this length.
    #[cold]
    pub(crate) fn ask<E: Env>(&mut self, bytes: u16, out: &mut Output<'_, E>) {
        if let Some(frame) = out.frame() {
            send_try(frame, bytes, self.inflight().next(), out);
        }
    }

    /// Answers a TRY whose body, without its seal, has this length.
    pub(crate) fn answer_try<E: Env>(&mut self, body: usize, out: &mut Output<'_, E>) {
        send_tried(body, self.inflight().next(), out);
    }

    /// Handles the body of a TRIED.
    #[cold]
    pub(crate) fn path_tried<E: Env>(&mut self, body: &[u8], now_ns: u64, env: &mut E) {
        let before = self.path.size();
        let change = self.path.tried(body, now_ns);
        self.path_changed(before, change, env);
    }

    fn path_changed<E: Env>(&mut self, before: u16, change: Change, env: &mut E) {
        let size = self.path.size();
        let black_hole = change == Change::BlackHole;
        self.flow.resize(before, size, black_hole);
        if self.path.report(change) {
            env.path_carries(size, black_hole);
        }
    }

    /// Returns the length of the last TRY that was answered; once.
    pub(crate) fn take_path_answer(&mut self) -> Option<u16> {
        self.path.take_answer()
    }

    /// The peer is at another address of the network: what is known of the path does not hold for this one.
    pub(crate) fn path_is_new(&mut self, now_ns: u64) {
        if self.path.start_again(now_ns) {
            self.flow.start_again();
        }
    }
}
