//! The table of a NIC's memory regions.
//!
//! The data path and, for RDMA, peers read it without a lock. The handle of an entry is 0 while the entry
//! changes, and handles are not reused soon. A reader checks the handle before and after it reads the other
//! fields.
//!
//! A plug-in may place the table in memory that other processes map, so references are made only to the
//! atomic fields of an entry, never to the entry.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use vipl_plugin_abi::*;

use super::mapped::is_mapped;

/// The use of the entries of a NIC's table.
pub(crate) struct Regions {
    table: *const vipl_region,
    count: u32,
    free: Vec<u32>,
    used: u32,
    generation: u32,
    regions: u32,
    bytes: u64,
}

// SAFETY: the table outlives the NIC, and its fields are atomic.
unsafe impl Send for Regions {}

/// A free entry.
pub(crate) fn free_region() -> vipl_region {
    vipl_region {
        base: AtomicU64::new(0),
        end: AtomicU64::new(0),
        access: AtomicU64::new(0),
        handle: AtomicU32::new(0),
        reserved: 0,
    }
}

/// Tag and flags of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) tag: u32,
    pub(super) flags: u32,
}

impl Access {
    pub(super) fn word(self) -> u64 {
        u64::from(self.tag) << 32 | u64::from(self.flags)
    }

    fn of(word: u64) -> Access {
        Access {
            tag: (word >> 32) as u32,
            flags: word as u32,
        }
    }
}

/// One entry, which lives as long as the NIC.
#[derive(Clone, Copy)]
struct Entry(*const vipl_region);

impl Entry {
    fn handle(&self) -> &AtomicU32 {
        // SAFETY: the entry exists while `self` does.
        unsafe { &(*self.0).handle }
    }

    fn base(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { &(*self.0).base }
    }

    fn end(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { &(*self.0).end }
    }

    fn access(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { &(*self.0).access }
    }

    fn range(&self) -> (u64, u64) {
        let base = self.base().load(Ordering::Relaxed);
        (base, self.end().load(Ordering::Relaxed))
    }

    fn contains(&self, base: u64, length: u64) -> bool {
        let (first, end) = self.range();
        first <= base && base.checked_add(length).is_some_and(|last| last <= end)
    }

    /// Whether a VI with this tag may use the region.
    fn admits(&self, tag: u32) -> bool {
        let own = Access::of(self.access().load(Ordering::Relaxed)).tag;
        tag == VIPL_PTAG_ANY || own == VIPL_PTAG_NONE || own == tag
    }
}

/// Why a region named by a call was not found.
pub(super) enum Unknown {
    Handle,
    /// The address is outside the region, whose bounds are these.
    Address(u64, u64),
}

impl Regions {
    pub(crate) fn new(table: *const vipl_region, count: u32, seed: u32) -> Self {
        Regions {
            table,
            count,
            free: Vec::new(),
            used: 0,
            generation: vipl_sys::wrap::start(seed.wrapping_mul(0x9E37_79B9)),
            regions: 0,
            bytes: 0,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.regions as usize
    }

    /// Bytes of all regions.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn entry(&self, index: u32) -> Entry {
        debug_assert!(index < self.count);
        // SAFETY: the table has `count` entries.
        Entry(unsafe { self.table.add(index as usize) })
    }

    /// The entry that a handle names.
    fn find(&self, handle: u32) -> Option<Entry> {
        let entry = self.entry(handle & (self.count - 1));
        (handle != 0 && entry.handle().load(Ordering::Relaxed) == handle).then_some(entry)
    }

    /// The region that a handle names, if the address lies inside.
    fn find_inside(&self, handle: u32, address: u64) -> Result<Entry, Unknown> {
        let entry = self.find(handle).ok_or(Unknown::Handle)?;
        let (first, end) = entry.range();
        if (first..end).contains(&address) {
            Ok(entry)
        } else {
            Err(Unknown::Address(first, end))
        }
    }

