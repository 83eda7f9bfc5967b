//! Completion queues.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use crate::engine::{Completion, Completions, Wake};
use crate::eq::Deadline;
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{code, describe, no_bind, size, table};
use crate::slab::Id;

/// See the module.
#[repr(C)]
struct CompletionQueue {
    cq: fid_cq,
    slack: Slack,
    nic: Arc<Nic>,
    id: Id,
    /// Bytes of an entry.
    entry: usize,
}

static OPS: fi_ops = table(close, no_bind, control);
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
    let entry = match attributes.format {
        FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => std::mem::offset_of!(fi_cq_data_entry, flags),
        FI_CQ_FORMAT_MSG => std::mem::offset_of!(fi_cq_data_entry, buf),
        FI_CQ_FORMAT_DATA => size_of::<fi_cq_data_entry>(),
        _ => return Err(libc::ENOSYS),
    };
    let wake = match attributes.wait_obj {
        FI_WAIT_NONE => None,
        FI_WAIT_UNSPEC | FI_WAIT_FD => Some(Wake::new().ok_or(libc::EMFILE)?),
        _ => return Err(libc::ENOSYS),
    };
    let id = nic.lock().shared.completions.insert(Completions::new(wake));
    let queue = Box::new(CompletionQueue {
        cq: fid_cq {
            fid: fid {
                fclass: FI_CLASS_CQ,
                context,
                ops: &raw const OPS,
            },
            ops: &raw const CQ_OPS,
        },
        slack: SLACK,
        nic,
        id,
        entry,
    });
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(queue).cast()) };
    Ok(())
}

