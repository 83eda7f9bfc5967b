//! Reads memory of the application, whose pointers may be invalid: a fault is caught and gives `None`.

use std::mem::MaybeUninit;

use vipl_abi::{
    VIP_CONTROL_OP_MASK, VIP_DESCRIPTOR, VIP_DESCRIPTOR_ALIGNMENT, VIP_MEM_ATTRIBUTES,
    VIP_VI_ATTRIBUTES,
};

/// Types for which every bit pattern is a value.
pub trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for i32 {}
impl Plain for usize {}
// Integers and pointers.
impl Plain for VIP_VI_ATTRIBUTES {}
impl Plain for VIP_MEM_ATTRIBUTES {}
impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Reads a value.
#[inline]
pub fn read<T: Plain>(from: *const T) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: room for a `T`, of which every bit pattern is a value; faults are caught.
    unsafe {
        vipl_guard::copy(value.as_mut_ptr().cast(), from.cast(), size_of::<T>()).ok()?;
        Some(value.assume_init())
    }
}

/// Reads bytes into a buffer; false: the address is bad.
pub fn bytes(from: u64, into: &mut [u8]) -> bool {
    let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
    // SAFETY: room for as many bytes; faults are caught.
    unsafe { vipl_guard::copy(into.as_mut_ptr().cast(), from.cast(), into.len()).is_ok() }
}

/// Reads a NUL-terminated text, up to a bad address and `most` bytes at most.
pub fn text(from: u64, most: usize) -> Vec<u8> {
    let mut found = Vec::new();
    let mut byte = [0];
    while found.len() < most && bytes(from + found.len() as u64, &mut byte) && byte[0] != 0 {
        found.push(byte[0]);
    }
    found
}

/// Reads a `VIP_NET_ADDRESS`: host and discriminator, of each `most` bytes at most. `None`: an address is bad.
pub fn net_address(from: u64, most: usize) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut lengths = [0; 4];
    if !bytes(from, &mut lengths) {
        return None;
    }
    let [a, b, c, d] = lengths;
    let length = |low, high| usize::from(u16::from_ne_bytes([low, high]));
    let part = |at: u64, length: usize| {
        let mut part = vec![0; length.min(most)];
        bytes(at, &mut part).then_some(part)
    };
    let (host, point) = (length(a, b), length(c, d));
    let first = from + lengths.len() as u64;
    Some((part(first, host)?, part(first + host as u64, point)?))
}

/// One segment of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address.
    pub address: u64,
    /// Memory handle.
    pub handle: u32,
    /// Bytes.
    pub length: u32,
}

/// Most segments that are read of a descriptor.
const SEGMENTS_MAX: usize = 252;

/// The control segment of a descriptor, and the place of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Control bits.
    pub control: u16,
    /// Number of segments.
    pub segments: u16,
    /// Immediate data.
    pub immediate: u32,
    /// Bytes, as the application says.
    pub length: u32,
    /// Status bits.
    pub status: u32,
    at: u64,
}

/// Reads a descriptor. `None`: its address is not aligned, or bad.
#[inline]
pub fn posted(at: *const VIP_DESCRIPTOR) -> Option<Posted> {
    if at.is_null() || !at.addr().is_multiple_of(VIP_DESCRIPTOR_ALIGNMENT) {
        return None;
    }
    let words = read(at.cast::<[u32; 8]>())?;
    Some(Posted {
        segments: words[3] as u16,
        control: (words[3] >> 16) as u16,
        immediate: words[5],
        length: words[6],
        status: words[7],
        at: at.expose_provenance() as u64,
    })
}

impl Posted {
    /// Whether the first segment names memory of the peer.
    pub fn is_rdma(&self) -> bool {
        self.control & VIP_CONTROL_OP_MASK != 0
    }

    /// The segment with this number. `None`: there is none, or its address is bad.
    #[inline]
    pub fn segment(&self, number: u16) -> Option<Segment> {
        if number >= self.segments || usize::from(number) >= SEGMENTS_MAX {
            return None;
        }
        let at = self.at as usize + 32 + 16 * usize::from(number);
        let [low, high, handle, length] = read(std::ptr::with_exposed_provenance::<[u32; 4]>(at))?;
        Some(Segment {
            address: vipl_guard::own_address(u64::from(low) | u64::from(high) << 32),
            handle,
            length,
        })
    }

    /// Its data segments, those in memory of this process.
    pub fn data(&self) -> impl Iterator<Item = Segment> + use<> {
        let this = *self;
        let first = u16::from(this.is_rdma());
        (first..this.segments).map_while(move |number| this.segment(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_addresses_end_where_they_should() {
        vipl_guard::install();
        let at = |bytes: &[u8]| bytes.as_ptr().expose_provenance() as u64;
        assert_eq!(text(at(b"name\0more"), 64), b"name");
        assert_eq!(text(at(b"name\0more"), 2), b"na");
        let mut address = vec![0; 4];
        address[..2].copy_from_slice(&6_u16.to_ne_bytes());
        address[2..].copy_from_slice(&3_u16.to_ne_bytes());
        address.extend(b"hostesabcbehind");
        let parts = |host: &[u8], point: &[u8]| Some((host.to_vec(), point.to_vec()));
        assert_eq!(net_address(at(&address), 64), parts(b"hostes", b"abc"));
        // The discriminator is behind the whole host.
        assert_eq!(net_address(at(&address), 2), parts(b"ho", b"ab"));
        if vipl_guard::CATCHES {
            assert_eq!(text(0, 64), b"");
            assert_eq!(net_address(0, 64), None);
        }
    }
}
