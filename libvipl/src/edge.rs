//! Common code of the C entry points: pointers, results, panics and cancellation.
//!
//! Entry points and the functions here that change the cancellation state are frames without destructors
//! outside of [`contained`], so that a cancelled thread may be unwound through them (decision 76). The fast
//! path has no cancellation point and does not change the state.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use vipl_abi::{VIP_RETURN, VIP_VI_ATTRIBUTES};
use vipl_core::trace::{self, Call, Watched};
use vipl_core::waiting::{Begun, Wait};
use vipl_core::{Error, shortage, watch};
use vipl_sys::cancel;

/// Describes a call for the log and for layers: its name, the arguments that it reads and, after the semicolon, those that
/// it writes. They are evaluated only if the call is watched or a line is logged.
macro_rules! call {
    ($name:ident, $($in:ident)*; $($out:ident)*) => {
        move || {
            const FUNCTION: u32 = vipl_plugin_abi::function(stringify!($name));
            vipl_core::trace::Call::new(
                stringify!($name),
                FUNCTION,
                [$((stringify!($in), vipl_core::trace::Argument::from($in))),*],
                [$((stringify!($out), vipl_core::trace::Argument::from($out))),*],
            )
        }
    };
}
pub(crate) use call;

/// Runs one entry point off the data path. A cancelled thread ends here, before the call has any effect.
pub(crate) fn entry(
    describe: impl Fn() -> Call,
    body: impl FnOnce() -> Result<(), Error>,
) -> VIP_RETURN {
    // SAFETY: as in `uncancelled`; the call has no effect so far.
    unsafe { cancel::point() };
    let before = cancel::disable();
    let result = contained_apart(move || described(describe, body));
    // SAFETY: as in `uncancelled`.
    unsafe { cancel::restore(before) };
    result
}

/// Runs one that releases something: also in cancelled threads, and in C++ destructors, which must not be
/// unwound.
pub(crate) fn release(
    describe: impl Fn() -> Call,
    body: impl FnOnce() -> Result<(), Error>,
) -> VIP_RETURN {
    uncancelled(move || described(describe, body))
}

fn described(describe: impl Fn() -> Call, body: impl FnOnce() -> Result<(), Error>) -> VIP_RETURN {
    trace::begin();
    if shortage::is_here()
        && let Some(refused) = shortage::refuse(&describe())
    {
        return refused;
    }
    let (watched, answer) = watched(&describe);
    let result = answer.unwrap_or_else(|| contained(code(body)));
    done(&describe, watched, result)
}

/// Shows a call to the log and to layers, and returns the result if a layer answers it. What they keep of a call is large: a
/// call that is not watched does not move it about.
fn watched(describe: &impl Fn() -> Call) -> (Option<Box<Watched>>, Option<VIP_RETURN>) {
    #[cold]
    #[inline(never)]
    fn shown(describe: &impl Fn() -> Call) -> (Option<Box<Watched>>, Option<VIP_RETURN>) {
        let (watched, answer) = Watched::new(describe, 0);
        (Some(Box::new(watched)), answer)
    }
    if watch::on() {
        shown(describe)
    } else {
        (None, None)
    }
}

/// Runs a function with cancellation disabled. The calling thread is not cancelled here either, unless it has
/// the asynchronous type.
#[inline(always)]
fn uncancelled(body: impl FnOnce() -> VIP_RETURN) -> VIP_RETURN {
    let before = cancel::disable();
    let result = contained_apart(body);
    // SAFETY: this frame, and those of its callers up to the application's, have no destructors.
    unsafe { cancel::restore(before) };
    result
}

/// As [`contained`], in a separate frame: a frame that catches panics cannot be unwound by a thread cancelled
/// at an arbitrary instruction, as one of the asynchronous type may be.
#[inline(never)]
fn contained_apart(body: impl FnOnce() -> VIP_RETURN) -> VIP_RETURN {
    contained(body)
}

