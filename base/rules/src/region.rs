//! Checks of memory against a table of regions (spec §10.2), without a lock.

use crate::abi::{VIPL_PTAG_ANY, VIPL_PTAG_NONE, vipl_nic, vipl_region};
use crate::sync::atomic::{Ordering, fence};

/// Tables that peers share may be written by a hostile process: only their entries are trusted, and
/// only to refuse.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// First entry.
    pub regions: *const vipl_region,
    /// Entries, a power of two.
    pub count: u32,
}

/// Tag and flags of the region that covers the range, if the handle names it.
#[inline(always)]
fn find(table: Table, handle: u32, base: u64, length: u64) -> Option<(u32, u32)> {
    // SAFETY: the table has `count` entries, and the index is masked.
    let entry = unsafe { &*table.regions.add((handle & (table.count - 1)) as usize) };
    // Acquire pairs with the release of the handle: the fields belong to this handle or a later one.
    if handle == 0 || entry.handle.load(Ordering::Acquire) != handle {
        return None;
    }
    let (first, end) = (
        entry.base.load(Ordering::Relaxed),
        entry.end.load(Ordering::Relaxed),
    );
    let access = entry.access.load(Ordering::Relaxed);
    // Orders the loads above before the second look at the handle.
    fence(Ordering::Acquire);
    if entry.handle.load(Ordering::Relaxed) != handle {
        return None;
    }
    // Below the region the offset is larger than any size. A hostile table, whose regions may end before they begin, names
    // no memory but its owner's.
    let (offset, size) = (base.wrapping_sub(first), end.wrapping_sub(first));
    let inside = offset <= size && length <= size - offset;
    inside.then_some(((access >> 32) as u32, access as u32))
}

/// Whether the tag of a VI and that of a region go together.
#[inline(always)]
fn tags_match(vi: u32, region: u32) -> bool {
    vi == region || has_wildcard(vi, region)
}

/// Whether one of them goes together with any other: those of compatible mode.
#[cold]
#[inline(never)]
fn has_wildcard(vi: u32, region: u32) -> bool {
    vi == VIPL_PTAG_ANY || region == VIPL_PTAG_NONE
}

/// Local access: descriptor or data segment.
#[inline(always)]
pub fn is_local(nic: &vipl_nic, handle: u32, base: u64, length: u64, tag: u32) -> bool {
    let table = Table {
        regions: nic.regions,
        count: nic.region_count,
    };
    is_local_in(table, handle, base, length, tag)
}

/// The same, by the table: for a device that is not in the program's process.
#[inline(always)]
pub fn is_local_in(table: Table, handle: u32, base: u64, length: u64, tag: u32) -> bool {
    find(table, handle, base, length).is_some_and(|(region, _)| tags_match(tag, region))
}

/// Access by RDMA; `flag` is the one the region must have, `tag` that of the target VI.
#[inline(always)]
pub fn is_remote(table: Table, handle: u32, base: u64, length: u64, tag: u32, flag: u32) -> bool {
    find(table, handle, base, length)
        .is_some_and(|(region, flags)| tags_match(tag, region) && flags & flag != 0)
}

/// Whether a range lies in a region at all, whoever may use it.
pub fn is_registered(table: Table, handle: u32, base: u64, length: u64) -> bool {
    find(table, handle, base, length).is_some()
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
        let table = Table {
            regions: regions.as_ptr(),
            count: 2,
        };
        let allowed =
            |handle, base, length, tag, flag| is_remote(table, handle, base, length, tag, flag);
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
