//! An open RDMA device, and what is made of it: each object frees itself, after those that were made of it.

mod queue_pair;

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use vipl_sys::fd::Identity;

use crate::ibv::*;

pub(crate) use queue_pair::{Address, QueuePair};

/// An open device.
pub(crate) struct Device {
    functions: &'static Functions,
    context: NonNull<ibv_context>,
    /// The file behind the context, which the application may have closed.
    file: Option<Identity>,
    /// Limits of the device.
    pub(crate) limits: ibv_device_attr,
    /// The kernel emulates it: posts are system calls.
    pub(crate) is_software: bool,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Occupies the numbers 0 to 2 while a library opens files, which it does not move out of them.
struct Standard(#[expect(dead_code, reason = "closing them frees the numbers")] Vec<OwnedFd>);

impl Standard {
    fn hold() -> Standard {
        let mut held = Vec::new();
        loop {
            // SAFETY: a system call. Not by `vipl_sys::fd`, which takes a file out of these numbers.
            let raw =
                unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
            if raw < 0 {
                break;
            }
            // SAFETY: the descriptor is new.
            held.push(unsafe { OwnedFd::from_raw_fd(raw) });
            if raw > 2 {
                break;
            }
        }
        Standard(held)
    }
}

/// The result of a function that returns an error number.
fn check(error: c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        // Some functions give the negative number, and some -1 with errno.
        -1 => Err(io::Error::last_os_error()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

fn made<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

impl Device {
    /// Opens the device of this name.
    ///
    /// # Errors
    /// `NotFound`: the library has no driver for it; `Unsupported`: the library cannot be used; those of the system.
    pub(crate) fn open(name: &str, is_software: bool) -> io::Result<Device> {
        let functions =
            Functions::get().map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why))?;
        let standard = Standard::hold();
        let mut count = 0;
        // SAFETY: the list is valid until it is freed.
        let context = unsafe {
            let list = (functions.ibv_get_device_list)(&raw mut count);
            let list = made(list)?;
            let all =
                std::slice::from_raw_parts(list.as_ptr(), usize::try_from(count).unwrap_or(0));
            let found = all.iter().find(|device| {
                let known = (functions.ibv_get_device_name)(**device);
                !known.is_null() && CStr::from_ptr(known).to_bytes() == name.as_bytes()
            });
            let context = match found {
                Some(device) => made((functions.ibv_open_device)(*device)),
                None => Err(io::ErrorKind::NotFound.into()),
            };
            (functions.ibv_free_device_list)(list.as_ptr());
            context?
        };
        drop(standard);
        // SAFETY: an open context.
        let (cmd, events) = unsafe { (context.as_ref().cmd_fd, context.as_ref().async_fd) };
        let mut device = Device {
            functions,
            context,
            file: Identity::of(cmd),
            limits: zeroed(),
            is_software,
        };
        // SAFETY: an open context, and room for the answer.
        check(unsafe { (functions.ibv_query_device)(context.as_ptr(), &raw mut device.limits) })?;
        set_nonblocking(events)?;
        Ok(device)
    }

    /// State of a port.
    pub(crate) fn port(&self, number: u8) -> io::Result<ibv_port_attr> {
        let mut port = zeroed();
        // SAFETY: an open context, and room for the answer.
        let error = unsafe {
            (self.functions.ibv_query_port)(self.context.as_ptr(), number, &raw mut port)
        };
        check(error).map(|()| port)
    }

    /// The addresses of all ports.
    pub(crate) fn addresses(&self) -> io::Result<Vec<ibv_gid_entry>> {
        let mut entries = vec![zeroed::<ibv_gid_entry>(); 1024];
        // SAFETY: an open context, and room for so many entries.
        let count = unsafe {
            let size = size_of::<ibv_gid_entry>();
            let query = self.functions._ibv_query_gid_table;
            query(
                self.context.as_ptr(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size,
            )
        };
        let count =
            usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(-(count as i32)))?;
        entries.truncate(count);
        Ok(entries)
    }

    /// The descriptor of asynchronous events.
    pub(crate) fn events_fd(&self) -> RawFd {
        // SAFETY: an open context.
        unsafe { self.context.as_ref().async_fd }
    }

    /// Takes an asynchronous event: its type, and what it is about if that is a port.
    pub(crate) fn event(&self) -> Option<u32> {
        if !self.is_open() {
            return None;
        }
        let mut event = zeroed::<ibv_async_event>();
        // SAFETY: an open context, and room for the answer, which is given back at once.
        unsafe {
            if (self.functions.ibv_get_async_event)(self.context.as_ptr(), &raw mut event) != 0 {
                return None;
            }
            (self.functions.ibv_ack_async_event)(&raw mut event);
        }
        Some(event.event_type)
    }

    /// Whether the application has left the library's descriptor alone.
    pub(crate) fn is_open(&self) -> bool {
        // SAFETY: an open context.
        Identity::still(unsafe { self.context.as_ref().cmd_fd }, self.file)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Else the number is a file of the application.
        if self.is_open() {
            // SAFETY: nothing made of it is left.
            unsafe { (self.functions.ibv_close_device)(self.context.as_ptr()) };
        }
    }
}

fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: system calls on a descriptor of ours.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if set < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// A type that owns an object of libibverbs, with what it was made of.
macro_rules! owned {
    ($(#[$doc:meta])* $name:ident($raw:ident) of $parent:ident: $destroy:ident) => {
        $(#[$doc])*
        pub(crate) struct $name {
            raw: NonNull<$raw>,
            parent: Arc<$parent>,
        }

        // SAFETY: libibverbs may be called from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                let device = self.device();
                if device.is_open() {
                    // SAFETY: made once, destroyed here; what was made of it holds a reference.
                    unsafe { (device.functions.$destroy)(self.raw.as_ptr()) };
                }
            }
        }
    };
}

owned!(
    /// A protection domain.
    Domain(ibv_pd) of Device: ibv_dealloc_pd
);
owned!(
    /// A registered range of memory.
    Memory(ibv_mr) of Domain: ibv_dereg_mr
);
owned!(
    /// A channel, which tells of completions.
    Channel(ibv_comp_channel) of Device: ibv_destroy_comp_channel
);
owned!(
    /// A completion queue.
    Completions(ibv_cq) of Channel: ibv_destroy_cq
);

impl Domain {
    fn device(&self) -> &Arc<Device> {
        &self.parent
    }

    /// A new one.
    pub(crate) fn new(device: &Arc<Device>) -> io::Result<Domain> {
        // SAFETY: an open device.
        let raw = made(unsafe { (device.functions.ibv_alloc_pd)(device.context.as_ptr()) })?;
        Ok(Domain {
            raw,
            parent: device.clone(),
        })
    }
}

impl Memory {
    fn device(&self) -> &Arc<Device> {
        &self.parent.parent
    }

    /// Registers memory of this process; `access` is a set of `IBV_ACCESS_*`. A bad address is an error.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        base: u64,
        bytes: u64,
        access: u32,
    ) -> io::Result<Memory> {
        let at = std::ptr::with_exposed_provenance_mut(base as usize);
        // SAFETY: a valid domain; the kernel checks the memory.
        let raw = unsafe {
            let register = domain.device().functions.ibv_reg_mr;
            made(register(
                domain.raw.as_ptr(),
                at,
                bytes as usize,
                access as c_int,
            ))?
        };
        Ok(Memory {
            raw,
            parent: domain.clone(),
        })
    }

    /// The key for this process.
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: valid while it is registered.
        unsafe { self.raw.as_ref().lkey }
    }