/// Runs one entry point that waits: `begin` does the part that does not wait, the wait runs in slices, and
/// `hand_out` converts its result into a return code.
///
/// A cancelled thread ends here: before the call has any effect, or between two slices, after giving the wait
/// up.
pub(crate) fn waiting<W: Wait>(
    describe: impl Fn() -> Call,
    begin: impl FnOnce() -> Begun<W>,
    hand_out: impl Fn(W::Found) -> VIP_RETURN,
) -> VIP_RETURN {
    // SAFETY: as in `uncancelled`; the call has no effect so far.
    unsafe { cancel::point() };
    let before = cancel::disable();
    let mut seat = Seat::<W>(MaybeUninit::uninit(), MaybeUninit::uninit());
    let mut result = contained_wait(|| {
        if shortage::is_here()
            && let Some(refused) = shortage::refuse(&describe())
        {
            return Some(refused);
        }
        let (watched, answer) = watched(&describe);
        if let Some(answer) = answer {
            return Some(done(&describe, watched, answer));
        }
        match begin() {
            Begun::Over(found) => Some(done(&describe, watched, hand_out(found))),
            Begun::Waits(wait) => {
                seat.0.write(wait);
                seat.1.write(watched);
                None
            }
        }
    });
    while result.is_none() {
        result = contained_wait(|| {
            // SAFETY: written above, and only taken at the end.
            let found = unsafe { seat.0.assume_init_mut() }.slice()?;
            // SAFETY: as above; this is the end.
            let watched = unsafe {
                seat.0.assume_init_drop();
                seat.1.assume_init_read()
            };
            Some(done(&describe, watched, hand_out(found)))
        });
        if result.is_none() {
            // SAFETY: as in `uncancelled`; `give_up::<W>` takes the seat, which is full.
            unsafe { cancel::test(before, give_up::<W>, (&raw mut seat).cast::<c_void>()) };
        }
    }
    // SAFETY: as in `uncancelled`.
    unsafe { cancel::restore(before) };
    result.unwrap_or(VIP_RETURN::VIP_ERROR_RESOURCE)
}

/// The state of a wait between two slices. It has no destructor: a cancelled thread is unwound past it.
struct Seat<W>(MaybeUninit<W>, MaybeUninit<Option<Box<Watched>>>);

/// Gives the wait up, since the waiting thread is cancelled.
extern "C" fn give_up<W: Wait>(seat: *mut c_void) {
    let _ = contained_wait(|| {
        // SAFETY: the seat of the calling thread, which is full and not used any more.
        unsafe {
            let seat = &mut *seat.cast::<Seat<W>>();
            seat.0.assume_init_drop();
            seat.1.assume_init_drop();
        }
        None
    });
}

/// Reports the end of a call.
fn done(
    describe: &impl Fn() -> Call,
    watched: Option<Box<Watched>>,
    result: VIP_RETURN,
) -> VIP_RETURN {
    if let Some(watched) = watched {
        watched.end(result);
    }
    if is_unexplained(result) {
        trace::failed(&describe(), result);
    }
    result
}

/// As [`contained_apart`]; without a result the wait continues.
#[inline(never)]
fn contained_wait(body: impl FnOnce() -> Option<VIP_RETURN>) -> Option<VIP_RETURN> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => Some(vipl_core::bug::caught(&*panic)),
    }
}

/// Runs one entry point of the data path, with these arguments. `$usual` is the fast path, which returns
/// `None` in all other cases; `$any` handles those. While no call is watched, this costs one load and one
/// branch more than the fast path, and nothing else of layers is in it (`ctest/tests/layers.rs`).
///
/// The other cases are in a separate function, which takes the arguments in registers: otherwise the fast
/// path would have to save half of them, and as many that it does not use, a quarter of its instructions.
macro_rules! fast {
    ($describe:expr, ($($argument:ident: $type:ty),+), $usual:expr, $any:expr $(,)?) => {{
        #[inline(never)]
        extern "C-unwind" fn any_from($($argument: $type),+, caller: usize) -> VIP_RETURN {
            crate::edge::full_from(caller, $describe, $any)
        }
        crate::edge::with_caller!(any, any_from, ($($argument: $type),+));
        match crate::edge::usual($usual) {
            Some(result) => result,
            // SAFETY: the arguments of the exported function.
            None => unsafe { any($($argument),+) },
        }
    }};
}
pub(crate) use fast;

