//! Our own addition for tools, declared in `vipl_ext.h`: what the library knows, as JSON.

use std::ffi::CStr;

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
pub unsafe extern "C" fn vipl_describe(
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
