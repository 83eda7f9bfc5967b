//! Memory of a process: buffers between inaccessible pages, and descriptors.

use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::fence;

use vipl_abi::VIP_CONTROL_OP_SENDRECV;
use vipl_clan_proto::vi::Segment;

/// A descriptor in the memory of the process.
#[repr(C, align(64))]
pub struct Fields {
    pub next: [u32; 3],
    pub seg_count: u16,
    pub control: u16,
    pub reserved: u32,
    pub immediate: u32,
    pub length: u32,
    pub status: u32,
    pub segments: [Segment; 254],
}

/// Never freed: the device may write its Status after the test has taken the completion, and after its end.
pub struct Descriptor(pub &'static mut Fields);

impl Descriptor {
    pub fn new(control: u16, length: u32, segments: &[Segment]) -> Descriptor {
        let mut list = [Segment::default(); 254];
        list[..segments.len()].copy_from_slice(segments);
        Descriptor(Box::leak(Box::new(Fields {
            next: [0; 3],
            seg_count: segments.len() as u16,
            control,
            reserved: 0,
            immediate: 0,
            length,
            status: 0,
            segments: list,
        })))
    }

    /// A receive into these segments.
    pub fn into(segments: &[Segment]) -> Descriptor {
        Descriptor::new(0, 0, segments)
    }

    /// A send from these segments.
    pub fn from(segments: &[Segment]) -> Descriptor {
        let length = segments.iter().map(|s| s.length).sum();
        Descriptor::new(VIP_CONTROL_OP_SENDRECV, length, segments)
    }

    pub fn address(&self) -> u64 {
        &raw const *self.0 as u64
    }

    /// The result that the device has written: status, length, immediate data.
    pub fn result(&self) -> (u32, u32, u32) {
        // SAFETY: valid words; the device writes them.
        unsafe {
            let status = (&raw const self.0.status).read_volatile();
            fence(Acquire);
            (
                status,
                (&raw const self.0.length).read_volatile(),
                (&raw const self.0.immediate).read_volatile(),
            )
        }
    }
}

/// Memory of the process between inaccessible pages: an access beyond it fails.
pub struct Memory {
    base: *mut u8,
    bytes: usize,
}

const PAGE: usize = 4096;

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        let bytes = bytes.next_multiple_of(PAGE);
        // SAFETY: a new mapping, opened up but for its first and last page.
        let base = unsafe {
            let (closed, open) = (libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let whole = libc::mmap(std::ptr::null_mut(), bytes + 2 * PAGE, closed, flags, -1, 0);
            assert_ne!(whole, libc::MAP_FAILED);
            let base = whole.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(base.cast(), bytes, open), 0);
            base
        };
        Memory { base, bytes }
    }

    pub fn base(&self) -> u64 {
        self.base as u64
    }

    pub fn fill(&mut self, seed: u8) {
        for place in 0..self.bytes / 8 {
            let word = (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(seed) << 56;
            // SAFETY: inside the memory.
            unsafe { self.base.cast::<u64>().add(place).write_volatile(word) };
        }
    }

    /// A copy of its contents, read as memory that others write.
    pub fn copy(&self, offset: usize, bytes: usize) -> Vec<u8> {
        (offset..offset + bytes)
            // SAFETY: inside the memory.
            .map(|at| unsafe { self.base.add(at).read_volatile() })
            .collect()
    }

    pub fn segment(&self, handle: u32, offset: u64, length: u32) -> Segment {
        Segment {
            address: self.base() + offset,
            handle,
            length,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with a page on each side.
        unsafe { libc::munmap(self.base.sub(PAGE).cast(), self.bytes + 2 * PAGE) };
    }
}
