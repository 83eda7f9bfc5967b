//! What all VIs share: the time, buffers, and the device's page.

use std::rc::Rc;

use vipl_clan_proto::vi::Segment;

use crate::events::NEVER;
use crate::page::Page;

/// Bytes that are moved in one step; they pass through a buffer that stays in the processor's cache.
pub(crate) const CHUNK: usize = 64 << 10;

/// Time, buffers and page. The contents of the buffers are valid for one step.
pub(crate) struct Tools {
    pub(crate) page: Rc<Page>,
    /// Data between two copies.
    pub(crate) bounce: Box<[u8]>,
    /// Segments of the descriptor that sends.
    pub(crate) out: Vec<Segment>,
    /// Segments of the descriptor that receives.
    pub(crate) into: Vec<Segment>,
    /// Pieces of memory for one system call.
    pub(crate) pieces: Vec<libc::iovec>,
    /// When the round began, in nanoseconds.
    pub(crate) now: u64,
    /// When the first orphaned connection ends, in nanoseconds.
    pub(crate) orphaned: u64,
}

impl Tools {
    pub(crate) fn new(page: Rc<Page>) -> Tools {
        Tools {
            page,
            // Data, and the result that a completion appends.
            bounce: vec![0; CHUNK + 12].into_boxed_slice(),
            out: Vec::new(),
            into: Vec::new(),
            pieces: Vec::new(),
            now: 0,
            orphaned: NEVER,
        }
    }
}