/// Defines a function that calls another one with one argument more: the address to which it returns itself. The exported
/// function ends in a jump to it, so that address is in the application; else it is in this library, and layers search
/// the stack as they do elsewhere.
macro_rules! with_caller {
    ($name:ident, $target:ident, ($one:ident: $first:ty, $two:ident: $second:ty)) => {
        crate::edge::with_caller!(@ $name, $target, "rdx", ($one: $first, $two: $second));
    };
    ($name:ident, $target:ident, ($one:ident: $first:ty, $two:ident: $second:ty, $three:ident: $third:ty)) => {
        crate::edge::with_caller!(@ $name, $target, "rcx", ($one: $first, $two: $second, $three: $third));
    };
    (@ $name:ident, $target:ident, $register:literal, ($($argument:ident: $type:ty),+)) => {
        #[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name($($argument: $type),+) -> VIP_RETURN {
            std::arch::naked_asm!(
                ".cfi_startproc",
                concat!("mov ", $register, ", [rsp]"),
                "jmp {}",
                ".cfi_endproc",
                sym $target,
            )
        }
        #[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64")))]
        #[inline(never)]
        unsafe extern "C-unwind" fn $name($($argument: $type),+) -> VIP_RETURN {
            $target($($argument),+, 0)
        }
    };
}
pub(crate) use with_caller;

/// The fast path, unless calls are watched.
#[inline(always)]
pub(crate) fn usual(body: impl FnOnce() -> Option<VIP_RETURN>) -> Option<VIP_RETURN> {
    if watch::on() {
        return None;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => Some(vipl_core::bug::caught(&*panic)),
    }
}

/// Converts the result of a body into a return code.
#[inline(always)]
pub(crate) fn code(body: impl FnOnce() -> Result<(), Error>) -> impl FnOnce() -> VIP_RETURN {
    move || match body() {
        Ok(()) => VIP_RETURN::VIP_SUCCESS,
        Err(error) => error.to_return(),
    }
}

/// Runs a body. A panic is a bug of the library: it is logged, the process continues, and the caller receives
/// VIP_ERROR_RESOURCE.
#[inline(always)]
pub(crate) fn contained(body: impl FnOnce() -> VIP_RETURN) -> VIP_RETURN {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => vipl_core::bug::caught(&*panic),
    }
}

/// Whether a call failed with an error that inner functions have not fully explained.
fn is_unexplained(result: VIP_RETURN) -> bool {
    !matches!(
        result,
        VIP_RETURN::VIP_SUCCESS
            | VIP_RETURN::VIP_NOT_DONE
            | VIP_RETURN::VIP_TIMEOUT
            | VIP_RETURN::VIP_DESCRIPTOR_ERROR
    )
}

/// Runs one entry point of the data path in all cases. Its body returns the code itself; errors other than an
/// invalid argument are raised where they are detected.
pub(crate) fn full(describe: impl Fn() -> Call, body: impl FnOnce() -> VIP_RETURN) -> VIP_RETURN {
    full_from(0, describe, body)
}

/// The same; `caller` is where the application goes on after the call, or 0.
pub(crate) fn full_from(
    caller: usize,
    describe: impl Fn() -> Call,
    body: impl FnOnce() -> VIP_RETURN,
) -> VIP_RETURN {
    uncancelled(move || {
        if watch::on() {
            return full_watched(caller, describe, body);
        }
        let result = contained(body);
        if result == VIP_RETURN::VIP_INVALID_PARAMETER {
            trace::failed(&describe(), result);
        }
        result
    })
}

/// The same while calls are watched.
fn full_watched(
    caller: usize,
    describe: impl Fn() -> Call,
    body: impl FnOnce() -> VIP_RETURN,
) -> VIP_RETURN {
    let (watched, answer) = Watched::new(&describe, caller);
    let result = answer.unwrap_or_else(|| contained(body));
    watched.end(result);
    if is_unexplained(result) {
        trace::failed(&describe(), result);
    }
    result
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
/// `out` is not NULL and points to memory for a `T`, guaranteed by the application.
#[inline(always)]
pub(crate) unsafe fn put<T>(out: *mut T, value: T) {
    // SAFETY: guaranteed by the caller; some applications pass unaligned addresses.
    unsafe { out.write_unaligned(value) }
}

/// Writes a structure field by field over zeroes, so that its padding is zero and equal values have equal
/// bytes (NIC-08).
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
    // SAFETY: guaranteed by the caller.
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
