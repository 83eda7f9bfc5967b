//! Layers: plug-ins that see the calls of the application, between the C functions and the library.

use core::ffi::{c_char, c_int, c_void};

use vipl_abi::{VIP_DESCRIPTOR, VIP_NIC_HANDLE, VIP_VI_HANDLE};

use crate::{VIPL_CALL_ARGUMENTS, VIPL_LAYER_WORDS, vipl_host};

/// One call of the application, as a layer sees it. All of it is the host's, and valid during the operation only.
#[repr(C)]
pub struct vipl_call {
    /// `sizeof(vipl_call)` as the host knows it. Do not read beyond.
    pub size: usize,
    /// The function, `VIPL_CALL_*`.
    pub function: u32,
    /// How many arguments it has.
    pub argument_count: u32,
    /// First those that it reads, then those that it writes to, each in the order of its prototype: numbers widened,
    /// pointers and handles as their bits. What they point to is the application's and may be bad.
    pub arguments: [u64; VIPL_CALL_ARGUMENTS],
    /// The function's name.
    pub name: *const c_char,
    /// Where the application goes on after the call: a place in its code. NULL unless the host knows it without searching
    /// the stack, which it does in calls of the data path on x86-64.
    pub caller: *const c_void,
}

/// What happens to a NIC or VI without a call.
#[repr(C)]
pub struct vipl_event {
    /// `sizeof(vipl_event)` as the host knows it. Do not read beyond.
    pub size: usize,
    /// `VIPL_EVENT_*`.
    pub kind: u32,
    /// Errors: the code, `VIP_ERROR_*`. Handlers of completion queues: whether the entry is of a receive queue.
    pub code: c_int,
    /// The NIC handle.
    pub nic: VIP_NIC_HANDLE,
    /// The VI, or NULL.
    pub vi: VIP_VI_HANDLE,
    /// The descriptor, or NULL.
    pub descriptor: *mut VIP_DESCRIPTOR,
}

/// The connection of a VI.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_layer_connection {
    /// `sizeof(vipl_layer_connection)` as the layer knows it, set by the layer before the call.
    pub size: usize,
    /// A number that both sides have for this connection, and no other connection is likely to have. It is made from the
    /// connection's secret, which it does not tell.
    pub id: u64,
    /// 0 at one side, 1 at the other.
    pub side: u32,
    /// One `VIP_SERVICE_*` bit.
    pub reliability: u32,
}

/// What the library does for a layer.
#[repr(C)]
pub struct vipl_layer_host {
    /// `sizeof(vipl_layer_host)` as the host knows it.
    pub size: usize,
    /// The functions for all plug-ins. A layer calls `log`, `setting`, `counter`, `now`, `guard`, `guard_table` and `copy`.
    pub host: *const vipl_host,
    /// The connection of a VI; `VIPL_E_INVALID`: it has none. Not within `event`.
    pub connection:
        unsafe extern "C" fn(vi: VIP_VI_HANDLE, out: *mut vipl_layer_connection) -> c_int,
    /// Breaks the connection of a VI as the transport would: the VI goes to Error, both queues are flushed, and the
    /// application gets the asynchronous error `code`. `VIPL_E_INVALID`: the VI is not connected. Not within `event`.
    pub fail: unsafe extern "C" fn(vi: VIP_VI_HANDLE, code: c_int) -> c_int,
    /// The number of a VI within its NIC handle, from 0 on, which `vipstat` and the log show; after VipDestroyVi another VI may get it.
    /// `VIPL_E_INVALID`: there is no such VI. Not within `event`. New hosts have this: see `size`.
    pub vi_number: unsafe extern "C" fn(vi: VIP_VI_HANDLE, out: *mut u32) -> c_int,
}

// SAFETY: constant data.
unsafe impl Sync for vipl_layer_host {}

/// What a layer does. All operations are optional. They may run on any thread of the application, several at once; none
/// may unwind or call a `Vip...` function.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_layer {
    /// `sizeof(vipl_layer)` as the layer knows it.
    pub size: usize,
    /// A call begins. `local` is zero, and the same in `after`. True: the layer answers the call with `*result`, a
    /// `VIP_RETURN`; the library and the layers behind this one do not see it, and neither does `after` of this layer.
    pub before: Option<
        unsafe extern "C" fn(
            call: *const vipl_call,
            local: *mut [u64; VIPL_LAYER_WORDS],
            result: *mut c_int,
        ) -> bool,
    >,
    /// A call ends with this `VIP_RETURN`; or with `VIPL_CALL_LEFT`, because its thread was cancelled in it.
    pub after: Option<
        unsafe extern "C" fn(
            call: *const vipl_call,
            local: *mut [u64; VIPL_LAYER_WORDS],
            result: c_int,
        ),
    >,
    /// Something happens without a call. The host may hold locks: the layer must not block, and of the host's functions
    /// call `log` and `now` only.
    pub event: Option<unsafe extern "C" fn(event: *const vipl_event)>,
    /// The process calls `exit`. Other threads may still run, or have stopped anywhere: the layer must not wait for a
    /// lock.
    pub end: Option<unsafe extern "C" fn()>,
}

macro_rules! functions {
    ($($name:literal)*) => {
        /// The functions that layers see: `VIPL_CALL_*` is the place of its name here, from 1 on.
        pub const FUNCTIONS: &[&str] = &[$($name),*];
        /// The same names for C.
        const C_NAMES: &[&core::ffi::CStr] = &[$(c_name(concat!($name, "\0"))),*];
    };
}

const fn c_name(text: &str) -> &core::ffi::CStr {
    match core::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name without NUL"),
    }
}

functions! {
    "VipOpenNic" "VipCloseNic" "VipQueryNic" "VipCreateVi" "VipDestroyVi" "VipQueryVi" "VipSetViAttributes"
    "VipSetUserData" "VipGetUserData" "VipConnectWait" "VipConnectAccept" "VipConnectReject" "VipConnectRequest"
    "VipDisconnect" "VipConnectPeerRequest" "VipConnectPeerDone" "VipConnectPeerWait" "VipCreatePtag"
    "VipDestroyPtag" "VipRegisterMem" "VipDeregisterMem" "VipQueryMem" "VipSetMemAttributes" "VipPostSend"
    "VipPostRecv" "VipSendDone" "VipRecvDone" "VipSendWait" "VipRecvWait" "VipSendNotify" "VipRecvNotify"
    "VipCreateCQ" "VipDestroyCQ" "VipResizeCQ" "VipCQDone" "VipCQWait" "VipCQNotify" "VipErrorCallback"
    "VipQuerySystemManagementInfo" "VipNSInit" "VipNSGetHostByName" "VipNSGetHostByAddr" "VipNSShutdown"
    "vipl_alloc" "vipl_free" "vipl_describe" "vipl_cq_fd" "vipl_cq_arm"
}

/// The `VIPL_CALL_*` of a function.
///
/// # Panics
/// There is no such function; where it is evaluated for a constant, that does not compile.
pub const fn function(name: &str) -> u32 {
    let mut place = 0;
    while place < FUNCTIONS.len() {
        if same(FUNCTIONS[place].as_bytes(), name.as_bytes()) {
            return place as u32 + 1;
        }
        place += 1;
    }
    panic!("no function that layers see")
}

/// The name of a function; an empty one for an unknown number.
pub const fn function_name(function: u32) -> &'static core::ffi::CStr {
    match function {
        0 => c"",
        function if function as usize > C_NAMES.len() => c"",
        function => C_NAMES[function as usize - 1],
    }
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}
