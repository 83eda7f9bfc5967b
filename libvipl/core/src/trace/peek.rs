//! Reads memory of the application, whose pointers may be invalid: a fault is caught and returns `None`.

use std::mem::MaybeUninit;

use vipl_abi::VIP_DESCRIPTOR;
use vipl_guard::{Image, Segment};

/// Reads a plain value of the application.
pub(crate) fn read<T: Copy>(from: *const T) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: room for a `T`; faults are caught. The types read here are integers, addresses and structures
    // of them; every bit pattern is a value.
    unsafe {
        vipl_guard::copy(value.as_mut_ptr().cast(), from.cast(), size_of::<T>()).ok()?;
        Some(value.assume_init())
    }
}

/// The fields of a descriptor.
pub(crate) fn image(at: *const VIP_DESCRIPTOR) -> Option<Image> {
    // SAFETY: the callers have checked the alignment; faults are caught.
    unsafe { vipl_guard::load_descriptor(at.cast()) }.ok()
}

/// One data segment of a descriptor.
pub(crate) fn segment(at: *const VIP_DESCRIPTOR, number: u16) -> Option<Segment> {
    let place = 32 + 16 * usize::from(number);
    read(at.cast::<u8>().wrapping_add(place).cast::<Segment>()).map(Segment::local)
}
