//! The handler thread of a NIC handle, which calls the application's handlers (spec §8.2, §11).

use std::sync::Arc;
use vipl_sys::clock::Instant;

use vipl_abi::*;

use crate::error::Error;
use crate::nic::events::{ErrorCopy, ErrorHandler, Job, Notice, Step};
use crate::nic::{self, Nic, wait};
use crate::vi::state::ERROR;
use crate::vi::{self, of_nic};

/// Makes sure that the thread runs.
pub(crate) fn start(nic: &Arc<Nic>) -> Result<(), Error> {
    let run_on = nic.clone();
    nic.events.start(move || run(&run_on))
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

fn run(nic: &Arc<Nic>) {
    loop {
        match nic.events.next() {
            Step::Call(job) => call(nic, job),
            Step::Error(handler, context, ErrorCopy(mut error)) => {
                // SAFETY: the application's handler with its context; the descriptor lives during the call.
                unsafe { handler(pointer(context), &raw mut error) };
            }
            Step::Notices(due) => due.iter().for_each(|notice| raise_lost(nic, notice)),
            Step::Watch(due) => watch(nic, due),
            Step::Stop => return,
        }
    }
}

fn pointer(address: usize) -> VIP_PVOID {
    std::ptr::with_exposed_provenance_mut(address)
}

/// Calls the handler of a notify request.
fn call(nic: &Nic, job: Job) {
    match job {
        Job::Descriptor {
            handler,
            context,
            vi,
            descriptor,
        } => {
            let descriptor = pointer(descriptor).cast();
            // SAFETY: the application's handler with what it asked for.
            unsafe { handler(pointer(context), nic.handle, pointer(vi), descriptor) };
        }
        Job::Entry {
            handler,
            context,
            vi,
            recv,
            ..
        } => {
            let recv = VIP_BOOLEAN::from(recv);
            // SAFETY: as above.
            unsafe { handler(pointer(context), nic.handle, pointer(vi), recv) };
        }
    }
}

/// Sleeps until something arrives on the NIC, and lets the VIs take it.
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
