//! The host's services that are not about one VI.

use std::ffi::{CStr, CString, c_int};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use vipl_plugin_abi::*;

/// Why an operation or a function of the host failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// A resource is exhausted.
    Resource,
    /// An argument is invalid.
    Invalid,
    /// The user lacks a permission.
    NotPermitted,
}

impl Status {
    /// Its `VIPL_E_*`.
    pub fn code(self) -> c_int {
        match self {
            Status::Resource => VIPL_E_RESOURCE,
            Status::Invalid => VIPL_E_INVALID,
            Status::NotPermitted => VIPL_E_NOT_PERMITTED,
        }
    }

    /// The result of a function of the host.
    ///
    /// # Errors
    /// The status, if it is not `VIPL_OK`.
    pub fn check(code: c_int) -> Result<(), Status> {
        match code {
            VIPL_OK => Ok(()),
            VIPL_E_INVALID => Err(Status::Invalid),
            VIPL_E_NOT_PERMITTED => Err(Status::NotPermitted),
            _ => Err(Status::Resource),
        }
    }
}

static HOST: AtomicPtr<vipl_host> = AtomicPtr::new(std::ptr::null_mut());

/// The host, as given to `init`.
#[derive(Clone, Copy)]
pub struct Host(&'static vipl_host);

/// The library's NIC that an opening of the device belongs to, for threads of the plug-in.
#[derive(Clone, Copy, Debug)]
pub struct NicHandle(*const vipl_nic);

// SAFETY: the host's functions that take it may be called from any thread.
unsafe impl Send for NicHandle {}
// SAFETY: as above.
unsafe impl Sync for NicHandle {}

impl NicHandle {
    /// The handle of this NIC.
    ///
    /// # Safety
    /// It is the argument of `nic_open`.
    pub unsafe fn new(nic: *const vipl_nic) -> NicHandle {
        NicHandle(nic)
    }

    /// Lets the VI with this number make progress.
    ///
    /// # Safety
    /// The NIC is open, and the calling thread is inside no operation.
    pub unsafe fn poll(self, index: u32) -> Poll {
        // SAFETY: as asked of the caller.
        match unsafe { (Host::of_operation().0.poll)(self.0, index) } {
            VIPL_POLL_PROGRESS => Poll::Progress,
            VIPL_POLL_BUSY => Poll::Busy,
            _ => Poll::Nothing,
        }
    }

    /// Reports that the device has failed for good: every connected VI of the NIC goes to Error, and the application
    /// gets one `VIP_ERROR_CATASTROPHIC` (spec §11). Once per NIC; more calls do nothing.
    ///
    /// # Safety
    /// The NIC is open, and the calling thread is inside no operation.
    pub unsafe fn catastrophe(self) {
        // SAFETY: as asked of the caller.
        unsafe { (Host::of_operation().0.catastrophe)(self.0) };
    }
}

/// What [`NicHandle::poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Nothing completed.
    Nothing,
    /// Some descriptor completed.
    Progress,
    /// The application is using the VI itself.
    Busy,
}

/// A data socket on a network interface.
#[derive(Debug)]
pub struct Link {
    /// The socket, see `vipl_link.fd`.
    pub socket: OwnedFd,
    /// Number of the interface.
    pub interface_index: u32,
    /// Largest payload of a frame in bytes, at the time of the call.
    pub mtu: u32,
    /// Speed in Mbit/s; `None` if the interface does not report it.
    pub speed_mbit: Option<u32>,
    /// Endpoint number in frames for this process, see `vipl_link.endpoint`.
    pub endpoint: u16,
    /// Address of the interface.
    pub address: Vec<u8>,
    /// Name of the interface.
    pub name: String,
    /// Name of its driver; empty if unknown.
    pub driver: String,
    /// For `vipl_nic_info.link`.
    pub id: u64,
    /// The socket for trains, see `vipl_link.trains`.
    pub trains: Option<OwnedFd>,
}

