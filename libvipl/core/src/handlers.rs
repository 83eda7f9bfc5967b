//! The handler thread of a NIC handle, which calls the application's handlers (spec §8.2, §11).

use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vipl_sys::clock::Instant;

use vipl_abi::*;
use vipl_sys::cancel;
use vipl_sys::thread::{set_name, spawn_bare};

use crate::bug;
use crate::error::Error;
use crate::layers;
use crate::nic::events::{CqNotifyHandler, ErrorCopy, ErrorHandler, Job, NotifyHandler, Step};
use crate::nic::notices::Notice;
use crate::nic::{self, Nic, wait};
use crate::vi::state::ERROR;
use crate::vi::{self, of_nic};

/// Starts the thread unless it runs.
pub(crate) fn start(nic: &Arc<Nic>) -> Result<(), Error> {
    nic.events.start(|| spawn(nic))
}

fn spawn(nic: &Arc<Nic>) -> io::Result<()> {
    let raw = Arc::into_raw(nic.clone());
    // SAFETY: the thread takes ownership of the reference.
    unsafe { spawn_bare(run, raw.cast_mut().cast()) }.inspect_err(|_| {
        // SAFETY: without a thread, the reference is still owned here.
        drop(unsafe { Arc::from_raw(raw) });
    })
}

/// VipErrorCallback.
pub fn set_error_handler(
    nic: VIP_NIC_HANDLE,
    context: VIP_PVOID,
    handler: Option<ErrorHandler>,
) -> Result<(), Error> {
    let nic = nic::resolve(nic)?;
    if handler.is_some() {
        start(&nic)?;
    }
    let handler = handler.map(|handler| (handler, context.addr()));
    nic.events.set_error_handler(handler);
    Ok(())
}

/// One call of a handler by the thread. It has no destructor.
#[derive(Clone, Copy)]
struct Due {
    nic: *const Nic,
    context: VIP_PVOID,
    what: What,
    /// The cancellation state before the library disabled it.
    before: cancel::Before,
}

#[derive(Clone, Copy)]
enum What {
    Descriptor(NotifyHandler, VIP_VI_HANDLE, *mut VIP_DESCRIPTOR),
    Entry(CqNotifyHandler, VIP_VI_HANDLE, VIP_BOOLEAN),
    Error(ErrorHandler, VIP_ERROR_DESCRIPTOR),
}

/// The thread. A handler may end it, by `pthread_exit` or cancellation, so this frame and [`call`] have no
/// destructors. A C++ exception that leaves a handler is not caught: `std::terminate` is called, as in any
/// thread.
unsafe extern "C-unwind" fn run(nic: *mut c_void) -> *mut c_void {
    let before = cancel::disable();
    let nic = nic.cast_const().cast::<Nic>();
    set_name(c"vipl-handler");
    while let Some(mut due) = next(nic, before) {
        // SAFETY: neither this frame nor that of `call` has a destructor; both functions take a `Due`.
        unsafe { cancel::watch(call, left, (&raw mut due).cast()) };
    }
    std::ptr::null_mut()
}

/// The next call of a handler. `None`: the thread ends, and has dropped its reference.
fn next(nic: *const Nic, before: cancel::Before) -> Option<Due> {
    let found = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the thread owns a reference, which it drops at its end.
        let nic = ManuallyDrop::new(unsafe { Arc::from_raw(nic) });
        let found = next_call(&nic, before);
        if found.is_none() {
            drop(ManuallyDrop::into_inner(nic));
        }
        found
    }));
    found.unwrap_or_else(|panic| {
        let _ = bug::caught(&*panic);
        None
    })
}

