//! Handles that the application sees. They have the size of a pointer but are not one: kind, generation and slot.
//!
//! ```text
//!   64 bits:  kind 8 │ generation 32 │ slot 24        32 bits:  kind 3 │ generation 15 │ slot 14
//! ```

use std::ffi::c_void;

/// The kind of object that a handle refers to. NULL is never a handle, since no kind is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Kind {
    Nic = 1,
    Vi = 2,
    Cq = 3,
    Ptag = 4,
    Connection = 5,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Nic => "a NIC",
            Kind::Vi => "a VI",
            Kind::Cq => "a completion queue",
            Kind::Ptag => "a protection tag",
            Kind::Connection => "a connection request",
        })
    }
}

const WIDE: bool = usize::BITS == 64;
/// Bits of the slot number.
pub(crate) const SLOT_BITS: u32 = if WIDE { 24 } else { 14 };
const GENERATION_BITS: u32 = if WIDE { 32 } else { 15 };

/// The parts of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) generation: u32,
    pub(crate) slot: u32,
}

/// Truncates a counter to the bits of a handle, and avoids 0.
pub(crate) fn generation(counter: u32) -> u32 {
    let cut = counter & (((1u64 << GENERATION_BITS) - 1) as u32);
    if cut == 0 { 1 } else { cut }
}

pub(crate) fn join(kind: Kind, parts: Parts) -> *mut c_void {
    let bits = (kind as usize) << (SLOT_BITS + GENERATION_BITS)
        | (parts.generation as usize) << SLOT_BITS
        | parts.slot as usize;
    std::ptr::without_provenance_mut(bits)
}

/// The kind that a handle claims to have.
pub(crate) fn kind(handle: *mut c_void) -> Option<Kind> {
    [Kind::Nic, Kind::Vi, Kind::Cq, Kind::Ptag, Kind::Connection]
        .into_iter()
        .find(|kind| split(*kind, handle).is_some())
}

/// The slot number that a handle claims to have.
#[inline(always)]
pub(crate) fn slot(handle: *mut c_void) -> usize {
    handle.addr() & ((1 << SLOT_BITS) - 1)
}

pub(crate) fn split(kind: Kind, handle: *mut c_void) -> Option<Parts> {
    let bits = handle.addr();
    if bits >> (SLOT_BITS + GENERATION_BITS) != kind as usize {
        return None;
    }
    Some(Parts {
        generation: (bits >> SLOT_BITS) as u32 & (((1u64 << GENERATION_BITS) - 1) as u32),
        slot: slot(handle) as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_keeps_its_parts_and_its_kind() {
        let parts = Parts {
            generation: 77,
            slot: 12_345,
        };
        let handle = join(Kind::Vi, parts);
        assert_eq!(split(Kind::Vi, handle), Some(parts));
        assert_eq!(split(Kind::Cq, handle), None);
        assert_eq!(split(Kind::Vi, std::ptr::null_mut()), None);
        assert_eq!(
            split(Kind::Vi, std::ptr::without_provenance_mut(usize::MAX)),
            None
        );
    }

    #[test]
    fn a_generation_is_never_zero() {
        assert_ne!(generation(0), 0);
        assert_ne!(generation(1 << 31), 0);
    }
}