    pub(super) fn insert(&mut self, base: u64, length: u64, access: Access) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.used < self.count => {
                self.used += 1;
                self.used - 1
            }
            None => return None,
        };
        // The upper bits are a counter; with 4096 entries a handle is reused after a million others.
        let handle = loop {
            self.generation = self.generation.wrapping_add(self.count);
            let handle = (self.generation & !(self.count - 1)) | index;
            if handle != 0 {
                break handle;
            }
        };
        let entry = self.entry(index);
        // Pairs with the fence of readers: a reader that sees a field of this region does not see the
        // previous handle.
        fence(Ordering::Release);
        entry.base().store(base, Ordering::Relaxed);
        entry.end().store(base + length, Ordering::Relaxed);
        entry.access().store(access.word(), Ordering::Relaxed);
        // Release pairs with the acquire of every reader: the fields above belong to this handle.
        entry.handle().store(handle, Ordering::Release);
        self.regions += 1;
        self.bytes += length;
        Some(handle)
    }

    /// Removes the region that begins at this address; returns its tag and its length. Its entry is not
    /// reused before [`Regions::free`].
    pub(super) fn remove(&mut self, handle: u32, address: u64) -> Result<(u32, u64), Unknown> {
        let entry = self.find(handle).ok_or(Unknown::Handle)?;
        let (base, end) = entry.range();
        if base != address {
            return Err(Unknown::Address(base, end));
        }
        let access = Access::of(entry.access().load(Ordering::Relaxed));
        entry.handle().store(0, Ordering::Release);
        self.regions -= 1;
        self.bytes -= end - base;
        Ok((access.tag, end - base))
    }

    /// Makes the entry of a removed region available again.
    pub(super) fn free(&mut self, handle: u32) {
        self.free.push(handle & (self.count - 1));
    }

    /// First byte and length of the region around an address.
    pub(super) fn range(&self, handle: u32, address: u64) -> Result<(u64, u64), Unknown> {
        let (base, end) = self.find_inside(handle, address)?.range();
        Ok((base, end - base))
    }

    /// Tag and flags of the region around an address.
    pub(super) fn access(&self, handle: u32, address: u64) -> Result<Access, Unknown> {
        let entry = self.find_inside(handle, address)?;
        Ok(Access::of(entry.access().load(Ordering::Relaxed)))
    }

    /// Changes tag and flags in one store; returns the previous ones.
    pub(super) fn set_access(
        &self,
        handle: u32,
        address: u64,
        access: Access,
    ) -> Result<Access, Unknown> {
        let entry = self.find_inside(handle, address)?;
        let before = entry.access().swap(access.word(), Ordering::AcqRel);
        Ok(Access::of(before))
    }
}

/// A tag's number in log lines.
pub(crate) fn tag_name(tag: u32) -> String {
    match tag {
        VIPL_PTAG_ANY | VIPL_PTAG_NONE => "no tag".to_owned(),
        tag => format!("tag {tag:#x}"),
    }
}

/// The entry of a NIC's table that a handle refers to, even if its region was removed.
fn named(nic: *const vipl_nic, handle: u32) -> Option<Entry> {
    // SAFETY: the NIC is open while a VI of it exists; these two do not change after VipOpenNic.
    let (table, count) = unsafe { ((*nic).regions, (*nic).region_count) };
    // SAFETY: the table has `count` entries, a power of two.
    let entry = Entry(unsafe { table.add((handle & (count - 1)) as usize) });
    (handle != 0 && entry.handle().load(Ordering::Acquire) == handle).then_some(entry)
}

/// Whether a VI with this tag may access a range by this handle.
pub(crate) fn covers(nic: *const vipl_nic, handle: u32, base: u64, length: u64, tag: u32) -> bool {
    named(nic, handle).is_some_and(|entry| entry.contains(base, length) && entry.admits(tag))
}

/// Why a VI with this tag may not access a range by this handle, if so.
pub(crate) fn objection(
    nic: *const vipl_nic,
    handle: u32,
    base: u64,
    length: u64,
    tag: u32,
) -> Option<String> {
    let Some(entry) = named(nic, handle) else {
        return Some(format!("{handle:#x} names no region of this NIC handle"));
    };
    if !entry.contains(base, length) {
        let (first, end) = entry.range();
        return Some(format!(
            "outside of the region {handle:#x}, which is {first:#x} to {end:#x}"
        ));
    }
    if !entry.admits(tag) {
        let region = Access::of(entry.access().load(Ordering::Relaxed)).tag;
        return Some(format!(
            "the region {handle:#x} has {}, the VI {}",
            tag_name(region),
            tag_name(tag)
        ));
    }
    (!is_mapped(base, length))
        .then(|| format!("the memory of the region {handle:#x} is not mapped any more; deregister memory before it is freed"))
}

