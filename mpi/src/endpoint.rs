//! Endpoints: the object that libfabric sees, what it is bound to, its options.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::cq::CompletionQueue;
use crate::engine::{Endpoint, Opaque};
use crate::eq::EventQueue;
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{code, size};
use crate::packet::CM_DATA;
use crate::slab::Id;

/// See the module.
#[repr(C)]
pub(crate) struct EndpointObject {
    pub ep: fid_ep,
    pub slack: Slack,
    pub nic: Arc<Nic>,
    pub id: Id,
    /// Flags of operations that are given none.
    pub send_flags: u64,
    pub receive_flags: u64,
    /// The thread that connects.
    pub thread: Mutex<Option<JoinHandle<()>>>,
}

// SAFETY: the pointers are of tables and of the program's; the provider follows neither from another thread.
unsafe impl Send for EndpointObject {}

/// Of endpoints and listeners.
pub(crate) static EP_OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: unsupported,
    rx_ctx: unsupported,
    rx_size_left,
    tx_size_left,
};

/// Closed endpoints whose objects are kept. As many as a device has VIs: all peers may close at once.
const CLOSED_MAX: usize = 1024;
static CLOSED: Mutex<VecDeque<Box<EndpointObject>>> = Mutex::new(VecDeque::new());

/// Keeps the object of an endpoint that was closed. `ofi_rxm` reads completions after it has closed their endpoint, and
/// posts the receives again that it reads: a late call must find an object that returns FI_EBADF, not memory of another one.
pub(crate) fn keep_closed(object: Box<EndpointObject>) {
    let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    closed.push_back(object);
    let oldest = (closed.len() > CLOSED_MAX).then(|| closed.pop_front());
    drop(closed);
    drop(oldest);
}

/// Frees the objects of the endpoints that were closed: libfabric ends the provider.
pub(crate) fn forget_closed() {
    let closed = std::mem::take(&mut *CLOSED.lock().unwrap_or_else(PoisonError::into_inner));
    drop(closed);
}

/// # Safety
/// `ep` is one of ours, and open or closed lately.
#[inline]
pub(crate) unsafe fn object<'a>(ep: *mut fid) -> &'a EndpointObject {
    // SAFETY: the caller's promise.
    unsafe { &*ep.cast::<EndpointObject>() }
}

impl EndpointObject {
    /// Runs a function on its state.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut Endpoint) -> R) -> Result<R, c_int> {
        self.nic
            .lock()
            .with(self.id, |endpoint, _| run(endpoint))
            .ok_or(libc::EBADF)
    }

    /// See [`Nic::linger`].
    pub(crate) fn linger(&self) {
        let is_busy = |endpoint: &mut Endpoint, _: &mut _| endpoint.is_busy();
        self.nic
            .linger(|engine| engine.with(self.id, is_busy) == Some(true));
    }
}

pub(crate) unsafe extern "C" fn bind(ep: *mut fid, queue: *mut fid, flags: u64) -> c_int {
    code(|| {
        // SAFETY: libfabric's arguments, here and below.
        let (object, class) = unsafe { (object(ep), (*queue).fclass) };
        match class {
            FI_CLASS_EQ => {
                // SAFETY: an event queue, which is one of ours.
                let events = unsafe { EventQueue::of(queue) }.id();
                object.with(|endpoint| endpoint.reports.events = Some(events))
            }
            FI_CLASS_CQ => {
                // SAFETY: a completion queue, which is one of ours.
                let completions = unsafe { CompletionQueue::of(queue) }.id();
                object.with(|endpoint| endpoint.reports.bind(completions, flags))
            }
            _ => Err(libc::EINVAL),
        }
    })
}

pub(crate) unsafe extern "C" fn control(ep: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    code(|| {
        if command != FI_ENABLE {
            return Err(libc::ENOSYS);
        }
        // SAFETY: see `bind`.
        let object = unsafe { object(ep) };
        object.with(|endpoint| {
            let reports = &endpoint.reports;
            if reports.events.is_none() {
                Err(FI_ENOEQ)
            } else if reports.sends.queue.is_none() || reports.receives.queue.is_none() {
                Err(FI_ENOCQ)
            } else {
                Ok(())
            }
        })?
    })
}

unsafe extern "C" fn cancel(ep: *mut fid, context: *mut c_void) -> isize {
    size(|| {
        // SAFETY: see `bind`.
        let object = unsafe { object(ep) };
        let mut engine = object.nic.lock();
        let found = engine.with(object.id, |endpoint, shared| {
            endpoint.cancel(Opaque(context), shared)
        });
        if found == Some(true) {
            Ok(0)
        } else {
            Err(libc::ENOENT)
        }
    })
}

unsafe extern "C" fn getopt(
    _: *mut fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut usize,
) -> c_int {
    code(|| {
        if (level, name) != (FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE) {
            return Err(libc::ENOPROTOOPT);
        }
        // SAFETY: see `bind`.
        unsafe {
            if *length < size_of::<usize>() {
                return Err(FI_ETOOSMALL);
            }
            value.cast::<usize>().write_unaligned(CM_DATA);
            length.write(size_of::<usize>());
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn setopt(
    _: *mut fid,
    _: c_int,
    _: c_int,
    _: *const c_void,
    _: usize,
) -> c_int {
    -libc::ENOPROTOOPT
}

unsafe extern "C" fn rx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: see `bind`.
    size(|| unsafe { object(ep.cast()) }.with(|endpoint| endpoint.room_for_receives()))
}

unsafe extern "C" fn tx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: see `bind`.
    size(|| unsafe { object(ep.cast()) }.with(|endpoint| endpoint.room_for_operations()))
}