/// A NUL-terminated text in an array of bytes.
fn text(chars: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = chars
        .iter()
        .map(|c| *c as u8)
        .take_while(|b| *b != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Host {
    /// Stores the host's table and registers the guarded routines of this file with it.
    ///
    /// # Safety
    /// `host` is the table given to `init`; it lives as long as the process.
    pub unsafe fn set(host: *const vipl_host) -> c_int {
        // SAFETY: as asked of the caller.
        unsafe { Host::adopt(host) };
        // SAFETY: as asked of the caller.
        let known = unsafe { &*host };
        if known.size <= std::mem::offset_of!(vipl_host, guard_table) {
            Host::get().log(VIPL_LOG_ERROR, "the library is older than this plug-in");
            return VIPL_E_NOT_SUPPORTED;
        }
        let table = vipl_guard::table();
        // SAFETY: the table of this file, which stays loaded.
        unsafe { (known.guard_table)(table.as_ptr().cast(), table.len()) }
    }

    /// Remembers the table of functions that [`Port`](crate::Port) calls, without more: for the host itself.
    ///
    /// # Safety
    /// The table lives as long as the process.
    pub unsafe fn adopt(host: *const vipl_host) {
        HOST.store(host.cast_mut(), Ordering::Release);
    }

    /// The host of this process.
    ///
    /// # Panics
    /// The library has not called `init`.
    #[inline(always)]
    pub fn get() -> Host {
        // SAFETY: NULL, or the table that `adopt` was given.
        let host = unsafe { HOST.load(Ordering::Relaxed).as_ref() };
        Host(host.expect("the library has called init"))
    }

    /// The same, within an operation.
    ///
    /// # Safety
    /// The host has called the operation, so it has called `init` before.
    #[inline(always)]
    pub(crate) unsafe fn of_operation() -> Host {
        // SAFETY: set by `init`, as asked of the caller.
        Host(unsafe { &*HOST.load(Ordering::Relaxed) })
    }

    #[inline(always)]
    pub(crate) fn table(self) -> &'static vipl_host {
        self.0
    }

    /// Writes a line to the log; `level` is a `VIPL_LOG_*`.
    pub fn log(self, level: c_int, text: &str) {
        if let Ok(text) = CString::new(text) {
            // SAFETY: a NUL-terminated text.
            unsafe { (self.0.log)(level, text.as_ptr()) };
        }
    }

    /// A setting of this plug-in, or of the library.
    pub fn setting(self, plugin: &CStr, key: &CStr) -> Option<String> {
        // SAFETY: NUL-terminated texts; the answer is NULL or lives for ever.
        unsafe {
            let value = (self.0.setting)(plugin.as_ptr(), key.as_ptr());
            (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
        }
    }

    /// A counter that `vipinfo` shows.
    pub fn counter(self, plugin: &CStr, name: &CStr) -> &'static AtomicU64 {
        // SAFETY: the host's counters are atomic words that live for ever.
        unsafe { AtomicU64::from_ptr((self.0.counter)(plugin.as_ptr(), name.as_ptr())) }
    }

    /// Asks for a data socket on the interface of this name. Blocks until the agent answers; from
    /// `Provider::open` or a thread of the plug-in.
    ///
    /// # Errors
    /// `Invalid`: no such interface, or no Ethernet; `NotPermitted`, with a line in the log that says
    /// what to do; `Resource`.
    pub fn link(self, name: &str) -> Result<Link, Status> {
        let name = CString::new(name).map_err(|_| Status::Invalid)?;
        let mut found = vipl_link {
            size: size_of::<vipl_link>(),
            fd: -1,
            interface_index: 0,
            mtu: 0,
            speed_mbit: 0,
            endpoint: 0,
            address_len: 0,
            address: [0; VIPL_ADDRESS_MAX],
            name: [0; 16],
            driver: [0; 32],
            id: 0,
            trains: -1,
        };
        // SAFETY: a NUL-terminated text, and room of the stated size.
        Status::check(unsafe { (self.0.link)(name.as_ptr(), &raw mut found) })?;
        let bytes = usize::from(found.address_len).min(found.address.len());
        Ok(Link {
            // SAFETY: the host has just given it to us.
            socket: unsafe { OwnedFd::from_raw_fd(found.fd) },
            interface_index: found.interface_index,
            mtu: found.mtu,
            speed_mbit: (found.speed_mbit > 0).then_some(found.speed_mbit),
            endpoint: found.endpoint,
            address: found.address[..bytes].to_vec(),
            name: text(&found.name),
            driver: text(&found.driver),
            id: found.id,
            // SAFETY: as above.
            trains: (found.trains >= 0).then(|| unsafe { OwnedFd::from_raw_fd(found.trains) }),
        })
    }

    /// Whether [`link`](Self::link) would give a data socket, without opening one. Blocks until the agent answers; from
    /// `Provider::claim` too.
    ///
    /// # Errors
    /// As there; nothing is logged. `Resource`: also where no agent answers.
    pub fn link_ask(self, name: &str) -> Result<(), Status> {
        let name = CString::new(name).map_err(|_| Status::Invalid)?;
        if self.0.size <= std::mem::offset_of!(vipl_host, link_ask) {
            return Err(Status::Resource);
        }
        // SAFETY: a NUL-terminated text.
        Status::check(unsafe { (self.0.link_ask)(name.as_ptr()) })
    }

    /// Asks for a connection to the device process of this name, see `vipl_host.device`; returns the socket and
    /// the device's process id. Blocks until the agent answers; from
    /// `Provider::open` or a thread of the plug-in.
    ///
    /// # Errors
    /// `Invalid`: there is no such program; `Resource`. The log says why.
    pub fn device(self, name: &CStr) -> Result<(OwnedFd, u32), Status> {
        let (mut fd, mut pid) = (-1, 0);
        // SAFETY: a NUL-terminated text, and two words to write to.
        Status::check(unsafe { (self.0.device)(name.as_ptr(), &raw mut fd, &raw mut pid) })?;
        // SAFETY: the host has just given it to us.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, pid))
    }

    /// Where a range of this process's memory lies in its memory file, see `vipl_host.memory`. `None`: it is other memory.
    pub fn memory(self, base: u64, bytes: u64) -> Option<vipl_memory> {
        if self.0.size <= std::mem::offset_of!(vipl_host, memory) {
            return None;
        }
        let mut found = vipl_memory {
            size: size_of::<vipl_memory>(),
            fd: -1,
            reserved: 0,
            inode: 0,
            offset: 0,
        };
        // SAFETY: room of the stated size.
        let status = unsafe { (self.0.memory)(base, bytes, &raw mut found) };
        (status == VIPL_OK).then_some(found)
    }

    /// Monotonic time in nanoseconds.
    pub fn now_ns(self) -> u64 {
        // SAFETY: no arguments.
        unsafe { (self.0.now)() }
    }
}