    /// The key for peers.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl Channel {
    fn device(&self) -> &Arc<Device> {
        &self.parent
    }

    /// A new one.
    pub(crate) fn new(device: &Arc<Device>) -> io::Result<Channel> {
        let standard = Standard::hold();
        // SAFETY: an open device.
        let raw =
            made(unsafe { (device.functions.ibv_create_comp_channel)(device.context.as_ptr()) })?;
        drop(standard);
        let channel = Channel {
            raw,
            parent: device.clone(),
        };
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    /// Its descriptor, for `poll`.
    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: valid while it exists.
        unsafe { self.raw.as_ref().fd }
    }

    /// Takes an event: the number of the completion queue that it is about.
    pub(crate) fn event(&self) -> Option<u32> {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        if !self.device().is_open() {
            return None;
        }
        // SAFETY: a valid channel, and room for the answers. The queue exists until its event is acknowledged.
        unsafe {
            let functions = self.device().functions;
            if (functions.ibv_get_cq_event)(self.raw.as_ptr(), &raw mut queue, &raw mut context)
                != 0
            {
                return None;
            }
            (functions.ibv_ack_cq_events)(queue, 1);
        }
        Some(context.addr() as u32)
    }
}

impl Completions {
    fn device(&self) -> &Arc<Device> {
        self.parent.device()
    }

    /// A queue with room for `entries`, whose events have this number.
    pub(crate) fn new(
        channel: &Arc<Channel>,
        entries: u32,
        number: u32,
    ) -> io::Result<Completions> {
        let device = channel.device();
        let context = std::ptr::without_provenance_mut(number as usize);
        // SAFETY: an open device and a channel of it.
        let raw = unsafe {
            let create = device.functions.ibv_create_cq;
            made(create(
                device.context.as_ptr(),
                entries as c_int,
                context,
                channel.raw.as_ptr(),
                0,
            ))?
        };
        Ok(Completions {
            raw,
            parent: channel.clone(),
        })
    }

    /// Takes completions, as many as there is room for; how many, or less than one if there was none. Negative: the queue
    /// has overflown, which its size prevents.
    #[inline(always)]
    pub(crate) fn poll(&self, room: &mut [ibv_wc]) -> c_int {
        // SAFETY: a valid queue; the device's function is there since the device was opened.
        unsafe {
            let poll = (*(*self.raw.as_ptr()).context).poll_cq;
            let poll = poll.unwrap_unchecked();
            poll(self.raw.as_ptr(), room.len() as c_int, room.as_mut_ptr())
        }
    }

    /// Asks for an event with the next completion. Look again afterwards: one that is there already causes none.
    pub(crate) fn arm(&self) {
        // SAFETY: as above. A failure would be one of the device, which tells by an event.
        unsafe {
            if let Some(notify) = (*(*self.raw.as_ptr()).context).req_notify_cq {
                notify(self.raw.as_ptr(), 0);
            }
        }
    }
}
