//! Connections that have ended on this side and not yet at the peer, and frames of no connection that lives.

use vipl_netio::Header;
use vipl_wire::{Closing, Transmit as _, VersionNegotiation};

use crate::events::NEVER;
use crate::outbox::{Line, Outbox};

/// Lingering connections of a link; only a process that does not keep to the protocol has more.
const LINGERING_MAX: usize = 1024;
/// Time between two answers to frames of another version, in nanoseconds.
const VERSIONS_EVERY_NS: u64 = 1_000_000_000;

/// A connection that has ended here and not yet at the peer.
struct One {
    closing: Closing,
    header: Header,
    mtu: usize,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Lingering {
    list: Vec<One>,
    /// When the next frame of another version is answered.
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

    /// Takes over what is left of a connection.
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

    /// Repeats what is due, and forgets what is done.
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

    /// Answers a frame of no known connection, where that helps its sender.
    pub(crate) fn answer(&mut self, payload: &[u8], mut line: Line<'_>, now: u64) {
        // The peer repeats its last frames to a side that has forgotten the connection.
        if Closing::answer_stray(payload, &mut line) {
            return;
        }
        if let Some(answer) =
            VersionNegotiation::answer(payload).filter(|_| now >= self.versions_at)
        {
            self.versions_at = now + VERSIONS_EVERY_NS;
            // A full link loses it: the next frame of that host gets another.
            if let Some(mut frame) = line.frame() {
                frame.as_mut()[..VersionNegotiation::BYTES].copy_from_slice(&answer.emit());
                line.transmit(frame, VersionNegotiation::BYTES);
            }
        }
    }
}
