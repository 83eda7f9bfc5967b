//! Event queues.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use vipl_sys::clock::{self, Instant};

use crate::engine::{Event, Events, Opaque, Wake};
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{code, describe, no_bind, size, table};
use crate::slab::Id;

/// See the module.
#[repr(C)]
struct EventQueue {
    eq: fid_eq,
    slack: Slack,
    nic: Arc<Nic>,
    id: Id,
}

static OPS: fi_ops = table(close, no_bind, control);
static EQ_OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read,
    readerr,
    write,
    sread,
    strerror,
};

/// The end of a wait; a negative number of milliseconds is none.
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn new(timeout: c_int) -> Deadline {
        let timeout = u64::try_from(timeout).ok();
        Deadline(timeout.map(|timeout| Instant::now() + Duration::from_millis(timeout)))
    }

    /// Sleeps until the descriptor is readable; false if the time is over.
    pub(crate) fn sleep(&self, fd: RawFd) -> bool {
        let left = self.0.map(|end| end - Instant::now());
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        let wanted = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        clock::poll(&mut [wanted], left) != 0
    }
}

/// Opens a queue.
///
/// # Safety
/// Arguments of `fi_eq_open`.
pub(crate) unsafe fn open(
    nic: Arc<Nic>,
    attributes: *mut fi_eq_attr,
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let wait =
        unsafe { attributes.as_ref() }.map_or(FI_WAIT_NONE, |attributes| attributes.wait_obj);
    if ![FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD].contains(&wait) {
        return Err(libc::ENOSYS);
    }
    let wake = Wake::new().ok_or(libc::EMFILE)?;
    let id = nic.lock().shared.events.insert(Events::new(wake));
    let queue = Box::new(EventQueue {
        eq: fid_eq {
            fid: fid {
                fclass: FI_CLASS_EQ,
                context,
                ops: &raw const OPS,
            },
            ops: &raw const EQ_OPS,
        },
        slack: SLACK,
        nic,
        id,
    });
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(queue).cast()) };
    Ok(())
}

/// # Safety
/// `queue` is one of ours, and open.
unsafe fn queue<'a>(queue: *mut fid) -> &'a EventQueue {
    // SAFETY: the caller's promise.
    unsafe { &*queue.cast::<EventQueue>() }
}

/// The queue's number in its engine.
///
/// # Safety
/// `object` is an open queue.
pub(crate) unsafe fn id_of(object: *mut fid) -> Id {
    // SAFETY: the caller's promise.
    unsafe { queue(object) }.id
}

/// Whether a program may sleep on the queue, as far as the queue is concerned.
///
/// # Safety
/// `object` is an open queue.
pub(crate) unsafe fn is_idle(object: *mut fid) -> bool {
    // SAFETY: the caller's promise.
    let queue = unsafe { queue(object) };
    let mut engine = queue.nic.lock();
    engine.progress();
    engine.shared.events.get(queue.id).is_none_or(|events| {
        events.watched = true;
        events.entries.is_empty()
    })
}

