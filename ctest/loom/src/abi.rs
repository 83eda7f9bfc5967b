//! The region table, with the atomics of the model checker; and the little else that `region.rs` names.
#![allow(non_camel_case_types)]

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

pub(crate) const VIPL_PTAG_ANY: u32 = 0;
pub(crate) const VIPL_PTAG_NONE: u32 = u32::MAX;

#[derive(Default)]
pub(crate) struct vipl_region {
    pub(crate) base: AtomicU64,
    pub(crate) end: AtomicU64,
    pub(crate) access: AtomicU64,
    pub(crate) handle: AtomicU32,
}

impl vipl_region {
    /// A new region, as `Regions::insert` of the library writes it.
    pub(crate) fn insert(&self, base: u64, end: u64, access: u64, handle: u32) {
        fence(Ordering::Release);
        self.base.store(base, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.access.store(access, Ordering::Relaxed);
        self.handle.store(handle, Ordering::Release);
    }

    /// Its end, as `Regions::remove` writes it.
    pub(crate) fn remove(&self) {
        self.handle.store(0, Ordering::Release);
    }
}
