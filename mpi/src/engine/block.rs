//! Memory of one endpoint: descriptors, and buffers of its own for what travels through them. One registration.
//!
//! ```text
//!   │ descriptors to send, 128 B │ to receive, 64 B │ slots: packets to send │ chunks: packets received │
//! ```

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use vipl_abi::*;

use crate::attributes::INJECT;
use crate::device::{Access, Device};
use crate::iov::Piece;
use crate::packet::{LONGEST_HEADER, SMALLEST_CHUNK};

/// Sends that may be posted at a time.
pub(crate) const SENDS: usize = 128;
const SLOT: usize = 1024;
const _: () = assert!(LONGEST_HEADER + INJECT <= SLOT);
const SEND_DESCRIPTOR: usize = 128;
const RECEIVE_DESCRIPTOR: usize = 64;
const SEGMENTS: usize = size_of::<VIP_CONTROL_SEGMENT>();
const _: () = assert!(SEGMENTS + 16 * (1 + crate::iov::IOV) <= SEND_DESCRIPTOR);

/// See the module.
pub(crate) struct Block {
    device: Arc<Device>,
    base: NonNull<u8>,
    bytes: usize,
    handle: u32,
    window: usize,
    chunk: usize,
}

// SAFETY: the block owns its memory.
unsafe impl Send for Block {}

/// The result of a completed descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub status: u32,
    pub length: usize,
}

