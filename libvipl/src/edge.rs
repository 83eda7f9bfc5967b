//! The C edge: pointers in, results out, panics contained.

use std::panic::{AssertUnwindSafe, catch_unwind};

use vipl_abi::{VIP_RETURN, VIP_VI_ATTRIBUTES};
use vipl_core::Error;
use vipl_core::trace::{self, Call};

/// Describes a call for the log: its name, the arguments it reads and, behind the semicolon, those it
/// writes to. Nothing is done with them unless something is logged.
macro_rules! call {
    ($name:ident, $($in:ident)*; $($out:ident)*) => {
        move || vipl_core::trace::Call {
            name: stringify!($name),
            inputs: vec![$((stringify!($in), vipl_core::trace::Argument::from($in))),*],
            outputs: vec![$((stringify!($out), vipl_core::trace::Argument::from($out))),*],
        }
    };
}
pub(crate) use call;

/// Runs one entry point off the data path.
pub(crate) fn entry(
    describe: impl Fn() -> Call,
    body: impl FnOnce() -> Result<(), Error>,
) -> VIP_RETURN {
    trace::begin();
    let traced = trace::on().then(|| trace::Traced::new(&describe));
    let result = contained(code(body));
    if let Some(traced) = traced {
        traced.end(result);
    }
    if is_news(result) {
        trace::failed(&describe(), result);
    }
    result
}

/// Runs one entry point of the data path, whose body makes its return code itself. While nothing is traced a
/// call costs one load and one branch more than its body. Other errors than a bad argument are raised where
/// they are found.
///
/// A macro, so that the body stands in two places as two closures: one closure that is called in two places
/// would be inlined in none, which costs a third of all instructions of a poll.
macro_rules! fast {
    ($describe:expr, $body:expr $(,)?) => {
        if vipl_core::trace::on() {
            crate::edge::traced($describe, $body)
        } else {
            let result = crate::edge::contained($body);
            if result == VIP_RETURN::VIP_INVALID_PARAMETER {
                crate::edge::refused($describe);
            }
            result
        }
    };
}
pub(crate) use fast;

/// Turns the result of a body into a return code.
#[inline(always)]
pub(crate) fn code(body: impl FnOnce() -> Result<(), Error>) -> impl FnOnce() -> VIP_RETURN {
    move || match body() {
        Ok(()) => VIP_RETURN::VIP_SUCCESS,
        Err(error) => error.to_return(),
    }
}

/// Runs a body. A panic is our own bug: it is logged, the process goes on, and the caller gets
/// VIP_ERROR_RESOURCE.
#[inline(always)]
pub(crate) fn contained(body: impl FnOnce() -> VIP_RETURN) -> VIP_RETURN {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => vipl_core::bug::caught(&*panic),
    }
}

/// The call failed, and no deeper function tells all that there is to tell.
fn is_news(result: VIP_RETURN) -> bool {
    !matches!(
        result,
        VIP_RETURN::VIP_SUCCESS
            | VIP_RETURN::VIP_NOT_DONE
            | VIP_RETURN::VIP_TIMEOUT
            | VIP_RETURN::VIP_DESCRIPTOR_ERROR
    )
}

/// A call of the data path while calls are traced.
#[cold]
#[inline(never)]
pub(crate) fn traced(describe: impl Fn() -> Call, body: impl FnOnce() -> VIP_RETURN) -> VIP_RETURN {
    let traced = trace::Traced::new(&describe);
    let result = contained(body);
    traced.end(result);
    if is_news(result) {
        trace::failed(&describe(), result);
    }
    result
}

/// A call of the data path with an argument that is no good.
#[cold]
#[inline(never)]
pub(crate) fn refused(describe: impl Fn() -> Call) {
    trace::failed(&describe(), VIP_RETURN::VIP_INVALID_PARAMETER);
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
