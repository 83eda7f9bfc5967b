//! Cancellation of threads (`pthread_cancel`, [decision 76](../../docs/decisions/0076-cancellation.md)).
//!
//! The C library ends a cancelled thread by unwinding its stack, which is safe only through frames without
//! destructors: a Rust frame that catches panics would abort the process, and a frame that is unwound while
//! it holds a lock leaves it locked. Therefore cancellation is disabled while Rust frames are on the stack,
//! and takes effect at frames without destructors only.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

const DISABLE: c_int = 1;
const DEFERRED: c_int = 0;

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
    // The functions behind `pthread_cleanup_push`: a handler runs when the frame that has its buffer is unwound.
    fn _pthread_cleanup_push(
        buffer: *mut Buffer,
        handler: extern "C" fn(*mut c_void),
        argument: *mut c_void,
    );
    fn _pthread_cleanup_pop(buffer: *mut Buffer, execute: c_int);
}

/// `struct _pthread_cleanup_buffer`: glibc and musl use four and three words of it.
#[repr(C)]
struct Buffer([usize; 4]);

/// The cancellation state and type before [`disable`]. It has no destructor.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    state: c_int,
    kind: c_int,
}

/// Disables cancellation of the calling thread. The type changes as well: glibc 2.36 sends a thread of the
/// asynchronous type a signal, which may arrive after the thread has disabled cancellation, and whose handler
/// only checks the type. It may arrive before this returns, so no frame may have a destructor to run here
/// either.
#[inline(always)]
pub fn disable() -> Before {
    let mut before = Before { state: 0, kind: 0 };
    // SAFETY: the results are valid; neither call acts on a cancellation.
    unsafe {
        pthread_setcancelstate(DISABLE, &raw mut before.state);
        pthread_setcanceltype(DEFERRED, &raw mut before.kind);
    }
    before
}

/// Restores the state before [`disable`]. A thread of the type PTHREAD_CANCEL_ASYNCHRONOUS may end here.
///
/// # Safety
/// No frame from here up to the application's has a destructor to run or catches panics.
#[inline(always)]
pub unsafe fn restore(before: Before) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        pthread_setcanceltype(before.kind, std::ptr::null_mut());
        pthread_setcancelstate(before.state, std::ptr::null_mut());
    }
}

/// Ends the calling thread here if it has been cancelled. To be called before [`disable`].
///
/// # Safety
/// As for [`restore`].
#[inline(always)]
pub unsafe fn point() {
    // SAFETY: guaranteed by the caller.
    unsafe { pthread_testcancel() };
}

/// Ends the calling thread here if it has been cancelled and could be before [`disable`]. Then `left` runs
/// with its argument, before any code of the application.
///
/// # Safety
/// As for [`restore`]; `left` may be called with `argument`.
#[inline(never)]
pub unsafe fn test(before: Before, left: extern "C" fn(*mut c_void), argument: *mut c_void) {
    let mut buffer = MaybeUninit::<Buffer>::uninit();
    // SAFETY: guaranteed by the caller; the buffer lives until it is popped.
    unsafe {
        _pthread_cleanup_push(buffer.as_mut_ptr(), left, argument);
        pthread_setcancelstate(before.state, std::ptr::null_mut());
        pthread_testcancel();
        pthread_setcancelstate(DISABLE, std::ptr::null_mut());
        _pthread_cleanup_pop(buffer.as_mut_ptr(), 0);
    }
}

/// Runs `body`. If it ends its thread (by `pthread_exit` or cancellation), `left` runs with its argument.
///
/// # Safety
/// As for [`test()`]; `body` may be called with `argument`.
#[inline(never)]
pub unsafe fn watch(
    body: extern "C-unwind" fn(*mut c_void),
    left: extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    let mut buffer = MaybeUninit::<Buffer>::uninit();
    // SAFETY: guaranteed by the caller; the buffer lives until it is popped.
    unsafe {
        _pthread_cleanup_push(buffer.as_mut_ptr(), left, argument);
        body(argument);
        _pthread_cleanup_pop(buffer.as_mut_ptr(), 0);
    }
}

/// Disables cancellation of the calling thread while this lives: around system calls that are cancellation
/// points, in calls that do not disable cancellation as a whole.
#[derive(Debug)]
#[must_use]
pub struct Off(c_int);

impl Off {
    /// Disables cancellation.
    #[inline]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Off {
        let mut state = 0;
        // SAFETY: the result is valid; disabling never acts on a cancellation.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut state) };
        Off(state)
    }
}

impl Drop for Off {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a thread of the deferred type does not end here. One of the asynchronous type may only call
        // functions that POSIX permits.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    unsafe extern "C" {
        fn pthread_self() -> libc::pthread_t;
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    static LEFT: AtomicU32 = AtomicU32::new(0);
    static PASSED: AtomicBool = AtomicBool::new(false);

    extern "C" fn left(by: *mut c_void) {
        LEFT.fetch_add(by.addr() as u32, Ordering::SeqCst);
    }

    extern "C-unwind" fn cancels_itself(_: *mut c_void) -> *mut c_void {
        let before = disable();
        // SAFETY: this frame and `test` have no destructors.
        unsafe {
            test(before, left, std::ptr::without_provenance_mut(100));
            pthread_cancel(pthread_self());
            {
                let _off = Off::new();
                libc::usleep(1);
            }
            libc::usleep(1);
            PASSED.store(true, Ordering::SeqCst);
            test(before, left, std::ptr::without_provenance_mut(1));
        }
        std::ptr::null_mut()
    }

    #[test]
    fn a_cancelled_thread_ends_where_it_is_tested() {
        // SAFETY: valid pointers; the function has the ABI of a start routine.
        let result = unsafe {
            let start: extern "C" fn(*mut c_void) -> *mut c_void = std::mem::transmute(
                cancels_itself as extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            );
            let (mut thread, mut result) = (0, std::ptr::null_mut());
            let no = std::ptr::null_mut();
            assert_eq!(
                libc::pthread_create(&raw mut thread, std::ptr::null(), start, no),
                0
            );
            assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
            result
        };
        assert!(PASSED.load(Ordering::SeqCst), "not while it is off");
        assert_eq!(result.addr(), usize::MAX, "PTHREAD_CANCELED");
        assert_eq!(LEFT.load(Ordering::SeqCst), 1);
    }
}
