//! Descriptors: what is to be transferred, and later its result.
//!
//! ```text
//!   registered memory:  header │ control segment │ segments ...   header │ control segment │ ...
//!                       64 B     32 B, aligned     16 B each
//!                       ours     of the library while posted
//! ```
//!
//! The header has the buffers and the registration of this memory, so that a descriptor that the library returns by its
//! address is whole again. Peers have no RDMA to it.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use vipl_abi::*;

use crate::error::Result;
use crate::memory::{Access, Buffer, Ptag, Registration, Remote};
use crate::raw;
use crate::status::Status;

const ALIGNMENT: usize = VIP_DESCRIPTOR_ALIGNMENT;

/// A descriptor with its buffers.
///
/// It belongs to the library from [`Vi::post_send`](crate::Vi::post_send) or
/// [`Vi::post_receive`](crate::Vi::post_receive) until a done or wait function returns it, so nothing can touch what is
/// posted. Set up once, it can be posted again and again, without an allocation.
pub struct Descriptor(NonNull<VIP_CONTROL_SEGMENT>);

#[repr(C, align(64))]
struct Header {
    registration: Arc<Registration>,
    buffers: Vec<Buffer>,
    user_data: u64,
    /// Handle of `registration`.
    handle: VIP_MEM_HANDLE,
    /// Room for segments.
    segments_max: u16,
}

const _: () = assert!(size_of::<Header>() == ALIGNMENT);

