//! Connections that have ended on this side but not at the peer, and frames of no open connection.

use vipl_netio::Header;
use vipl_wire::{Closing, Transmit as _, VersionNegotiation};

use crate::events::NEVER;
use crate::outbox::{Line, Outbox};

/// Most lingering connections of a link. Only a process that makes protocol errors has more.
const LINGERING_MAX: usize = 1024;
/// Time between two answers to frames of another version, in nanoseconds.
const VERSIONS_EVERY_NS: u64 = 1_000_000_000;

/// A connection that has ended on this side but not at the peer.
struct One {
    closing: Closing,
    header: Header,
    mtu: usize,
}

/// The lingering connections of a link.
#[derive(Default)]
pub(crate) struct Lingering {
    list: Vec<One>,
    /// When the next frame of another version may be answered.
    versions_at: u64,
}

impl Lingering {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// When the first repetition is due.
    pub(crate) fn deadline(&self) -> u64 {
        let all = self.list.iter().map(|one| one.closing.deadline());
        all.min().unwrap_or(NEVER)
    }

    /// Adds a connection that has ended on this side.
    pub(crate) fn add(&mut self, (closing, header, mtu): (Closing, Header, usize)) {
        if closing.is_done() {
            return;
        }
        if self.list.len() >= LINGERING_MAX {
            self.list.remove(0);
        }
        self.list.push(One {
            closing,
            header,
            mtu,
        });
    }

    /// Repeats frames that are due, and removes connections that have ended.
    pub(crate) fn pump(&mut self, out: &mut Outbox, now: u64) {
        if self.list.is_empty() {
            return;
        }
        for one in &mut self.list {
            if one.closing.deadline() <= now {
                let mut line = out.line(one.header, one.mtu, now);
                one.closing.timeout(now, &mut line);
            }
        }
        self.list.retain(|one| !one.closing.is_done());
    }

    /// Passes a frame to the connections with its VI. False: there are none.
    pub(crate) fn received(&mut self, payload: &[u8], out: &mut Outbox, now: u64) -> bool {
        let Some(address) = vipl_wire::address(payload) else {
            return false;
        };
        let mut known = false;
        for one in &mut self.list {
            if one.closing.vi() == address.vi {
                known = true;
                let mut line = out.line(one.header, one.mtu, now);
                one.closing.received(payload, &mut line);
            }
        }
        known
    }

    /// Answers a frame of an unknown connection, if that helps its sender.
    pub(crate) fn answer(&mut self, payload: &[u8], mut line: Line<'_>, now: u64) {
        // The peer repeats its last frames to a side that does not know the connection any more.
        if Closing::answer_stray(payload, &mut line) {
            return;
        }
        if let Some(answer) =
            VersionNegotiation::answer(payload).filter(|_| now >= self.versions_at)
        {
            self.versions_at = now + VERSIONS_EVERY_NS;
            // A full link loses the answer; the next frame of that host causes another.
            if let Some(mut frame) = line.frame() {
                frame.as_mut()[..VersionNegotiation::BYTES].copy_from_slice(&answer.emit());
                line.transmit(frame, VersionNegotiation::BYTES);
            }
        }
    }
}
