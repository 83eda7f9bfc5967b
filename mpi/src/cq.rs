//! Completion queues.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, MutexGuard};

use crate::engine::{Completion, Engine, Queue, Reading, Wake};
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{code, no_bind, size, table};
use crate::queue::{QueueObject, close, control, strerror};

/// See the module.
pub(crate) type CompletionQueue = QueueObject<fid_cq, Completion>;

static OPS: fi_ops = table(
    close::<fid_cq, Completion>,
    no_bind,
    control::<fid_cq, Completion>,
);
static CQ_OPS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read,
    readfrom,
    readerr,
    sread,
    sreadfrom,
    signal,
    strerror,
};

/// Opens a queue.
///
/// # Safety
/// Arguments of `fi_cq_open`.
pub(crate) unsafe fn open(
    nic: Arc<Nic>,
    attributes: *mut fi_cq_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let attributes = unsafe { attributes.as_ref() }.ok_or(libc::EINVAL)?;
    let entry_bytes = match attributes.format {
        FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => std::mem::offset_of!(fi_cq_data_entry, flags),
        FI_CQ_FORMAT_MSG => std::mem::offset_of!(fi_cq_data_entry, buf),
        FI_CQ_FORMAT_DATA => size_of::<fi_cq_data_entry>(),
        FI_CQ_FORMAT_TAGGED => size_of::<fi_cq_tagged_entry>(),
        _ => return Err(libc::ENOSYS),
    };
    let wake = match attributes.wait_obj {
        FI_WAIT_NONE => None,
        FI_WAIT_UNSPEC | FI_WAIT_FD => Some(Wake::new().ok_or(libc::EMFILE)?),
        _ => return Err(libc::ENOSYS),
    };
    let reading = Reading {
        entry_bytes,
        emptied: false,
    };
    let public = fid_cq {
        fid: fid {
            fclass: FI_CLASS_CQ,
            context,
            ops: &raw const OPS,
        },
        ops: &raw const CQ_OPS,
    };
    // SAFETY: the caller's promise.
    unsafe { CompletionQueue::open(nic, Queue::new(wake, reading), public, out) };
    Ok(())
}

/// # Safety
/// `cq` is one of ours, and open.
#[inline]
unsafe fn of<'a>(cq: *mut fid_cq) -> &'a CompletionQueue {
    // SAFETY: the caller's promise.
    unsafe { QueueObject::of(cq.cast()) }
}

impl CompletionQueue {
    /// Reads entries. `patient`: an empty answer means that there is nothing.
    ///
    /// # Safety
    /// `buffer` has room for `count` entries.
    #[inline]
    unsafe fn read(
        &self,
        buffer: *mut c_void,
        count: usize,
        patient: bool,
    ) -> Result<usize, c_int> {
        let mut engine = self.lock();
        engine.called();
        let queue = self.find(&mut engine)?;
        queue.was_read();
        if queue.entries.is_empty() {
            if std::mem::take(&mut queue.reading.emptied) && !patient {
                return Err(libc::EAGAIN);
            }
            queue.lower();
            let found = engine.progress_for(self.id(), count);
            if !found || self.find(&mut engine)?.entries.is_empty() {
                return nothing(engine, count, patient);
            }
        }
        let queue = self.find(&mut engine)?;
        // SAFETY: the caller's promise.
        unsafe { take(queue, buffer, count) }
    }

    /// Reads entries, and sleeps until there is one.
    ///
    /// # Safety
    /// `buffer` has room for `count` entries.
    unsafe fn read_or_wait(
        &self,
        buffer: *mut c_void,
        count: usize,
        timeout: c_int,
    ) -> Result<usize, c_int> {
        // SAFETY: the caller's promise.
        self.wait(timeout, || unsafe { self.read(buffer, count, true) })
    }
}

