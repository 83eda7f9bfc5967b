//! The control record: all that the two sides of a connection tell each other beside the messages. It is a state and no
//! message, so the newest version counts.
//!
//! On one host each side has a board in the connection's segment, and an eventfd that tells of a new record. Between hosts the
//! record travels over the NIC's UDP socket: see [`crate::uplink`].

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use vipl_plugin_sdk::shm::Mapping;
use vipl_sys::fd::Kept;
use vipl_sys::uncancelled;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::device::Address;

/// States of a side, in their order. 0: not attached yet.
pub(crate) mod state {
    /// It has a queue pair; the rest of the record is valid.
    pub(crate) const READY: u32 = 1;
    /// Its queue pair accepts messages.
    pub(crate) const RECEIVING: u32 = 2;
    /// It has ended; `reason` says why.
    pub(crate) const CLOSED: u32 = 3;
}

/// Why a side has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It has disconnected.
    Left,
    /// It has lost the connection, or found an error that only it can report.
    Lost,
    /// Its message found no receive descriptor.
    NoReceive,
    /// A message found its receive descriptor too short or otherwise wrong.
    BadReceive,
    /// Its RDMA was refused: the operation, `VIP_STATUS_OP_*`, and whether a receive descriptor was to tell.
    Refused { opcode: u32, notice: bool },
}

const NOTICE: u32 = 1 << 31;

impl Reason {
    pub(crate) fn word(self) -> u32 {
        match self {
            Reason::Left => 1,
            Reason::Lost => 2,
            Reason::NoReceive => 3,
            Reason::BadReceive => 4,
            Reason::Refused { opcode, notice } => 5 | opcode | if notice { NOTICE } else { 0 },
        }
    }

    /// What the peer wrote; anything unknown is a lost connection.
    pub(crate) fn of(word: u32) -> Reason {
        match word & 0xff {
            1 => Reason::Left,
            3 => Reason::NoReceive,
            4 => Reason::BadReceive,
            5 => Reason::Refused {
                opcode: word & vipl_abi::VIP_STATUS_OP_MASK,
                notice: word & NOTICE != 0,
            },
            _ => Reason::Lost,
        }
    }
}

/// One side's record. A peer can write anything.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct Record {
    gid: [u64; 2],
    /// Address of the table of keys.
    pub(crate) table: u64,
    /// Address of the word for credits.
    pub(crate) credit: u64,
    queue_pair: u32,
    packet: u32,
    /// Key of the table.
    pub(crate) table_key: u32,
    /// Key of the word.
    pub(crate) credit_key: u32,
    lid: u32,
    mtu: u32,
    /// One of [`state`].
    pub(crate) state: u32,
    /// A [`Reason`], in the state CLOSED.
    pub(crate) reason: u32,
    /// Messages that it has taken, in the state CLOSED.
    pub(crate) taken: u32,
    /// Unreliable: its RDMA Writes that were refused; those with immediate data in the upper half.
    pub(crate) refused: u32,
}

const WORDS: usize = size_of::<Record>() / 8;

impl Record {
    pub(crate) fn set_address(&mut self, address: &Address) {
        self.gid = address.gid;
        self.queue_pair = address.queue_pair;
        self.packet = address.packet;
        self.lid = address.lid.into();
        self.mtu = address.mtu.into();
    }

    /// Where its queue pair is. The device refuses what makes no sense.
    pub(crate) fn address(&self) -> Address {
        Address {
            queue_pair: self.queue_pair & 0xff_ffff,
            packet: self.packet & 0xff_ffff,
            gid: self.gid,
            lid: self.lid as u16,
            mtu: (self.mtu as u8).clamp(1, 5),
        }
    }
}

/// One side's part of the segment. Only that side writes it; its version is odd meanwhile.
#[repr(C)]
struct Board {
    version: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// Bytes of the segment of a connection on one host.
pub(crate) const SEGMENT: usize = 2 * size_of::<Board>();

/// The boards of a connection on one host.
pub(crate) struct Boards {
    segment: Mapping,
    side: usize,
    /// The eventfd of the peer's NIC.
    bell: Kept,
}

impl Boards {
    pub(crate) fn new(segment: Mapping, side: u32, bell: OwnedFd) -> Boards {
        let side = (side & 1) as usize;
        let bell = Kept::new(bell);
        Boards {
            segment,
            side,
            bell,
        }
    }

    fn board(&self, side: usize) -> &Board {
        let boards = self.segment.base().cast::<Board>();
        // SAFETY: the segment has two, all of atomics.
        unsafe { &*boards.add(side) }
    }

    /// The version of the peer's record.
    pub(crate) fn version(&self) -> u64 {
        self.board(1 - self.side).version.load(Ordering::Acquire)
    }

    /// Replaces this side's record, and wakes the peer's thread.
    pub(crate) fn write(&self, record: &Record) {
        let board = self.board(self.side);
        let version = board.version.load(Ordering::Relaxed);
        board.version.store(version | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let words = record.as_bytes().chunks_exact(8);
        for (to, from) in board.words.iter().zip(words) {
            let word = u64::from_ne_bytes(from.try_into().unwrap_or_default());
            to.store(word, Ordering::Relaxed);
        }
        board
            .version
            .store((version | 1).wrapping_add(1), Ordering::Release);
        ring(&self.bell);
    }

    /// The peer's record, if its version is another one than `seen` and it is not being written.
    #[inline(always)]
    pub(crate) fn read(&self, seen: &mut u64) -> Option<Record> {
        let board = self.board(1 - self.side);
        let version = board.version.load(Ordering::Acquire);
        if version == *seen {
            return None;
        }
        Boards::copy(board, version, seen)
    }

    #[cold]
    fn copy(board: &Board, version: u64, seen: &mut u64) -> Option<Record> {
        if version & 1 != 0 {
            return None;
        }
        let mut record = Record::default();
        for (to, from) in record.as_mut_bytes().chunks_exact_mut(8).zip(&board.words) {
            to.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
        fence(Ordering::Acquire);
        if board.version.load(Ordering::Relaxed) != version {
            return None;
        }
        *seen = version;
        Some(record)
    }
}

/// Adds one to an eventfd.
pub(crate) fn ring(bell: &Kept) {
    let one = 1u64;
    if let Ok(fd) = bell.fd() {
        // SAFETY: eight valid bytes. A full counter wakes its reader as well.
        unsafe { uncancelled::write(fd, (&raw const one).cast(), 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_survive() {
        let refused = |notice| Reason::Refused {
            opcode: vipl_abi::VIP_STATUS_OP_RDMA_READ,
            notice,
        };
        for reason in [
            Reason::Left,
            Reason::Lost,
            Reason::NoReceive,
            Reason::BadReceive,
            refused(true),
            refused(false),
        ] {
            assert_eq!(Reason::of(reason.word()), reason);
        }
        assert_eq!(Reason::of(0x77), Reason::Lost);
    }
}
