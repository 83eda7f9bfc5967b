//! The C edge: pointers in, results out, panics contained.

use std::panic::{AssertUnwindSafe, catch_unwind};

use vipl_abi::{VIP_RETURN, VIP_VI_ATTRIBUTES};
use vipl_core::Error;

/// Runs one entry point. A panic is our own bug: it is logged, the process goes on, and the caller gets
/// VIP_ERROR_RESOURCE.
#[inline(always)]
pub(crate) fn entry(body: impl FnOnce() -> Result<(), Error>) -> VIP_RETURN {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => VIP_RETURN::VIP_SUCCESS,
        Ok(Err(error)) => error.to_return(),
        Err(panic) => vipl_core::bug::caught(&*panic),
    }
}

/// Refuses NULL (rule R2).
#[inline(always)]
pub(crate) fn required<T>(pointer: *mut T) -> Result<*mut T, Error> {
    if pointer.is_null() {
        Err(Error::InvalidParameter)
    } else {
        Ok(pointer)
    }
}

/// Writes an output of the caller.
///
/// # Safety
/// `out` is not NULL and, as the caller of VIPL promises, points to room for a `T`.
#[inline(always)]
pub(crate) unsafe fn put<T>(out: *mut T, value: T) {
    // SAFETY: promised by the caller; programs are known to pass unaligned addresses.
    unsafe { out.write_unaligned(value) }
}

/// Writes a structure field by field over zeroes, so that its padding is zero too and equal values are
/// equal bytes (NIC-08).
///
/// # Safety
/// As for [`put`].
macro_rules! put_fields {
    ($out:expr, $value:expr, $($field:ident),+ $(,)?) => {{
        let (out, value) = ($out, $value);
        out.cast::<u8>().write_bytes(0, size_of_val(&value));
        $((&raw mut (*out).$field).write_unaligned(value.$field);)+
    }};
}
pub(crate) use put_fields;

/// Writes the attributes of a VI.
///
/// # Safety
/// As for [`put`].
pub(crate) unsafe fn put_vi_attributes(out: *mut VIP_VI_ATTRIBUTES, value: VIP_VI_ATTRIBUTES) {
    // SAFETY: as asked of the caller.
    unsafe {
        put_fields!(
            out,
            value,
            ReliabilityLevel,
            MaxTransferSize,
            QoS,
            Ptag,
            EnableRdmaWrite,
            EnableRdmaRead
        );
    }
}
