//! Our own additions, declared in `vipl_ext.h`: what the library knows, as JSON, and what its codes mean.

use std::ffi::{CStr, c_int};

use vipl_abi::*;

use crate::edge::{call, entry, put, required};

/// Describes what the library knows about a topic, as one NUL-terminated JSON document.
///
/// Topics: `version`, `settings`, `plugins`, `devices`, `counters`, `budgets` (what this user has at the
/// Kernel Agent, and may have), `map NAME` (where a device name goes and why).
/// `Length`: in, bytes of `Buffer`; out, bytes of the document with its NUL. When the buffer is too
/// small (or NULL) the result is VIP_ERROR_RESOURCE and `Length` holds the size needed. An unknown
/// topic is VIP_INVALID_PARAMETER.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vipl_describe(
    Topic: *const VIP_CHAR,
    Buffer: *mut VIP_CHAR,
    Length: *mut VIP_ULONG,
) -> VIP_RETURN {
    entry(call!(vipl_describe, Topic Buffer; Length), move || {
        required(Topic.cast_mut())?;
        let length = required(Length)?;
        // SAFETY: not NULL; a NUL-terminated string.
        let topic = unsafe { CStr::from_ptr(Topic) };
        let text = vipl_core::describe::topic(topic)?;
        // SAFETY: checked above.
        let room = unsafe { length.read_unaligned() };
        let needed = text.len() as VIP_ULONG + 1;
        // SAFETY: checked above.
        unsafe { put(length, needed) };
        if Buffer.is_null() || room < needed {
            return Err(vipl_core::Error::Resource);
        }
        // SAFETY: `Buffer` has room for `needed` bytes, as the caller said.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), Buffer, text.len());
            *Buffer.add(text.len()) = 0;
        }
        Ok(())
    })
}

/// Name and meaning of what a function has returned: "VIP_TIMEOUT: the time is up".
///
/// The text is constant. Any number may be asked for, in any thread, also before VipOpenNic.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn vipl_strerror(Code: c_int) -> *const VIP_CHAR {
    vipl_core::meaning::of_return(Code).as_ptr()
}

/// Name and meaning of the code that an error callback gets: "VIP_ERROR_CONN_LOST: the connection is lost".
///
/// The text is constant. Any number may be asked for, in any thread, also before VipOpenNic.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn vipl_strerror_async(Code: c_int) -> *const VIP_CHAR {
    vipl_core::meaning::of_error(Code).as_ptr()
}

/// Name of a VI's state: "VIP_STATE_CONNECTED".
///
/// The text is constant. Any number may be asked for, in any thread, also before VipOpenNic.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn vipl_state_name(State: c_int) -> *const VIP_CHAR {
    vipl_core::meaning::of_state(State).as_ptr()
}

/// Whether empty polls of the calling thread, as VipCQDone, VipSendDone and VipRecvDone make them, may give its processor away
/// now and then: VIP_TRUE, unless set otherwise. Returns what held before.
///
/// For those who poll while they hold a lock of their own: others wait for it as long as a yield takes, which is a time slice
/// on a machine that is busy. Any thread, also before VipOpenNic.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn vipl_may_yield(May: VIP_BOOLEAN) -> VIP_BOOLEAN {
    vipl_core::set_may_yield(May != 0).into()
}

/// Names of the bits of a descriptor's Status: "DONE|LENGTH_ERROR|OP_RECEIVE".
///
/// Writes at most `Length` bytes to `Buffer`, the last one NUL, and nothing if `Length` is 0. Gives the bytes
/// that all of it takes, with its NUL. Any thread, also before VipOpenNic.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vipl_status_text(
    Status: VIP_UINT32,
    Buffer: *mut VIP_CHAR,
    Length: VIP_ULONG,
) -> VIP_ULONG {
    let text = vipl_core::meaning::of_status(Status);
    if Length > 0 && !Buffer.is_null() {
        let bytes = text.len().min(Length as usize - 1);
        // SAFETY: `Buffer` has room for `Length` bytes, as the caller said.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), Buffer, bytes);
            *Buffer.add(bytes) = 0;
        }
    }
    text.len() as VIP_ULONG + 1
}
