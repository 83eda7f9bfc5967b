//! Event queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::engine::{Event, Opaque, Queue, Wake};
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{no_bind, size, table};
use crate::queue::{QueueObject, close, control, strerror};

/// See the module.
pub(crate) type EventQueue = QueueObject<fid_eq, Event>;

static OPS: fi_ops = table(close::<fid_eq, Event>, no_bind, control::<fid_eq, Event>);
static EQ_OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read,
    readerr,
    write,
    sread,
    strerror,
};

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
    let public = fid_eq {
        fid: fid {
            fclass: FI_CLASS_EQ,
            context,
            ops: &raw const OPS,
        },
        ops: &raw const EQ_OPS,
    };
    // SAFETY: the caller's promise.
    unsafe { EventQueue::open(nic, Queue::new(Some(wake), Vec::new()), public, out) };
    Ok(())
}

/// # Safety
/// `eq` is one of ours, and open.
unsafe fn of<'a>(eq: *mut fid_eq) -> &'a EventQueue {
    // SAFETY: the caller's promise.
    unsafe { QueueObject::of(eq.cast()) }
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
        let mut engine = self.lock();
        engine.progress();
        let queue = self.find(&mut engine)?;
        let event = queue.entries.front().ok_or(libc::EAGAIN)?;
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
        queue.was_read();
        if flags & FI_PEEK == 0 {
            queue.entries.pop_front();
            queue.lower();
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
    size(|| unsafe { of(eq).read(kind, buffer, length, flags) })
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, buffer: *mut fi_eq_err_entry, _flags: u64) -> isize {
    size(|| {
        // SAFETY: see `read`.
        let (object, entry) = unsafe { (of(eq), &mut *buffer) };
        let mut engine = object.lock();
        let queue = object.find(&mut engine)?;
        let event = queue.take_error().ok_or(libc::EAGAIN)?;
        queue.reading = event.data;
        entry.fid = event.fid.0;
        // SAFETY: an object that the program has not closed: closing it removes its events.
        entry.context =
            unsafe { event.fid.0.as_ref() }.map_or(std::ptr::null_mut(), |fid| fid.context);
        entry.data = 0;
        entry.err = event.error;
        entry.prov_errno = event.error;
        // A program may bring room for the data; one that brings none gets ours, valid until the next call.
        let length = queue.reading.len();
        if entry.err_data.is_null() || entry.err_data_size == 0 {
            entry.err_data = queue.reading.as_mut_ptr().cast();
            entry.err_data_size = length;
        } else {
            entry.err_data_size = entry.err_data_size.min(length);
            // SAFETY: the program's room, of the size that it states.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    queue.reading.as_ptr(),
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
        let object = unsafe { of(eq) };
        // SAFETY: see `read`.
        let data = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) }.to_vec();
        let event = Event {
            kind,
            fid: Opaque::NULL,
            info: Opaque::NULL,
            data,
            error: 0,
        };
        object.find(&mut object.lock())?.push(event);
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
        let object = unsafe { of(eq) };
        // SAFETY: see `read`.
        object.wait(timeout, || unsafe {
            object.read(kind, buffer, length, flags)
        })
    })
}
