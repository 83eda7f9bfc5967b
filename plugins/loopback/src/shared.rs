//! Shared memory of a NIC: the page with its bell and ready bits, and the table of its regions.
//!
//! ```text
//!   page      bell     how peers wake its sleeping threads
//!             ready    ready bits, one per VI
//!   regions            32 bytes each; peers map them, and what follows, for reading only
//!             places   where they lie in the memory file
//! ```

use std::io;
use std::mem::offset_of;
use std::os::fd::RawFd;

use vipl_plugin_sdk::abi::vipl_region;
use vipl_plugin_sdk::region::Table;
use vipl_sys::bell::{Bell, Marks};
use vipl_sys::shm::Mapping;

use crate::window::{Places, REGIONS_MAX, Windows};

/// VIs of one NIC handle: more than a program has memory for, and as few as have their ready bits in the page.
pub(crate) const VIS_MAX: u32 = 16_384;
/// Bytes of the page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Bytes of the table of regions.
const TABLE_BYTES: usize = REGIONS_MAX as usize * size_of::<vipl_region>();
/// Bytes of the table and of the places behind it.
pub(crate) const REGION_BYTES: usize = TABLE_BYTES + size_of::<Places>();

/// One bit per VI.
pub(crate) type ViMarks = Marks<{ VIS_MAX as usize / 64 }>;

/// All zero at first, and all atomic.
#[repr(C)]
struct Page {
    bell: Bell,
    ready: ViMarks,
}

const _: () = assert!(size_of::<Page>() <= PAGE_BYTES && offset_of!(Page, ready) == 128);
const _: () = assert!(size_of::<vipl_region>() == 32);

/// A NIC's shared memory, as this process maps it.
pub(crate) struct SharedNic {
    page: Mapping,
    regions: Mapping,
    /// Whether the places follow: plug-ins before these have none.
    has_places: bool,
    /// What this process has mapped of the memory file of a peer's.
    windows: Windows,
}

impl SharedNic {
    /// Maps the page and the regions; those of this process's own NIC are `writable`.
    pub(crate) fn open([page, regions]: [RawFd; 2], writable: bool) -> io::Result<SharedNic> {
        let (with_or_without, has_places) = match Mapping::open(regions, REGION_BYTES, writable) {
            Ok(regions) => (regions, true),
            Err(_) => (Mapping::open(regions, TABLE_BYTES, writable)?, false),
        };
        Ok(SharedNic {
            page: Mapping::open(page, PAGE_BYTES, true)?,
            regions: with_or_without,
            has_places,
            windows: Windows::default(),
        })
    }

    #[inline(always)]
    fn page(&self) -> &Page {
        // SAFETY: the mapping is large enough; zeroes are a valid Page, and all of it is atomic.
        unsafe { &*self.page.base().cast::<Page>() }
    }

    /// Wakes the NIC's sleeping threads.
    #[inline(always)]
    pub(crate) fn bell(&self) -> &Bell {
        &self.page().bell
    }

    /// Ready bits of its VIs.
    #[inline(always)]
    pub(crate) fn ready(&self) -> &ViMarks {
        &self.page().ready
    }

    /// The entries of the table of regions.
    pub(crate) fn regions(&self) -> &[vipl_region] {
        let first = self.regions.base().cast_const().cast();
        // SAFETY: the mapping has so many, and each of their words is atomic.
        unsafe { std::slice::from_raw_parts(first, REGIONS_MAX as usize) }
    }

    /// Where the regions lie in the memory file of the NIC's process.
    #[inline(always)]
    pub(crate) fn places(&self) -> Option<&Places> {
        // SAFETY: the mapping has room for them behind the table; zeroes are valid, and all of it is atomic.
        self.has_places
            .then(|| unsafe { &*self.regions.base().add(TABLE_BYTES).cast_const().cast() })
    }

    /// What this process has mapped of the memory file of a peer's NIC.
    pub(crate) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// The regions of this NIC.
    pub(crate) fn table(&self) -> Table<'_> {
        // SAFETY: the mapping has so many entries, and lives as long as this.
        unsafe { Table::new(self.regions.base().cast_const().cast(), REGIONS_MAX) }
    }
}