/// The answer of a queue that is empty after a search.
#[inline]
fn nothing(
    mut engine: MutexGuard<'_, Engine>,
    count: usize,
    patient: bool,
) -> Result<usize, c_int> {
    if count == 0 {
        return Ok(0);
    }
    let dead = engine.shared.dead;
    if !patient && engine.found_nothing() {
        drop(engine);
        crate::nic::rest();
    }
    // ofi_rxm waits for a peer that has closed; for a device that has failed no thread shall wait.
    Err(if dead { libc::EIO } else { libc::EAGAIN })
}

/// Takes entries of a queue that has some.
///
/// # Safety
/// `buffer` has room for `count` entries.
unsafe fn take(
    queue: &mut Queue<Completion>,
    buffer: *mut c_void,
    count: usize,
) -> Result<usize, c_int> {
    let bytes = queue.reading.entry_bytes;
    let mut read = 0;
    while read < count {
        let Some(next) = queue.entries.front() else {
            break;
        };
        if next.error != 0 {
            if read == 0 {
                return Err(FI_EAVAIL);
            }
            break;
        }
        let entry = fi_cq_tagged_entry {
            op_context: next.context.0,
            flags: next.flags,
            len: next.len,
            buf: std::ptr::null_mut(),
            data: next.data,
            tag: next.tag,
        };
        // SAFETY: the caller's promise; the shorter formats are beginnings of the longest.
        unsafe {
            let to = buffer.cast::<u8>().add(read * bytes);
            if bytes == size_of::<fi_cq_tagged_entry>() {
                to.cast::<fi_cq_tagged_entry>().write_unaligned(entry);
            } else if bytes == size_of::<fi_cq_data_entry>() {
                let entry = (&raw const entry).cast::<fi_cq_data_entry>();
                to.cast::<fi_cq_data_entry>().write_unaligned(*entry);
            } else {
                std::ptr::copy_nonoverlapping((&raw const entry).cast(), to, bytes);
            }
        }
        queue.entries.pop_front();
        read += 1;
    }
    queue.lower();
    queue.reading.emptied = read > 0 && queue.entries.is_empty();
    Ok(read)
}

unsafe extern "C" fn read(cq: *mut fid_cq, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: libfabric's arguments, here and below.
    size(|| unsafe { of(cq).read(buffer, count, false) })
}

/// Endpoints that are connected have no address vector.
///
/// # Safety
/// `sources` is null or has room for `count` elements.
unsafe fn no_sources(sources: *mut u64, count: usize) {
    if !sources.is_null() {
        for at in 0..count {
            // SAFETY: the caller's promise.
            unsafe { sources.add(at).write(FI_ADDR_NOTAVAIL) };
        }
    }
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    size(|| {
        // SAFETY: see `read`.
        unsafe {
            let read = of(cq).read(buffer, count, false)?;
            no_sources(sources, read);
            Ok(read)
        }
    })
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buffer: *mut fi_cq_err_entry, _flags: u64) -> isize {
    size(|| {
        // SAFETY: see `read`.
        let (object, entry) = unsafe { (of(cq), &mut *buffer) };
        let mut engine = object.lock();
        let queue = object.find(&mut engine)?;
        let failed = queue.take_error().ok_or(libc::EAGAIN)?;
        entry.op_context = failed.context.0;
        entry.flags = failed.flags;
        entry.len = failed.len;
        entry.buf = std::ptr::null_mut();
        entry.data = failed.data;
        entry.tag = failed.tag;
        entry.olen = failed.missing;
        entry.err = failed.error;
        entry.prov_errno = failed.error;
        entry.err_data_size = 0;
        Ok(1)
    })
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: see `read`.
    size(|| unsafe { of(cq).read_or_wait(buffer, count, timeout) })
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut u64,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    size(|| {
        // SAFETY: see `read`.
        unsafe {
            let read = of(cq).read_or_wait(buffer, count, timeout)?;
            no_sources(sources, read);
            Ok(read)
        }
    })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    code(|| {
        // SAFETY: see `read`.
        let object = unsafe { of(cq) };
        object.find(&mut object.lock())?.nudge();
        Ok(())
    })
}