impl EventQueue {
    /// Reads one event.
    ///
    /// # Safety
    /// `kind` is valid, `buffer` has room for `length` bytes.
    unsafe fn read(
        &self,
        kind: *mut u32,
        buffer: *mut c_void,
        length: usize,
        flags: u64,
    ) -> Result<usize, c_int> {
        let mut engine = self.nic.lock();
        engine.progress();
        let events = engine.shared.events.get(self.id).ok_or(libc::EBADF)?;
        let event = events.entries.front().ok_or(libc::EAGAIN)?;
        if event.error != 0 {
            return Err(FI_EAVAIL);
        }
        let fixed = size_of::<fi_eq_cm_entry>();
        if length < fixed && event.kind != FI_NOTIFY {
            return Err(FI_ETOOSMALL);
        }
        let written = if event.kind == FI_NOTIFY {
            // An event of the program's own, as it was written.
            let copied = event.data.len().min(length);
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(event.data.as_ptr(), buffer.cast(), copied) };
            copied
        } else {
            let entry = fi_eq_cm_entry {
                fid: event.fid.0,
                info: event.info.0,
            };
            let copied = event.data.len().min(length - fixed);
            // SAFETY: the caller's promise.
            unsafe {
                buffer.cast::<fi_eq_cm_entry>().write_unaligned(entry);
                std::ptr::copy_nonoverlapping(
                    event.data.as_ptr(),
                    buffer.cast::<u8>().add(fixed),
                    copied,
                );
            }
            fixed + copied
        };
        // SAFETY: the caller's promise.
        unsafe { kind.write(event.kind) };
        events.watched = false;
        if flags & FI_PEEK == 0 {
            events.take();
        }
        Ok(written)
    }
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    kind: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> isize {
    // SAFETY: libfabric's arguments, here and below.
    size(|| unsafe { queue(eq.cast()).read(kind, buffer, length, flags) })
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, buffer: *mut fi_eq_err_entry, _flags: u64) -> isize {
    size(|| {
        // SAFETY: see `read`.
        let (queue, entry) = unsafe { (queue(eq.cast()), &mut *buffer) };
        let mut engine = queue.nic.lock();
        let events = engine.shared.events.get(queue.id).ok_or(libc::EBADF)?;
        if events.entries.front().is_none_or(|event| event.error == 0) {
            return Err(libc::EAGAIN);
        }
        let event = events.take().ok_or(libc::EAGAIN)?;
        events.error_data = event.data;
        entry.fid = event.fid.0;
        // SAFETY: an object that the program has not closed: closing it takes its events away.
        entry.context =
            unsafe { event.fid.0.as_ref() }.map_or(std::ptr::null_mut(), |fid| fid.context);
        entry.data = 0;
        entry.err = event.error;
        entry.prov_errno = event.error;
        // A program may bring room for the data; one that brings none gets ours, valid until the next call.
        let length = events.error_data.len();
        if entry.err_data.is_null() || entry.err_data_size == 0 {
            entry.err_data = events.error_data.as_mut_ptr().cast();
            entry.err_data_size = length;
        } else {
            entry.err_data_size = entry.err_data_size.min(length);
            // SAFETY: the program's room, of the size that it gives.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    events.error_data.as_ptr(),
                    entry.err_data.cast(),
                    entry.err_data_size,
                );
            }
        }
        Ok(size_of::<fi_eq_err_entry>())
    })
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    kind: u32,
    buffer: *const c_void,
    length: usize,
    _flags: u64,
) -> isize {
    size(|| {
        if kind != FI_NOTIFY {
            return Err(libc::EINVAL);
        }
        // SAFETY: see `read`.
        let queue = unsafe { queue(eq.cast()) };
        // SAFETY: see `read`.
        let data = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) }.to_vec();
        let mut engine = queue.nic.lock();
        let event = Event {
            kind,
            fid: Opaque::NULL,
            info: Opaque::NULL,
            data,
            error: 0,
        };
        engine
            .shared
            .events
            .get(queue.id)
            .ok_or(libc::EBADF)?
            .push(event);
        Ok(length)
    })
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    kind: *mut u32,
    buffer: *mut c_void,
    length: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    size(|| {
        // SAFETY: see `read`.
        let queue = unsafe { queue(eq.cast()) };
        let deadline = Deadline::new(timeout);
        loop {
            // SAFETY: see `read`.
            let result = unsafe { queue.read(kind, buffer, length, flags) };
            if result != Err(libc::EAGAIN) {
                return result;
            }
            let fd = {
                let mut engine = queue.nic.lock();
                engine.arm();
                let events = engine.shared.events.get(queue.id).ok_or(libc::EBADF)?;
                events.sleepers += 1;
                events.wake.fd()
            };
            let woken = deadline.sleep(fd);
            if let Some(events) = queue.nic.lock().shared.events.get(queue.id) {
                events.sleepers -= 1;
            }
            if !woken {
                return Err(libc::EAGAIN);
            }
        }
    })
}

unsafe extern "C" fn strerror(
    _: *mut fid_eq,
    error: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: see `read`.
    unsafe { describe(error, buffer, length) }
}

unsafe extern "C" fn control(eq: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    code(|| {
        // SAFETY: see `read`.
        let queue = unsafe { queue(eq) };
        let value = match command {
            FI_GETWAIT => queue
                .nic
                .lock()
                .shared
                .events
                .get(queue.id)
                .ok_or(libc::EBADF)?
                .wake
                .fd(),
            FI_GETWAITOBJ => FI_WAIT_FD,
            _ => return Err(libc::ENOSYS),
        };
        // SAFETY: both commands fill an int.
        unsafe { argument.cast::<c_int>().write(value) };
        Ok(())
    })
}

unsafe extern "C" fn close(eq: *mut fid) -> c_int {
    code(|| {
        // SAFETY: made by `open`; libfabric's programs close an object once.
        let queue = unsafe { Box::from_raw(eq.cast::<EventQueue>()) };
        queue.nic.lock().shared.events.remove(queue.id);
        Ok(())
    })
}