// SAFETY: one owner of memory that does not move, with parts that are all `Send`.
unsafe impl Send for Descriptor {}
// SAFETY: `&Descriptor` reads only, and the library does not have it.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    /// A descriptor with room for this many segments: one for each piece of memory, and one more for RDMA.
    ///
    /// # Errors
    /// The system has no memory, or the library refuses to register it.
    pub fn new(ptag: &Ptag, segments: u16) -> Result<Self> {
        let mut one = Self::several(ptag, 1, segments)?;
        Ok(one.swap_remove(0))
    }

    /// `count` descriptors in one registration.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn several(ptag: &Ptag, count: usize, segments: u16) -> Result<Vec<Self>> {
        let raw = raw::descriptor_bytes(usize::from(segments)).next_multiple_of(ALIGNMENT);
        let stride = size_of::<Header>() + raw;
        let bytes = stride.saturating_mul(count.max(1));
        let registration = Arc::new(Registration::map(ptag, bytes, Access::NONE)?);
        let (base, handle) = (registration.base(), registration.handle());
        let make = |index: usize| {
            let header = Header {
                registration: Arc::clone(&registration),
                buffers: Vec::new(),
                user_data: 0,
                handle,
                segments_max: segments,
            };
            // SAFETY: inside the mapping, which begins at a page; zero bytes are a valid descriptor behind it.
            unsafe {
                let place = base.add(index * stride);
                place.cast::<Header>().write(header);
                Self(place.add(size_of::<Header>()).cast())
            }
        };
        Ok((0..count).map(make).collect())
    }

    /// The descriptor that [`Self::into_raw`] gave away.
    ///
    /// # Safety
    /// `pointer` is from `into_raw`, which gave it away once more than this function has taken it back, and the library
    /// does not have it.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(pointer: NonNull<VIP_DESCRIPTOR>) -> Self {
        Self(pointer.cast())
    }

    /// Gives it away, with its region's handle.
    #[inline(always)]
    pub(crate) fn into_raw(self) -> (*mut VIP_DESCRIPTOR, VIP_MEM_HANDLE) {
        let this = std::mem::ManuallyDrop::new(self);
        (this.0.as_ptr().cast(), this.header().handle)
    }

    #[inline(always)]
    fn header_pointer(&self) -> NonNull<Header> {
        // SAFETY: the header lies before the control segment, in the same mapping.
        unsafe { self.0.cast::<Header>().sub(1) }
    }

    #[inline(always)]
    fn header(&self) -> &Header {
        // SAFETY: made in `several`; the library does not touch it.
        unsafe { self.header_pointer().as_ref() }
    }

    fn header_mut(&mut self) -> &mut Header {
        // SAFETY: as above, and this is the only owner.
        unsafe { self.header_pointer().as_mut() }
    }

    fn control(&self) -> &VIP_CONTROL_SEGMENT {
        // SAFETY: not posted, so no other code has it; its fields are integers.
        unsafe { self.0.as_ref() }
    }

    fn control_mut(&mut self) -> &mut VIP_CONTROL_SEGMENT {
        // SAFETY: as above, and this is the only owner.
        unsafe { self.0.as_mut() }
    }

    /// A number of the program's, 0 at first.
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.header().user_data
    }

    /// Sets the number of the program's.
    pub fn set_user_data(&mut self, number: u64) {
        self.header_mut().user_data = number;
    }

    /// Adds a buffer behind those that it has. Segments name it from the next `set_` function on.
    pub fn attach(&mut self, buffer: Buffer) {
        self.header_mut().buffers.push(buffer);
    }

    /// Takes all buffers off; no segment is left.
    pub fn detach(&mut self) -> Vec<Buffer> {
        let control = self.control_mut();
        (control.SegCount, control.Length) = (0, 0);
        std::mem::take(&mut self.header_mut().buffers)
    }

    /// The bytes of a buffer.
    ///
    /// # Panics
    /// There is no such buffer.
    #[must_use]
    pub fn data(&self, buffer: usize) -> &[u8] {
        &self.header().buffers[buffer]
    }

    /// The bytes of a buffer.
    ///
    /// # Panics
    /// There is no such buffer.
    #[must_use]
    pub fn data_mut(&mut self, buffer: usize) -> &mut [u8] {
        &mut self.header_mut().buffers[buffer]
    }

    /// The message that was received into the first buffer.
    #[must_use]
    pub fn received(&self) -> &[u8] {
        let buffers = &self.header().buffers;
        let first: &[u8] = buffers.first().map_or(&[], |buffer| buffer);
        &first[..first.len().min(self.length() as usize)]
    }

    /// Makes it a send of the first `length` bytes of its buffers.
    ///
    /// # Panics
    /// The buffers have fewer bytes, or there is no room for the segments.
    pub fn set_send(&mut self, length: u32) {
        self.set(VIP_CONTROL_OP_SENDRECV, None, &self.first(length));
    }

    /// Makes it a receive into all of its buffers.
    ///
    /// # Panics
    /// There is no room for the segments.
    pub fn set_receive(&mut self) {
        self.set(VIP_CONTROL_OP_SENDRECV, None, &self.first(self.capacity()));
    }

    /// Makes it an RDMA Write of the first `length` bytes of its buffers to the peer's memory.
    ///
    /// # Panics
    /// The buffers have fewer bytes, or there is no room for the segments.
    pub fn set_write(&mut self, length: u32, to: Remote) {
        self.set(VIP_CONTROL_OP_RDMAWRITE, Some(to), &self.first(length));
    }

    /// Makes it an RDMA Read of the peer's memory into the first `length` bytes of its buffers.
    ///
    /// # Panics
    /// The buffers have fewer bytes, or there is no room for the segments.
    pub fn set_read(&mut self, length: u32, from: Remote) {
        self.set(VIP_CONTROL_OP_RDMAREAD, Some(from), &self.first(length));
    }

    /// Makes it a send of these parts, each of the buffer with this number.
    ///
    /// # Panics
    /// A part is not inside its buffer, or there is no room for the segments.
    pub fn set_send_of(&mut self, parts: &[(usize, Range<u32>)]) {
        self.set(VIP_CONTROL_OP_SENDRECV, None, parts);
    }

    /// Lets a send, or an RDMA Write, carry 32 bits; `set_` functions undo it. An RDMA Write then takes one of the
    /// peer's receive descriptors.
    pub fn set_immediate(&mut self, value: u32) {
        let control = self.control_mut();
        control.ImmediateData = value;
        control.Control |= VIP_CONTROL_IMMEDIATE;
    }

    /// Lets it wait until all RDMA Reads before it are done; `set_` functions undo it.
    pub fn set_fence(&mut self) {
        self.control_mut().Control |= VIP_CONTROL_QFENCE;
    }

    fn capacity(&self) -> u32 {
        let lengths = self.header().buffers.iter().map(Buffer::length);
        lengths.fold(0, u32::saturating_add)
    }

    /// The first bytes of all buffers, as parts.
    fn first(&self, length: u32) -> Vec<(usize, Range<u32>)> {
        let (mut left, mut parts) = (length, Vec::new());
        for (number, buffer) in self.header().buffers.iter().enumerate() {
            let part = left.min(buffer.length());
            if part > 0 {
                parts.push((number, 0..part));
            }
            left -= part;
        }
        assert!(left == 0, "{length} bytes in buffers of {}", length - left);
        parts
    }

    fn set(&mut self, operation: u16, remote: Option<Remote>, parts: &[(usize, Range<u32>)]) {
        let count = parts.len() + usize::from(remote.is_some());
        assert!(
            count <= usize::from(self.header().segments_max),
            "{count} segments in a descriptor for {}",
            self.header().segments_max
        );
        let buffers = &self.header().buffers;
        let local = parts
            .iter()
            .map(|(number, part)| buffers[*number].segment(part.clone()));
        let remote = remote.map(|remote| (remote.address, remote.handle));
        // SAFETY: room for `segments_max`; it is not posted, and this is the only owner.
        unsafe { raw::write_descriptor(self.0.as_ptr().cast(), operation, remote, local) };
    }

    /// The result.
    #[inline(always)]
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_bits(self.control().Status)
    }

    /// Bytes received, or those of the operation.
    #[inline(always)]
    #[must_use]
    pub fn length(&self) -> u32 {
        self.control().Length
    }

    /// The 32 bits that came with the message, if it had any.
    #[inline(always)]
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        let control = self.control();
        (control.Status & VIP_STATUS_IMMEDIATE != 0).then_some(control.ImmediateData)
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Descriptor");
        shown.field("length", &self.length());
        shown.field("status", &self.status()).finish()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: written in `several`, dropped once. The registration may go with it: the last one ends it.
        unsafe { drop(self.header_pointer().read()) };
    }
}
