//! System calls of the data path. The functions of the C library are cancellation points, at which a thread
//! of the application would end inside a plug-in; these are not ([`crate::cancel`]), and are cheaper in a
//! process with threads.
//!
//! ThreadSanitizer (`--cfg tsan`) only intercepts the C library; no thread is cancelled there.

use libc::{c_int, c_void, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $number:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the function of the C library.
        #[inline]
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name($($argument: $type),*) -> $result {
            // SAFETY: guaranteed by the caller.
            unsafe {
                #[cfg(not(tsan))]
                { libc::syscall(libc::$number, $($argument),*) as $result }
                #[cfg(tsan)]
                { libc::$name($($argument),*) }
            }
        }
    )*};
}

calls! {
    /// `sendto`.
    sendto(socket: c_int, data: *const c_void, bytes: size_t, flags: c_int, to: *const sockaddr, to_bytes: socklen_t) -> ssize_t = SYS_sendto;
    /// `recvfrom`.
    recvfrom(socket: c_int, data: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr, from_bytes: *mut socklen_t) -> ssize_t = SYS_recvfrom;
    /// `sendmsg`.
    sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t = SYS_sendmsg;
    /// `recvmsg`.
    recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = SYS_recvmsg;
    /// `read`.
    read(fd: c_int, data: *mut c_void, bytes: size_t) -> ssize_t = SYS_read;
    /// `write`.
    write(fd: c_int, data: *const c_void, bytes: size_t) -> ssize_t = SYS_write;
}

/// `sendmmsg`.
///
/// # Safety
/// As for the function of the C library.
#[inline]
pub unsafe fn sendmmsg(socket: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe {
        #[cfg(not(tsan))]
        {
            libc::syscall(libc::SYS_sendmmsg, socket, messages, count, flags) as c_int
        }
        #[cfg(tsan)]
        {
            libc::sendmmsg(socket, messages, count, flags as _)
        }
    }
}