/// Which checks of a range (handle, address, bytes) fail at the target of RDMA by a VI with this tag, all of them: what a
/// program must mend. `right`: the flag that the region needs, and its name.
pub(crate) fn remote_objections(
    nic: *const vipl_nic,
    range: (u32, u64, u64),
    tag: u32,
    right: (u32, &str),
) -> Vec<String> {
    let ((handle, base, length), (flag, enable)) = (range, right);
    let Some(entry) = named(nic, handle) else {
        return vec![format!("{handle:#x} names no region of this NIC handle")];
    };
    let mut failed = Vec::new();
    let access = Access::of(entry.access().load(Ordering::Relaxed));
    if access.flags & flag == 0 {
        failed.push(format!("the region has no {enable}"));
    }
    if !entry.admits(tag) {
        let (region, vi) = (tag_name(access.tag), tag_name(tag));
        failed.push(format!("the region has {region}, this VI {vi}"));
    }
    let (first, end) = entry.range();
    let (before, behind) = (
        first.saturating_sub(base),
        base.saturating_add(length).saturating_sub(end),
    );
    if before > 0 {
        failed.push(format!(
            "it begins {before} bytes before the region, which is {first:#x} to {end:#x}"
        ));
    }
    if behind > 0 {
        failed.push(format!(
            "it ends {behind} bytes behind the region, which is {first:#x} to {end:#x}"
        ));
    }
    if failed.is_empty() && !is_mapped(base, length) {
        failed.push("the memory of the region is not mapped any more".to_owned());
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS: Access = Access {
        tag: 7,
        flags: VIPL_REGION_RDMA_WRITE,
    };

    #[test]
    fn a_region_is_found_by_its_handle_until_it_is_removed() {
        let table: Vec<vipl_region> = (0..4).map(|_| free_region()).collect();
        let mut regions = Regions::new(table.as_ptr(), 4, 1);
        let handle = regions.insert(0x1000, 0x100, ACCESS).unwrap();
        assert!(matches!(regions.access(handle, 0x10ff), Ok(ACCESS)));
        assert!(matches!(
            regions.access(handle, 0x1100),
            Err(Unknown::Address(0x1000, 0x1100))
        ));
        assert!(matches!(
            regions.remove(handle, 0x1001),
            Err(Unknown::Address(..))
        ));
        assert!(matches!(regions.remove(handle, 0x1000), Ok((7, 0x100))));
        assert!(matches!(
            regions.access(handle, 0x1000),
            Err(Unknown::Handle)
        ));
        assert_eq!((regions.count(), regions.bytes()), (0, 0));
        let again = regions.insert(0x1000, 0x100, ACCESS).unwrap();
        assert_ne!(again, handle, "no handle comes back soon");
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let table: Vec<vipl_region> = (0..2).map(|_| free_region()).collect();
        let mut regions = Regions::new(table.as_ptr(), 2, 9);
        let handles = [(); 2].map(|()| regions.insert(0x1000, 1, ACCESS).unwrap());
        assert_ne!(handles[0], handles[1]);
        assert_eq!(regions.insert(0x1000, 1, ACCESS), None);
        assert!(regions.remove(handles[0], 0x1000).is_ok());
        assert_eq!(regions.insert(0x1000, 1, ACCESS), None, "not free yet");
        regions.free(handles[0]);
        assert!(regions.insert(0x1000, 1, ACCESS).is_some());
    }

    #[test]
    fn a_tag_and_a_range_decide_who_may_use_a_region() {
        let table: Vec<vipl_region> = (0..2).map(|_| free_region()).collect();
        let nic = vipl_nic {
            context: std::ptr::null_mut(),
            host: std::ptr::null_mut(),
            regions: table.as_ptr(),
            region_count: 2,
            options: 0,
            segments_max: 0,
            reserved: 0,
        };
        let mut regions = Regions::new(table.as_ptr(), 2, 3);
        let memory = [0u8; 64];
        let base = memory.as_ptr().addr() as u64;
        let handle = regions.insert(base, 64, ACCESS).unwrap();
        for (start, length, tag, allowed) in [
            (base, 64, 7, true),
            (base, 64, VIPL_PTAG_ANY, true),
            (base, 64, 8, false),
            (base, 65, 7, false),
            (base - 1, 1, 7, false),
            (base + 63, u64::MAX, 7, false),
        ] {
            assert_eq!(covers(&raw const nic, handle, start, length, tag), allowed);
            let why = objection(&raw const nic, handle, start, length, tag);
            assert_eq!(why.is_none(), allowed, "{why:?}");
        }
        assert!(!covers(&raw const nic, handle ^ 2, base, 64, 7));
        let write = (VIPL_REGION_RDMA_WRITE, "EnableRdmaWrite");
        let read = (VIPL_REGION_RDMA_READ, "EnableRdmaRead");
        for (start, length, tag, right, said) in [
            (base, 64, 7, write, ""),
            (base, 64, 7, read, "the region has no EnableRdmaRead"),
            (
                base,
                64,
                8,
                write,
                "the region has tag 0x7, this VI tag 0x8",
            ),
            (base + 60, 8, 7, write, "it ends 4 bytes behind the region"),
            (base - 3, 8, 7, write, "it begins 3 bytes before the region"),
            (base + 63, u64::MAX, 7, write, "bytes behind the region"),
        ] {
            let why = remote_objections(&raw const nic, (handle, start, length), tag, right);
            assert_eq!(why.len(), usize::from(!said.is_empty()), "{why:?}");
            assert!(why.concat().contains(said), "{why:?}");
        }
        let both = remote_objections(&raw const nic, (handle, base, 65), 8, read);
        assert_eq!(both.len(), 3, "all that must be mended: {both:?}");
        assert!(!covers(&raw const nic, 0, base, 64, 7));
        let any = Access {
            tag: VIPL_PTAG_NONE,
            flags: 0,
        };
        assert!(matches!(regions.set_access(handle, base, any), Ok(ACCESS)));
        assert!(covers(&raw const nic, handle, base, 64, 8));
    }
}
