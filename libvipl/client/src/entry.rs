//! What a completion queue reports.

use vipl_abi::*;

/// Identifies a VI of this process while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViId(usize);

impl ViId {
    #[inline(always)]
    pub(crate) fn new(handle: VIP_VI_HANDLE) -> Self {
        Self(handle.expose_provenance())
    }

    /// The handle, for the C functions.
    #[inline(always)]
    #[must_use]
    pub fn handle(self) -> VIP_VI_HANDLE {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// A queue of a VI on which a descriptor has completed. The descriptor is then taken off by
/// [`Vi::send_done`](crate::Vi::send_done) or [`Vi::receive_done`](crate::Vi::receive_done).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The VI.
    pub vi: ViId,
    /// Its receive queue; else its send queue.
    pub is_receive: bool,
}

impl Entry {
    #[inline(always)]
    pub(crate) fn new(vi: VIP_VI_HANDLE, receive: VIP_BOOLEAN) -> Self {
        Self {
            vi: ViId::new(vi),
            is_receive: receive != 0,
        }
    }
}
