//! Extensions of this implementation, declared in `vipl_ext.h`: memory, descriptors for event loops, the library's state as
//! JSON, and descriptions of its codes.

use std::ffi::{CStr, c_int};

use vipl_abi::*;
use vipl_core::cq;

use crate::edge::{call, entry, put, release, required};

/// Describes the library's state about a topic, as one NUL-terminated JSON document.
///
/// - `Topic`: What to describe, NUL-terminated.
/// - `Buffer`: Out: the document, NUL-terminated. NULL: only ask for its size.
/// - `Length`: In: bytes of `Buffer`. Out: bytes of the document with its NUL.
///
/// Topics: `version`, `settings`, `plugins`, `layers`, `devices`, `counters`, `budgets` (usage and limits of this user
/// at the Kernel Agent), `map NAME` (the plug-in of a device name, and the reason).
///
/// - VIP_ERROR_RESOURCE: the buffer is too small, or NULL: `Length` has the size that is needed.
/// - VIP_INVALID_PARAMETER: there is no such topic, or `Topic` or `Length` is NULL.
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
        // SAFETY: `Buffer` has room for `needed` bytes, as stated by the caller.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), Buffer, text.len());
            *Buffer.add(text.len()) = 0;
        }
        Ok(())
    })
}

/// Name and meaning of a return code: "VIP_TIMEOUT: the time is up".
///
/// - `Code`: The code, or any number.
///
/// The text is constant. Any number is permitted, in any thread, also before VipOpenNic.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn vipl_strerror(Code: c_int) -> *const VIP_CHAR {
    vipl_core::meaning::of_return(Code).as_ptr()
}

/// Name and meaning of a code passed to an error callback: "VIP_ERROR_CONN_LOST: the connection is lost".
///
/// - `Code`: The code, or any number.
///
/// The text is constant. Any number is permitted, in any thread, also before VipOpenNic.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn vipl_strerror_async(Code: c_int) -> *const VIP_CHAR {
    vipl_core::meaning::of_error(Code).as_ptr()
}

/// Name of a VI's state: "VIP_STATE_CONNECTED".
///
/// - `State`: A VIP_VI_STATE, or any number.
///
/// The text is constant. Any number is permitted, in any thread, also before VipOpenNic.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn vipl_state_name(State: c_int) -> *const VIP_CHAR {
    vipl_core::meaning::of_state(State).as_ptr()
}

/// Sets whether empty polls of the calling thread (VipCQDone, VipSendDone and VipRecvDone) may occasionally
/// yield its processor: VIP_TRUE by default. Returns the previous value.
///
/// - `May`: VIP_TRUE: empty polls may yield; VIP_FALSE: they do not.
///
/// For applications that poll while they hold a lock: other threads wait for it during a yield, which takes a
/// time slice on a busy machine. Any thread, also before VipOpenNic.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn vipl_may_yield(May: VIP_BOOLEAN) -> VIP_BOOLEAN {
    vipl_core::set_may_yield(May != 0).into()
}

/// Names of the bits of a descriptor's Status: "DONE|LENGTH_ERROR|OP_RECEIVE".
///
/// - `Status`: Status of a descriptor.
/// - `Buffer`: Out: the text, cut to what fits, NUL-terminated. NULL: nothing is written.
/// - `Length`: Bytes of `Buffer`.
///
/// Writes at most `Length` bytes to `Buffer`, the last one NUL, and nothing if `Length` is 0. Returns the
/// size of the complete text, with its NUL. Any thread, also before VipOpenNic.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vipl_status_text(
    Status: VIP_UINT32,
    Buffer: *mut VIP_CHAR,
    Length: VIP_ULONG,
) -> VIP_ULONG {
    let text = vipl_core::meaning::of_status(Status);
    if Length > 0 && !Buffer.is_null() {
        let bytes = text.len().min(Length as usize - 1);
        // SAFETY: `Buffer` has room for `Length` bytes, as stated by the caller.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), Buffer, bytes);
            *Buffer.add(bytes) = 0;
        }
    }
    text.len() as VIP_ULONG + 1
}

