//! Asynchronous errors, and calls for completions.

use std::ffi::{c_int, c_ulong, c_void};
use std::fmt;
use std::mem::offset_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vipl_abi::*;

use crate::entry::{Entry, ViId};
use crate::error::AsyncCode;

/// An error that no call returns (spec §11).
#[derive(Clone, Debug)]
pub struct AsyncError {
    /// What happened.
    pub code: AsyncCode,
    /// The VI concerned, if it is one.
    pub vi: Option<ViId>,
    /// `VIP_STATUS_OP_*` of the operation, or 0.
    pub operation: u64,
}

impl fmt::Display for AsyncError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.code)
    }
}

pub(crate) type ErrorHandler = Box<dyn Fn(&AsyncError) + Send + Sync>;

/// All error handlers that a NIC has had. One that was replaced may be the one that runs.
#[derive(Default)]
pub(crate) struct Handlers(Mutex<Vec<Arc<ErrorHandler>>>);

impl Handlers {
    /// Keeps a handler; returns its context.
    pub(crate) fn keep(&self, handler: ErrorHandler) -> *mut c_void {
        let handler = Arc::new(handler);
        let context = Arc::as_ptr(&handler);
        lock(&self.0).push(handler);
        context.cast_mut().cast()
    }

    /// Keeps all of them until the process ends.
    pub(crate) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut *lock(&self.0)));
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handlers")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) unsafe extern "C" fn on_error(context: *mut c_void, error: *mut VIP_ERROR_DESCRIPTOR) {
    if context.is_null() || error.is_null() {
        return;
    }
    let field = |offset: usize| error.cast::<u8>().wrapping_add(offset);
    // SAFETY: the library passes an error descriptor. The code is read as an integer: its value may be unknown.
    let (code, vi, operation) = unsafe {
        (
            field(offset_of!(VIP_ERROR_DESCRIPTOR, ErrorCode))
                .cast::<c_int>()
                .read_unaligned(),
            field(offset_of!(VIP_ERROR_DESCRIPTOR, ViHandle))
                .cast::<VIP_VI_HANDLE>()
                .read_unaligned(),
            field(offset_of!(VIP_ERROR_DESCRIPTOR, OpCode))
                .cast::<c_ulong>()
                .read_unaligned(),
        )
    };
    let error = AsyncError {
        code: AsyncCode::from(code),
        vi: (!vi.is_null()).then(|| ViId::new(vi)),
        operation: operation as u64,
    };
    // SAFETY: a handler that `Handlers::keep` keeps while the NIC is open.
    let handler = unsafe { &*context.cast::<ErrorHandler>() };
    handler(&error);
}

pub(crate) type EntryHandler = Box<dyn FnOnce(Entry) + Send>;

/// Registrations that the library has not served yet. Each is freed by its call, or with the queue.
#[derive(Clone, Default)]
pub(crate) struct Registrations(Arc<Mutex<Vec<Registration>>>);

struct Registration {
    context: usize,
    handler: EntryHandler,
}

impl Registrations {
    /// Adds one; returns its context.
    pub(crate) fn add(&self, handler: EntryHandler) -> *mut c_void {
        let context: *mut Registrations = Box::into_raw(Box::new(self.clone()));
        lock(&self.0).push(Registration {
            context: context.expose_provenance(),
            handler,
        });
        context.cast()
    }

    /// Takes one that is to be called, or that the library did not accept.
    ///
    /// # Safety
    /// `context` is from `add`, and it is not taken a second time.
    pub(crate) unsafe fn take(context: *mut c_void) -> Option<EntryHandler> {
        // SAFETY: by contract.
        let all = unsafe { Box::from_raw(context.cast::<Registrations>()) };
        let mut registrations = lock(&all.0);
        let own = registrations
            .iter()
            .position(|one| one.context == context.expose_provenance())?;
        Some(registrations.swap_remove(own).handler)
    }

    /// Drops all that the library has cancelled.
    pub(crate) fn cancel(&self) {
        // What a handler holds may be dropped with it, and use this queue.
        let all = std::mem::take(&mut *lock(&self.0));
        for registration in all {
            let context =
                std::ptr::with_exposed_provenance_mut::<Registrations>(registration.context);
            // SAFETY: from `add`; the library will not call it any more, so no other call takes it.
            drop(unsafe { Box::from_raw(context) });
        }
    }
}

impl fmt::Debug for Registrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registrations")
    }
}

pub(crate) unsafe extern "C" fn on_entry(
    context: *mut c_void,
    _nic: VIP_NIC_HANDLE,
    vi: VIP_VI_HANDLE,
    receive: VIP_BOOLEAN,
) {
    // SAFETY: the library calls each registration once.
    if let Some(handler) = unsafe { Registrations::take(context) } {
        handler(Entry::new(vi, receive));
    }
}
