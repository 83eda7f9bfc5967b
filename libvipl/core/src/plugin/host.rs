//! The table of functions that plug-ins call.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::IntoRawFd;

use vipl_abi::{VIP_DESCRIPTOR, VIP_ERROR_CODE};
use vipl_plugin_abi::*;

use crate::clock;
use crate::nic;
use crate::process;
use crate::vi::of_nic::{self, Polled};
use crate::vi::{Vi, Which, complete, diagnosis, failure};

/// The table passed to every plug-in.
pub(crate) static HOST: vipl_host = TABLE;

/// The table passed to every layer, whose lines have a subsystem of their own.
pub(super) static HOST_OF_LAYERS: vipl_host = vipl_host {
    log: log_of_layer,
    ..TABLE
};

const TABLE: vipl_host = vipl_rules::host_table! {
    log,
    setting,
    counter,
    completed,
    raise,
    fail,
    poll,
    now,
    link,
    catastrophe,
    device,
    link_ask,
    memory,
    refused,
};

/// A plug-in's string.
///
/// # Safety
/// `text` is NULL or NUL-terminated.
unsafe fn string<'a>(text: *const c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }
        .to_str()
        .unwrap_or("(not UTF-8)")
}

fn level_of(level: c_int) -> log::Level {
    match level {
        VIPL_LOG_ERROR => log::Level::Error,
        VIPL_LOG_WARN => log::Level::Warn,
        VIPL_LOG_INFO => log::Level::Info,
        _ => log::Level::Debug,
    }
}

unsafe extern "C" fn log(level: c_int, text: *const c_char) {
    // SAFETY: a plug-in's text.
    log::log!(target: "plugin", level_of(level), "{}", unsafe { string(text) });
}

unsafe extern "C" fn log_of_layer(level: c_int, text: *const c_char) {
    // SAFETY: a layer's text.
    log::log!(target: "layer", level_of(level), "{}", unsafe { string(text) });
}

unsafe extern "C" fn setting(plugin: *const c_char, key: *const c_char) -> *const c_char {
    // SAFETY: a plug-in's texts.
    let (plugin, key) = unsafe { (string(plugin), string(key)) };
    let value = process::get().settings.for_plugin(plugin, key);
    let value = value.and_then(|value| CString::new(value).ok());
    value.map_or(std::ptr::null(), |value| process::get().keep(value))
}

unsafe extern "C" fn counter(plugin: *const c_char, name: *const c_char) -> *mut u64 {
    // SAFETY: a plug-in's texts.
    let name = unsafe { format!("{}.{}", string(plugin), string(name)) };
    process::get().counter(&name).as_ptr()
}

/// The host's side of a VI.
///
/// Operations receive pointers derived from the VI's slot, and no reference to the VI exists while one runs,
/// so this reference is unique until the callback returns.
///
/// # Safety
/// Called within an operation of the VI, so its lock is held.
unsafe fn vi<'a>(vi: *mut vipl_vi) -> &'a mut Vi {
    // SAFETY: `host` was set when the VI was created, and points to the `Vi` around `*vi`.
    unsafe { &mut *(*vi).host.cast::<Vi>() }
}

unsafe extern "C" fn completed(this: *mut vipl_vi, queue: *mut vipl_queue) {
    // SAFETY: within an operation of the VI; `queue` is one of its two.
    unsafe {
        let which = if (*queue).which == 0 {
            Which::Send
        } else {
            Which::Recv
        };
        complete::signal(vi(this), which);
    }
}

unsafe extern "C" fn raise(
    this: *mut vipl_vi,
    code: c_int,
    opcode: u32,
    descriptor: *mut VIP_DESCRIPTOR,
) {
    if let Some(code) = VIP_ERROR_CODE::of(code) {
        // SAFETY: within an operation of the VI.
        unsafe { vi(this) }.raise(code, opcode, descriptor);
    }
}

unsafe extern "C" fn fail(
    this: *mut vipl_vi,
    cause: c_int,
    opcode: u32,
    descriptor: *mut VIP_DESCRIPTOR,
) {
    // SAFETY: within an operation of the VI.
    unsafe { vi(this) }.fail(cause, opcode, descriptor);
}

unsafe extern "C" fn poll(nic: *const vipl_nic, index: u32) -> c_int {
    // SAFETY: a thread of the plug-in calls this while the NIC is open.
    match of_nic::poll(unsafe { nic::of_plugin(nic) }, index) {
        Polled::Nothing => VIPL_POLL_NOTHING,
        Polled::Progress => VIPL_POLL_PROGRESS,
        Polled::Busy => VIPL_POLL_BUSY,
    }
}

unsafe extern "C" fn now() -> u64 {
    clock::now_ns()
}

unsafe extern "C" fn link(interface: *const c_char, out: *mut vipl_link) -> c_int {
    // SAFETY: a plug-in's text, and room of the size that it states.
    unsafe { crate::agent::link::open_for_plugin(&process::get().agents, string(interface), out) }
}

unsafe extern "C" fn link_ask(interface: *const c_char) -> c_int {
    // SAFETY: a plug-in's text.
    crate::agent::link::ask(&process::get().agents, unsafe { string(interface) })
}

unsafe extern "C" fn catastrophe(nic: *const vipl_nic) {
    // SAFETY: the NIC is open, and the thread is inside no operation.
    if let Some(nic) = unsafe { nic::device_failed(nic) } {
        failure::fail_all(nic);
    }
}

unsafe extern "C" fn device(name: *const c_char, fd: *mut c_int, pid: *mut u32) -> c_int {
    // SAFETY: a plug-in's text.
    match crate::agent::device::open(&process::get().agents, unsafe { string(name) }) {
        Ok((socket, process)) => {
            // SAFETY: two words of the plug-in.
            unsafe {
                *fd = socket.into_raw_fd();
                *pid = process;
            }
            VIPL_OK
        }
        Err(status) => status,
    }
}

unsafe extern "C" fn memory(base: u64, bytes: u64, out: *mut vipl_memory) -> c_int {
    let Some(place) = process::get().allocated.place(base, bytes) else {
        return VIPL_E_INVALID;
    };
    let found = vipl_memory {
        // SAFETY: a plug-in's structure, which begins with its size.
        size: unsafe { (*out).size },
        fd: place.fd,
        reserved: 0,
        inode: place.inode,
        offset: place.offset,
    };
    let known = found.size.min(size_of::<vipl_memory>());
    // SAFETY: room of the size that the plug-in states.
    unsafe { std::ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), out.cast(), known) };
    VIPL_OK
}

unsafe extern "C" fn refused(
    this: *mut vipl_vi,
    at_target: bool,
    flag: u32,
    handle: u32,
    base: u64,
    bytes: u64,
) {
    // SAFETY: within an operation of the VI.
    diagnosis::refused(unsafe { vi(this) }, at_target, flag, (handle, base, bytes));
}