/// Allocates memory that peers on this host reach fastest by RDMA: zeroed, whole pages, `Length` bytes or more.
///
/// - `Length`: Bytes, above 0; rounded up to whole pages.
/// - `Address`: The memory. vipl_alloc writes it; vipl_free takes NULL, too.
///
/// It is registered by VipRegisterMem like any other memory, wholly or in parts, with any NIC handles. Over `loopback`, peers
/// then map what their RDMA is permitted to access, so that RDMA is a store and no system call; to other devices it is ordinary
/// memory. It belongs to the process and is taken from the system at once. A child made by `fork` does not have it: an access there
/// ends the child. Any thread, also before VipOpenNic.
///
/// - VIP_INVALID_PARAMETER: `Address` is NULL, or `Length` is 0.
/// - VIP_ERROR_RESOURCE: there is not as much memory.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vipl_alloc(
    Length: VIP_ULONG,
    Address: *mut VIP_PVOID,
) -> VIP_RETURN {
    entry(call!(vipl_alloc, Length; Address), move || {
        let out = required(Address)?;
        let address = vipl_core::memory::allocate(Length)?;
        // SAFETY: `out` was checked.
        unsafe { put(out, address) };
        Ok(())
    })
}

/// Frees what vipl_alloc has allocated. NULL is nothing to free.
///
/// - `Address`: The memory. vipl_alloc writes it; vipl_free takes NULL, too.
///
/// Any thread.
///
/// - VIP_ERROR_RESOURCE: a part of it is registered; nothing is freed.
/// - VIP_INVALID_PARAMETER: no such address, or it is free already, or belongs to the parent of this process.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vipl_free(Address: VIP_PVOID) -> VIP_RETURN {
    release(call!(vipl_free, Address;), move || {
        vipl_core::memory::free(Address)
    })
}

/// File descriptor of a completion queue, for `poll` and `epoll`.
///
/// - `CQHandle`: CQ of VipCreateCQ.
/// - `Fd`: Out: the file descriptor.
///
/// The first call makes it, later ones give the same number. It becomes readable when the CQ has a completion for which vipl_cq_arm has
/// asked. An event loop calls vipl_cq_fd once, and in each round VipCQDone until it gives VIP_NOT_DONE, then vipl_cq_arm, then
/// `epoll_wait`.
/// It belongs to the library: the program polls it, and neither reads, writes nor closes it. VipDestroyCQ closes it: take it out of an
/// epoll set before. It is close-on-exec; a child made by `fork` inherits it, and may close it there.
/// The first call on a NIC handle starts the thread that calls handlers, which makes progress while a CQ is armed. A CQ without a
/// descriptor costs nothing. Any thread.
///
/// - VIP_INVALID_PARAMETER: there is no such CQ, or `Fd` is NULL.
/// - VIP_ERROR_RESOURCE: there is no descriptor or thread left.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vipl_cq_fd(CQHandle: VIP_CQ_HANDLE, Fd: *mut c_int) -> VIP_RETURN {
    // Shown as a number; an output of this type is a boolean otherwise.
    let number = Fd.cast::<VIP_UINT32>();
    entry(call!(vipl_cq_fd, CQHandle; number), move || {
        let out = required(Fd)?;
        let fd = cq::fd(CQHandle)?;
        // SAFETY: `out` was checked.
        unsafe { put(out, fd) };
        Ok(())
    })
}

/// Asks for the next event of a completion queue at its file descriptor, and makes that unreadable.
///
/// - `CQHandle`: CQ of VipCreateCQ.
///
/// It becomes readable when the CQ has a completion, at once if it has one now, and stays so until the next vipl_cq_arm: edge- and
/// level-triggered polling see the same. The completion stays in the CQ. Threads in VipCQWait, Notify requests and this request are
/// served in their order, and another thread may take the completion first, so the CQ of a readable descriptor may be empty. While
/// it is armed already, a call changes nothing. Until something arrives on the NIC, nothing wakes up. Any thread; all threads
/// that poll the descriptor see the event.
///
/// - VIP_INVALID_PARAMETER: there is no such CQ, or vipl_cq_fd was not called for it.
/// - VIP_ERROR_RESOURCE: the program has closed the descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vipl_cq_arm(CQHandle: VIP_CQ_HANDLE) -> VIP_RETURN {
    entry(call!(vipl_cq_arm, CQHandle;), move || cq::arm(CQHandle))
}
