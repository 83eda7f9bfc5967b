//! What a target of RDMA has refused, for the log (E9, E10, E13). The process that checks the range may be another than the
//! target's, and tells the target by a [`Record`] in memory that they share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vipl_plugin_abi::{VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE};

use crate::Segment;

/// One RDMA operation that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whether this side is the target; otherwise the peer has refused an operation of this side.
    pub at_target: bool,
    /// The flag that the region needs: `VIPL_REGION_RDMA_WRITE` or `VIPL_REGION_RDMA_READ`.
    pub right: u32,
    /// The range in the target's memory. No bytes: not known.
    pub range: Segment,
}

/// Place of a refusal in shared memory. Zeros are none, so a peer of an older version says nothing. It informs a person and
/// decides nothing: the fields are read one by one, and a hostile writer changes a line of the log only.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Record {
    /// The right, and [`TARGET`]; 0: none.
    kind: AtomicU32,
    handle: AtomicU32,
    address: AtomicU64,
    length: AtomicU32,
    reserved: AtomicU32,
}

/// Bit of `Record::kind`: the reader is the target.
const TARGET: u32 = 1 << 31;

// One layout for processes of 32 and of 64 bits.
const _: () = assert!(size_of::<Record>() == 24 && align_of::<Record>() == 8);

impl Record {
    /// Stores a refusal; the last one counts.
    #[cold]
    pub fn set(&self, refusal: &Refusal) {
        let target = if refusal.at_target { TARGET } else { 0 };
        let range = &refusal.range;
        self.handle.store(range.handle, Ordering::Relaxed);
        self.address.store(range.address, Ordering::Relaxed);
        self.length.store(range.length, Ordering::Relaxed);
        // Release: a reader that sees it finds the range.
        self.kind.store(refusal.right | target, Ordering::Release);
    }

    /// The refusal, if there is one.
    #[cold]
    pub fn get(&self) -> Option<Refusal> {
        let kind = self.kind.load(Ordering::Acquire);
        let right = kind & !TARGET;
        if !matches!(right, VIPL_REGION_RDMA_WRITE | VIPL_REGION_RDMA_READ) {
            return None;
        }
        Some(Refusal {
            at_target: kind & TARGET != 0,
            right,
            range: Segment {
                address: self.address.load(Ordering::Relaxed),
                handle: self.handle.load(Ordering::Relaxed),
                length: self.length.load(Ordering::Relaxed),
            },
        })
    }

    /// The same, and forgets it.
    #[cold]
    pub fn take(&self) -> Option<Refusal> {
        let found = self.get();
        self.kind.store(0, Ordering::Relaxed);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_gives_what_was_stored_once() {
        let record = Record::default();
        assert_eq!(record.get(), None);
        for at_target in [true, false] {
            let refusal = Refusal {
                at_target,
                right: VIPL_REGION_RDMA_READ,
                range: Segment {
                    address: 0x7f00_0000_1000,
                    handle: 9,
                    length: 4,
                },
            };
            record.set(&refusal);
            assert_eq!(record.get(), Some(refusal));
            assert_eq!(record.take(), Some(refusal));
            assert_eq!(record.take(), None);
        }
        record.kind.store(0x4711, Ordering::Relaxed);
        assert_eq!(record.get(), None, "no right of a region");
    }
}