impl Block {
    /// Allocates and registers.
    pub(crate) fn new(device: &Arc<Device>, window: usize, chunk: usize) -> Option<Block> {
        // A packet is one descriptor, and the peer may send as much as a receive holds.
        let most = device.limits.transfer.max(SMALLEST_CHUNK as usize);
        let chunk = chunk.next_multiple_of(64).min(most / 64 * 64);
        let bytes = SENDS * (SEND_DESCRIPTOR + SLOT) + window * (RECEIVE_DESCRIPTOR + chunk);
        // SAFETY: new memory, zeroed, and no other's.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let mut block = Block {
            device: device.clone(),
            base: NonNull::new(base.cast())?,
            bytes,
            handle: 0,
            window,
            chunk,
        };
        block.handle = device.register(base, bytes, Access::default())?;
        Some(block)
    }

    /// Its memory handle.
    #[inline]
    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    /// Bytes of a receive.
    #[inline]
    pub(crate) fn chunk(&self) -> usize {
        self.chunk
    }

    #[inline]
    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.bytes);
        // SAFETY: the callers stay inside.
        unsafe { self.base.as_ptr().add(offset) }
    }

    #[inline]
    fn send_descriptor(&self, at: usize) -> *mut VIP_DESCRIPTOR {
        self.at(at * SEND_DESCRIPTOR).cast()
    }

    #[inline]
    fn receive_descriptor(&self, at: usize) -> *mut VIP_DESCRIPTOR {
        self.at(SENDS * SEND_DESCRIPTOR + at * RECEIVE_DESCRIPTOR)
            .cast()
    }

    fn slots(&self) -> usize {
        SENDS * SEND_DESCRIPTOR + self.window * RECEIVE_DESCRIPTOR
    }

    /// The slot that belongs to a send.
    #[inline]
    pub(crate) fn slot(&mut self, at: usize) -> &mut [u8] {
        assert!(at < SENDS);
        // SAFETY: inside the block; the device reads a slot only while its send is posted, and the ring of sends hands
        // it out only when it is not.
        unsafe { std::slice::from_raw_parts_mut(self.at(self.slots() + at * SLOT), SLOT) }
    }

    /// The first bytes of a slot, or those behind its header, as a piece of memory.
    #[inline]
    pub(crate) fn slot_piece(&self, at: usize, length: usize) -> Piece {
        Piece {
            address: self.at(self.slots() + at * SLOT) as u64,
            length,
            key: self.handle,
        }
    }

    fn chunk_address(&self, at: usize) -> *mut u8 {
        self.at(self.slots() + SENDS * SLOT + at * self.chunk)
    }

    /// What a receive has got.
    #[inline]
    pub(crate) fn received(&self, at: usize, length: usize) -> &[u8] {
        assert!(at < self.window && length <= self.chunk);
        // SAFETY: inside the block; the device does not write to a chunk whose receive is done.
        unsafe { std::slice::from_raw_parts(self.chunk_address(at), length) }
    }

    /// Fills a descriptor to send and returns it.
    #[inline]
    pub(crate) fn prepare(
        &mut self,
        at: usize,
        control: u16,
        remote: Option<(u64, u32)>,
        pieces: impl Iterator<Item = Piece>,
    ) -> *mut VIP_DESCRIPTOR {
        assert!(at < SENDS);
        let descriptor = self.send_descriptor(at);
        let mut segments = 0;
        let mut length = 0;
        // SAFETY: the descriptor is ours until it is posted. Up to five segments fit behind its control segment, which
        // is asserted above; an address segment has the layout of a data segment.
        unsafe {
            let first = descriptor
                .cast::<u8>()
                .add(SEGMENTS)
                .cast::<VIP_DATA_SEGMENT>();
            let mut segment = |address: u64, handle: u32, bytes: u32| {
                assert!(segments <= crate::iov::IOV);
                first.add(segments).write(VIP_DATA_SEGMENT {
                    Data: VIP_PVOID64 {
                        AddressBits: address,
                    },
                    Handle: handle,
                    Length: bytes,
                });
                segments += 1;
            };
            if let Some((address, key)) = remote {
                segment(address, key, 0);
            }
            for piece in pieces {
                segment(piece.address, piece.key, piece.length as u32);
                length += piece.length as u32;
            }
            descriptor
                .cast::<VIP_CONTROL_SEGMENT>()
                .write(VIP_CONTROL_SEGMENT {
                    Next: VIP_PVOID64 { AddressBits: 0 },
                    NextHandle: 0,
                    SegCount: segments as u16,
                    Control: control,
                    Reserved: 0,
                    ImmediateData: 0,
                    Length: length,
                    Status: 0,
                });
        }
        descriptor
    }

    /// Fills the descriptor of a receive and returns it.
    #[inline]
    pub(crate) fn prepare_receive(&mut self, at: usize) -> *mut VIP_DESCRIPTOR {
        assert!(at < self.window);
        let descriptor = self.receive_descriptor(at);
        let segment = VIP_DATA_SEGMENT {
            Data: VIP_PVOID64 {
                AddressBits: self.chunk_address(at) as u64,
            },
            Handle: self.handle,
            Length: self.chunk as u32,
        };
        // SAFETY: the descriptor is ours until it is posted, and has room for one segment.
        unsafe {
            descriptor
                .cast::<u8>()
                .add(SEGMENTS)
                .cast::<VIP_DATA_SEGMENT>()
                .write(segment);
            descriptor
                .cast::<VIP_CONTROL_SEGMENT>()
                .write(VIP_CONTROL_SEGMENT {
                    Next: VIP_PVOID64 { AddressBits: 0 },
                    NextHandle: 0,
                    SegCount: 1,
                    Control: VIP_CONTROL_OP_SENDRECV,
                    Reserved: 0,
                    ImmediateData: 0,
                    Length: self.chunk as u32,
                    Status: 0,
                });
        }
        descriptor
    }

    /// The result of a completed descriptor.
    ///
    /// # Safety
    /// The library has just given it back.
    #[inline]
    pub(crate) unsafe fn outcome(&self, descriptor: *mut VIP_DESCRIPTOR) -> Outcome {
        // SAFETY: one of ours, complete.
        let control = unsafe { descriptor.cast::<VIP_CONTROL_SEGMENT>().read() };
        Outcome {
            status: control.Status,
            length: control.Length as usize,
        }
    }

    /// Which receive a descriptor belongs to.
    #[inline]
    pub(crate) fn receive_of(&self, descriptor: *mut VIP_DESCRIPTOR) -> Option<usize> {
        let offset = (descriptor as usize).wrapping_sub(self.receive_descriptor(0) as usize);
        let at = offset / RECEIVE_DESCRIPTOR;
        (at < self.window).then_some(at)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast::<c_void>();
        if self.handle != 0 {
            self.device.deregister(base, self.handle);
        }
        // SAFETY: mapped by `new` with this size; nothing refers to it any more.
        unsafe { libc::munmap(base, self.bytes) };
    }
}
