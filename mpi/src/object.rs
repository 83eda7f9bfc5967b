//! What all objects have in common.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use crate::fi::{
    FI_CLASS_CONNREQ, SLACK, Slack, fi_ops, fi_ops_cm, fid, fid_ep, fid_pep, unsupported,
};
use crate::slab::Id;

/// Runs an entry point. A panic, which would be a bug, becomes an error and does not unwind into C.
#[inline]
pub(crate) fn entry<R>(on_panic: R, run: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        crate::libfabric::warn(|| "bug: a panic in the provider".to_owned());
        on_panic
    })
}

/// The same for functions that return 0 or an error. They reach cancellation points, at which a thread must not end below
/// frames of Rust. Functions on the data path reach one only where they sleep, wake a thread or end a connection, and
/// switch cancellation off there.
#[inline]
pub(crate) fn code(run: impl FnOnce() -> Result<(), c_int>) -> c_int {
    let _off = vipl_sys::cancel::Off::new();
    entry(-crate::fi::FI_EOTHER, || {
        run().map_or_else(|error| -error, |()| 0)
    })
}

/// The same for functions that return a size.
#[inline]
pub(crate) fn size(run: impl FnOnce() -> Result<usize, c_int>) -> isize {
    entry(-(crate::fi::FI_EOTHER as isize), || {
        run().map_or_else(|error| -(error as isize), |size| size as isize)
    })
}

/// Entry points of transfers: name, arguments behind the endpoint, and the call that they make. The endpoint is what the `object`
/// of the caller's module makes of it.
macro_rules! entry_points {
    ($($name:ident($($argument:ident: $type:ty),*) |$ep:ident| $call:expr;)*) => {$(
        unsafe extern "C" fn $name(ep: *mut fid_ep, $($argument: $type),*) -> isize {
            // SAFETY: libfabric's arguments: an endpoint of ours, as `object` wants it, and memory as they describe it.
            unsafe {
                let $ep = object(ep.cast());
                $call
            }
        }
    )*};
}
pub(crate) use entry_points;

/// The bytes that an argument describes. It may be null if there are none.
///
/// # Safety
/// `length` bytes at `buffer` are readable.
#[inline]
pub(crate) unsafe fn bytes<'a>(buffer: *const c_void, length: usize) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(buffer.cast(), length) },
    }
}

/// Starts a thread of an object.
pub(crate) fn start(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, c_int> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    let started = builder.spawn(|| entry((), run));
    started.map_err(|_| libc::EAGAIN)
}

pub(crate) unsafe extern "C" fn no_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    -libc::ENOSYS
}

pub(crate) unsafe extern "C" fn no_control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    -libc::ENOSYS
}

pub(crate) unsafe extern "C" fn no_ops(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_close(_: *mut fid) -> c_int {
    -libc::ENOSYS
}

/// Table of an object; its `size` is that of libfabric's first versions.
pub(crate) const fn table(
    close: unsafe extern "C" fn(*mut fid) -> c_int,
    bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close,
        bind,
        control,
        ops_open: no_ops,
    }
}

unsafe extern "C" fn no_peer(_: *mut fid_ep, _: *mut c_void, _: *mut usize) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_connect(
    _: *mut fid_ep,
    _: *const c_void,
    _: *const c_void,
    _: usize,
) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_listen(_: *mut fid_pep) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_accept(_: *mut fid_ep, _: *const c_void, _: usize) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_reject(_: *mut fid_pep, _: *mut fid, _: *const c_void, _: usize) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_shutdown(_: *mut fid_ep, _: u64) -> c_int {
    -libc::ENOSYS
}

/// Table of an endpoint or listener that has an address; what else it can do of connecting is added.
pub(crate) const fn cm_table(
    getname: unsafe extern "C" fn(*mut fid, *mut c_void, *mut usize) -> c_int,
) -> fi_ops_cm {
    fi_ops_cm {
        size: size_of::<fi_ops_cm>(),
        setname: unsupported,
        getname,
        getpeer: no_peer,
        connect: no_connect,
        listen: no_listen,
        accept: no_accept,
        reject: no_reject,
        shutdown: no_shutdown,
        join: unsupported,
    }
}

/// A handle that the program gets with FI_CONNREQ and gives back to `fi_endpoint` or `fi_reject`.
#[repr(C)]
pub(crate) struct ConnectionRequest {
    fid: fid,
    endpoint: Id,
    slack: Slack,
}

impl ConnectionRequest {
    /// For an endpoint.
    pub(crate) fn give(endpoint: Id) -> *mut fid {
        static OPS: fi_ops = table(no_close, no_bind, no_control);
        Box::into_raw(Box::new(ConnectionRequest {
            fid: fid {
                fclass: FI_CLASS_CONNREQ,
                context: std::ptr::null_mut(),
                ops: &raw const OPS,
            },
            endpoint,
            slack: SLACK,
        }))
        .cast()
    }

    /// Takes it back.
    ///
    /// # Safety
    /// `handle` is null, or an object of libfabric; if it is one of these, it is not used any more.
    pub(crate) unsafe fn take(handle: *mut fid) -> Option<Id> {
        // SAFETY: the caller's promise.
        if handle.is_null() || unsafe { (*handle).fclass } != FI_CLASS_CONNREQ {
            return None;
        }
        // SAFETY: made by `give`.
        Some(unsafe { Box::from_raw(handle.cast::<ConnectionRequest>()) }.endpoint)
    }
}

/// strerror of both kinds of queue.
///
/// # Safety
/// `buffer` is null or has room for `length` bytes.
pub(crate) unsafe fn describe(error: c_int, buffer: *mut c_char, length: usize) -> *const c_char {
    let text: &std::ffi::CStr = match error {
        libc::ECANCELED => c"cancelled",
        libc::ECONNRESET => c"the connection has ended",
        libc::ECONNREFUSED => c"connection refused",
        libc::ETIMEDOUT => c"nobody answers",
        libc::EACCES => c"no such registered memory, or no right to it",
        libc::EPROTO => c"the peer does not keep to the protocol",
        crate::fi::FI_ETRUNC => c"the message is longer than the receive",
        crate::fi::FI_ENOKEY => c"the peer has no such registered memory",
        _ => c"transfer failed",
    };
    if !buffer.is_null() && length > 0 {
        let bytes = text.to_bytes();
        let copied = bytes.len().min(length - 1);
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), copied);
            *buffer.add(copied) = 0;
        }
    }
    text.as_ptr()
}
