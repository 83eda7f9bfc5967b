//! Checks of memory against a table of regions (spec §10.2), without a lock.

use std::marker::PhantomData;

use crate::abi::{VIPL_PTAG_ANY, VIPL_PTAG_NONE, vipl_region};
use crate::sync::atomic::{Ordering, fence};

/// The regions of a NIC. A table that peers share may be written by a hostile process: only the entries of its owner
/// are trusted, and those of others only to refuse.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    first: *const vipl_region,
    /// Number of entries, a power of two, less one.
    mask: u32,
    entries: PhantomData<&'a [vipl_region]>,
}

impl<'a> Table<'a> {
    /// The table that begins with this entry.
    ///
    /// # Safety
    /// It has `count` entries, a power of two, for as long as `'a`.
    #[inline(always)]
    pub unsafe fn new(first: *const vipl_region, count: u32) -> Table<'a> {
        Table {
            first,
            mask: count.wrapping_sub(1),
            entries: PhantomData,
        }
    }

    /// Tag and flags of the region that covers the range, if the handle names it.
    #[inline(always)]
    fn find(self, handle: u32, base: u64, length: u64) -> Option<(u32, u32)> {
        // SAFETY: the index is masked, so inside the table.
        let entry = unsafe { &*self.first.add((handle & self.mask) as usize) };
        // Acquire pairs with the release of the handle: the fields belong to this handle or a later one.
        if handle == 0 || entry.handle.load(Ordering::Acquire) != handle {
            return None;
        }
        let (first, end) = (
            entry.base.load(Ordering::Relaxed),
            entry.end.load(Ordering::Relaxed),
        );
        let access = entry.access.load(Ordering::Relaxed);
        // Orders the loads above before the second load of the handle.
        fence(Ordering::Acquire);
        if entry.handle.load(Ordering::Relaxed) != handle {
            return None;
        }
        // Below the region the offset is larger than any size. A hostile table, whose regions may end before they
        // begin, names no memory but its owner's.
        let (offset, size) = (base.wrapping_sub(first), end.wrapping_sub(first));
        let inside = offset <= size && length <= size - offset;
        inside.then_some(((access >> 32) as u32, access as u32))
    }

    /// Whether a VI with this tag may use the range itself: for a descriptor or a data segment.
    #[inline(always)]
    pub fn is_local(self, handle: u32, base: u64, length: u64, tag: u32) -> bool {
        self.find(handle, base, length)
            .is_some_and(|(region, _)| tags_match(tag, region))
    }

    /// Whether a peer may access the range by RDMA. `flag` is the one that the region needs, `tag` that of the target
    /// VI.
    #[inline(always)]
    pub fn is_remote(self, handle: u32, base: u64, length: u64, tag: u32, flag: u32) -> bool {
        self.find(handle, base, length)
            .is_some_and(|(region, flags)| tags_match(tag, region) && flags & flag != 0)
    }

    /// Whether the range lies in a region, whatever its tag and flags.
    pub fn is_registered(self, handle: u32, base: u64, length: u64) -> bool {
        self.find(handle, base, length).is_some()
    }
}

/// Whether the tag of a VI matches that of a region.
#[inline(always)]
fn tags_match(vi: u32, region: u32) -> bool {
    vi == region || has_wildcard(vi, region)
}

/// Whether one of them is a tag of compatible mode, which matches every other.
#[cold]
#[inline(never)]
fn has_wildcard(vi: u32, region: u32) -> bool {
    vi == VIPL_PTAG_ANY || region == VIPL_PTAG_NONE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, AtomicU64};
    use vipl_plugin_abi::{VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE};

    fn region(base: u64, end: u64, tag: u32, flags: u32, handle: u32) -> vipl_region {
        vipl_region {
            base: AtomicU64::new(base),
            end: AtomicU64::new(end),
            access: AtomicU64::new(u64::from(tag) << 32 | u64::from(flags)),
            handle: AtomicU32::new(handle),
            reserved: 0,
        }
    }

    #[test]
    fn access_is_exact_to_the_byte() {
        let regions = [
            region(100, 200, 5, VIPL_REGION_RDMA_WRITE, 6),
            region(0, 0, 0, 0, 0),
        ];
        // SAFETY: two entries, which outlive the table.
        let table = unsafe { Table::new(regions.as_ptr(), 2) };
        let allowed =
            |handle, base, length, tag, flag| table.is_remote(handle, base, length, tag, flag);
        assert!(allowed(6, 100, 100, 5, VIPL_REGION_RDMA_WRITE));
        assert!(!allowed(6, 100, 101, 5, VIPL_REGION_RDMA_WRITE));
        assert!(!allowed(6, 99, 1, 5, VIPL_REGION_RDMA_WRITE));
        assert!(!allowed(6, 150, u64::MAX, 5, VIPL_REGION_RDMA_WRITE));
        assert!(
            !allowed(6, 100, 1, 4, VIPL_REGION_RDMA_WRITE),
            "another tag"
        );
        assert!(allowed(6, 100, 1, VIPL_PTAG_ANY, VIPL_REGION_RDMA_WRITE));
        assert!(
            !allowed(6, 100, 1, 5, VIPL_REGION_RDMA_READ),
            "no such permission"
        );
        assert!(
            !allowed(8, 100, 1, 5, VIPL_REGION_RDMA_WRITE),
            "stale handle"
        );
        assert!(!allowed(0, 0, 0, 5, VIPL_REGION_RDMA_WRITE));
    }
}