fn next_call(nic: &Arc<Nic>, before: cancel::Before) -> Option<Due> {
    loop {
        let (context, what) = match nic.events.next() {
            Step::Call(Job::Descriptor {
                handler,
                context,
                vi,
                descriptor,
            }) => {
                layers::handler(nic.handle, pointer(vi), 0, descriptor);
                let descriptor = pointer(descriptor).cast();
                (context, What::Descriptor(handler, pointer(vi), descriptor))
            }
            Step::Call(Job::Entry {
                handler,
                context,
                vi,
                recv,
                ..
            }) => {
                let recv = VIP_BOOLEAN::from(recv);
                layers::handler(nic.handle, pointer(vi), recv, 0);
                (context, What::Entry(handler, pointer(vi), recv))
            }
            Step::Error(handler, context, ErrorCopy(error)) => {
                (context, What::Error(handler, error))
            }
            Step::Notices(due) => {
                due.iter().for_each(|notice| raise_lost(nic, notice));
                continue;
            }
            Step::Watch(due) => {
                watch(nic, due);
                continue;
            }
            Step::Stop => return None,
        };
        return Some(Due {
            nic: Arc::as_ptr(nic),
            context: pointer(context),
            what,
            before,
        });
    }
}

fn pointer(address: usize) -> VIP_PVOID {
    std::ptr::with_exposed_provenance_mut(address)
}

/// Calls the handler.
extern "C-unwind" fn call(due: *mut c_void) {
    // SAFETY: `run` passes one. The application's handlers, with their contexts; the types differ only in
    // that these may unwind. The NIC lives as long as the thread.
    unsafe {
        let due = due.cast::<Due>();
        let (context, nic) = ((*due).context, (*(*due).nic).handle);
        cancel::restore((*due).before);
        match (*due).what {
            What::Descriptor(handler, vi, descriptor) => {
                type Leaves = unsafe extern "C-unwind" fn(
                    VIP_PVOID,
                    VIP_NIC_HANDLE,
                    VIP_VI_HANDLE,
                    *mut VIP_DESCRIPTOR,
                );
                std::mem::transmute::<NotifyHandler, Leaves>(handler)(context, nic, vi, descriptor);
            }
            What::Entry(handler, vi, recv) => {
                type Leaves = unsafe extern "C-unwind" fn(
                    VIP_PVOID,
                    VIP_NIC_HANDLE,
                    VIP_VI_HANDLE,
                    VIP_BOOLEAN,
                );
                std::mem::transmute::<CqNotifyHandler, Leaves>(handler)(context, nic, vi, recv);
            }
            What::Error(handler, mut error) => {
                type Leaves = unsafe extern "C-unwind" fn(VIP_PVOID, *mut VIP_ERROR_DESCRIPTOR);
                std::mem::transmute::<ErrorHandler, Leaves>(handler)(context, &raw mut error);
            }
        }
        cancel::disable();
    }
}

/// A handler has ended its thread. Another one makes the remaining calls and takes ownership of the
/// reference.
extern "C" fn left(due: *mut c_void) {
    let replaced = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `run` passes one; the thread's reference is dropped here.
        let nic = unsafe { Arc::from_raw((*due.cast::<Due>()).nic) };
        log::info!(target: "core", "a handler has ended its thread; another thread calls the next one");
        nic.events.thread_left(|| spawn(&nic));
    }));
    if let Err(panic) = replaced {
        let _ = bug::caught(&*panic);
    }
}

/// Sleeps until something arrives on the NIC, and makes progress on its VIs.
fn watch(nic: &Nic, due: Option<Instant>) {
    wait::step(nic, due, &mut || {
        of_nic::progress(nic);
        nic.events.ends_watch(due).then_some(())
    });
}

/// Raises CONN_LOST for a VI that is still in the error state of the same connection.
fn raise_lost(nic: &Arc<Nic>, notice: &Notice) {
    let Ok(vi) = vi::lock(pointer(notice.vi)) else {
        return;
    };
    if vi.abi.state == ERROR && vi.epoch == notice.epoch && Arc::ptr_eq(&vi.nic, nic) {
        vi.raise(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST, 0, std::ptr::null_mut());
    }
}
