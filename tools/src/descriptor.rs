//! Descriptors: 64 bytes in registered memory.
//!
//! A descriptor lives in a `Region`, at a multiple of 64 bytes; the memory stays mapped until the
//! process ends. Its fields are written before it is posted and read after it was taken off.

use std::ptr::NonNull;

use vipl_abi::*;
use vipl_client::raw;

use crate::region::{Region, Span};

/// Bytes of a descriptor.
pub const BYTES: usize = size_of::<VIP_DESCRIPTOR>();

/// One descriptor in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor(NonNull<VIP_DESCRIPTOR>);

impl Descriptor {
    /// The descriptor at an offset of a region, which must be a multiple of 64.
    ///
    /// # Panics
    /// The offset is not a multiple of 64, or the descriptor is not inside.
    #[must_use]
    pub fn new(region: &Region, offset: usize) -> Self {
        let pointer = region.at(offset, BYTES).cast::<VIP_DESCRIPTOR>();
        assert!(pointer.addr().is_multiple_of(VIP_DESCRIPTOR_ALIGNMENT));
        let Some(pointer) = NonNull::new(pointer) else {
            unreachable!("mapped memory is not NULL")
        };
        Self(pointer)
    }

    /// A descriptor that the library gave back.
    #[inline(always)]
    pub(crate) fn from_library(pointer: *mut VIP_DESCRIPTOR) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut VIP_DESCRIPTOR {
        self.0.as_ptr()
    }

    /// Makes it a send of a piece of memory.
    pub fn set_send(self, data: Span) {
        self.set(VIP_CONTROL_OP_SENDRECV, None, data);
    }

    /// Makes it a receive into a piece of memory.
    pub fn set_receive(self, data: Span) {
        self.set(VIP_CONTROL_OP_SENDRECV, None, data);
    }

    /// Makes it an RDMA Write of local memory to remote memory.
    pub fn set_write(self, local: Span, remote: Span) {
        self.set(VIP_CONTROL_OP_RDMAWRITE, Some(remote), local);
    }

    /// Makes it an RDMA Read of remote memory to local memory.
    pub fn set_read(self, local: Span, remote: Span) {
        self.set(VIP_CONTROL_OP_RDMAREAD, Some(remote), local);
    }

    fn set(self, operation: u16, remote: Option<Span>, data: Span) {
        // A message of no data has no data segment.
        let data = (data.length > 0 || remote.is_some()).then_some(data);
        let local = data.map(|data| (data.address, data.handle, data.length));
        let remote = remote.map(|remote| (remote.address, remote.handle));
        // SAFETY: aligned, in memory that stays mapped, with room for two segments.
        unsafe { raw::write_descriptor(self.0.as_ptr(), operation, remote, local) };
    }

    /// Lets a send carry 32 bits.
    #[inline(always)]
    pub fn set_immediate(self, value: u32) {
        let pointer = self.0.as_ptr();
        // SAFETY: aligned, in memory that stays mapped.
        unsafe { (&raw mut (*pointer).CS.ImmediateData).write_volatile(value) };
        // SAFETY: as above.
        let control = unsafe { (&raw const (*pointer).CS.Control).read_volatile() };
        // SAFETY: as above.
        unsafe {
            (&raw mut (*pointer).CS.Control).write_volatile(control | VIP_CONTROL_IMMEDIATE);
        }
    }

    /// The 32 bits that came with a message.
    #[inline(always)]
    #[must_use]
    pub fn immediate(self) -> u32 {
        // SAFETY: aligned, in memory that stays mapped.
        unsafe { (&raw const (*self.0.as_ptr()).CS.ImmediateData).read_volatile() }
    }

    /// Bytes received.
    #[inline(always)]
    #[must_use]
    pub fn length(self) -> u32 {
        // SAFETY: aligned, in memory that stays mapped.
        unsafe { (&raw const (*self.0.as_ptr()).CS.Length).read_volatile() }
    }

    /// The result.
    #[inline(always)]
    #[must_use]
    pub fn status(self) -> u32 {
        // SAFETY: aligned, in memory that stays mapped.
        unsafe { (&raw const (*self.0.as_ptr()).CS.Status).read_volatile() }
    }
}