/// # Safety
/// `queue` is one of ours, and open.
unsafe fn queue<'a>(queue: *mut fid) -> &'a CompletionQueue {
    // SAFETY: the caller's promise.
    unsafe { &*queue.cast::<CompletionQueue>() }
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
    engine
        .shared
        .completions
        .get(queue.id)
        .is_none_or(|completions| {
            completions.take_nudge();
            completions.settle();
            completions.watched = true;
            completions.entries.is_empty()
        })
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
        let mut engine = self.nic.lock();
        engine.called();
        let before = engine.shared.completions.get(self.id).ok_or(libc::EBADF)?;
        if before.entries.is_empty() {
            if std::mem::take(&mut before.emptied) && !patient {
                return Err(libc::EAGAIN);
            }
            engine.progress_for(self.id, count);
        }
        let dead = engine.shared.dead;
        let queue = engine.shared.completions.get(self.id).ok_or(libc::EBADF)?;
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
            let entry = fi_cq_data_entry {
                op_context: next.context.0,
                flags: next.flags,
                len: next.len,
                buf: std::ptr::null_mut(),
                data: next.data,
            };
            // SAFETY: the caller's promise; the shorter formats are beginnings of the longest.
            unsafe {
                let to = buffer.cast::<u8>().add(read * self.entry);
                std::ptr::copy_nonoverlapping((&raw const entry).cast(), to, self.entry);
            }
            queue.entries.pop_front();
            read += 1;
        }
        queue.settle();
        queue.emptied = read > 0 && queue.entries.is_empty();
        queue.watched = false;
        if read == 0 && count > 0 {
            if !patient && engine.found_nothing() {
                drop(engine);
                crate::nic::rest();
            }
            // ofi_rxm waits for a peer that has gone; for a device that has gone nobody shall wait.
            Err(if dead { libc::EIO } else { libc::EAGAIN })
        } else {
            Ok(read)
        }
    }

    /// Reads entries, and sleeps until there is one.
    ///
    /// # Safety
    /// `buffer` has room for `count` entries.
    unsafe fn sleep(
        &self,
        buffer: *mut c_void,
        count: usize,
        timeout: c_int,
    ) -> Result<usize, c_int> {
        let deadline = Deadline::new(timeout);
        loop {
            // SAFETY: the caller's promise.
            let result = unsafe { self.read(buffer, count, true) };
            if result != Err(libc::EAGAIN) {
                return result;
            }
            let fd = {
                let mut engine = self.nic.lock();
                engine.arm();
                let queue = engine.shared.completions.get(self.id).ok_or(libc::EBADF)?;
                if queue.take_nudge() {
                    queue.settle();
                    return Err(libc::EAGAIN);
                }
                if !queue.entries.is_empty() {
                    continue;
                }
                let fd = queue.wake.as_ref().ok_or(libc::EINVAL)?.fd();
                queue.sleepers += 1;
                fd
            };
            let woken = deadline.sleep(fd);
            if let Some(queue) = self.nic.lock().shared.completions.get(self.id) {
                queue.sleepers -= 1;
            }
            if !woken {
                return Err(libc::EAGAIN);
            }
        }
    }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: libfabric's arguments, here and below.
    size(|| unsafe { queue(cq.cast()).read(buffer, count, false) })
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
            let read = queue(cq.cast()).read(buffer, count, false)?;
            no_sources(sources, read);
            Ok(read)
        }
    })
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buffer: *mut fi_cq_err_entry, _flags: u64) -> isize {
    size(|| {
        // SAFETY: see `read`.
        let (queue, entry) = unsafe { (queue(cq.cast()), &mut *buffer) };
        let mut engine = queue.nic.lock();
        let completions = engine.shared.completions.get(queue.id).ok_or(libc::EBADF)?;
        if completions
            .entries
            .front()
            .is_none_or(|next| next.error == 0)
        {
            return Err(libc::EAGAIN);
        }
        let failed = completions.entries.pop_front().ok_or(libc::EAGAIN)?;
        completions.settle();
        let Completion {
            context,
            flags,
            len,
            data,
            error,
            missing,
            ..
        } = failed;
        entry.op_context = context.0;
        entry.flags = flags;
        entry.len = len;
        entry.buf = std::ptr::null_mut();
        entry.data = data;
        entry.tag = 0;
        entry.olen = missing;
        entry.err = error;
        entry.prov_errno = error;
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
    size(|| unsafe { queue(cq.cast()).sleep(buffer, count, timeout) })
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
            let read = queue(cq.cast()).sleep(buffer, count, timeout)?;
            no_sources(sources, read);
            Ok(read)
        }
    })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    code(|| {
        // SAFETY: see `read`.
        let queue = unsafe { queue(cq.cast()) };
        let mut engine = queue.nic.lock();
        engine
            .shared
            .completions
            .get(queue.id)
            .ok_or(libc::EBADF)?
            .nudge();
        Ok(())
    })
}

unsafe extern "C" fn strerror(
    _: *mut fid_cq,
    error: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: see `read`.
    unsafe { describe(error, buffer, length) }
}

unsafe extern "C" fn control(cq: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    code(|| {
        // SAFETY: see `read`.
        let queue = unsafe { queue(cq) };
        let mut engine = queue.nic.lock();
        let completions = engine.shared.completions.get(queue.id).ok_or(libc::EBADF)?;
        let fd = completions.wake.as_ref().map(Wake::fd);
        let value = match command {
            FI_GETWAIT => fd.ok_or(libc::ENODATA)?,
            FI_GETWAITOBJ => fd.map_or(FI_WAIT_NONE, |_| FI_WAIT_FD),
            _ => return Err(libc::ENOSYS),
        };
        // SAFETY: both commands fill an int.
        unsafe { argument.cast::<c_int>().write(value) };
        Ok(())
    })
}

unsafe extern "C" fn close(cq: *mut fid) -> c_int {
    code(|| {
        // SAFETY: made by `open`; libfabric's programs close an object once.
        let queue = unsafe { Box::from_raw(cq.cast::<CompletionQueue>()) };
        queue.nic.lock().shared.completions.remove(queue.id);
        Ok(())
    })
}
