//! The handlers of a run's application, and results in the form of the oracle.

use std::sync::mpsc::Sender;

use vipl_abi::*;

use super::oracle::{Answer, Call};
use crate::cq;
use crate::error::Error;
use crate::vi::{Dequeued, Which};

/// The context of a handler.
pub(super) struct Context {
    pub request: u64,
    pub calls: Sender<Call>,
}

pub(super) unsafe extern "C" fn on_descriptor(
    context: VIP_PVOID,
    _nic: VIP_NIC_HANDLE,
    vi: VIP_VI_HANDLE,
    descriptor: *mut VIP_DESCRIPTOR,
) {
    // SAFETY: the run frees its contexts after the NIC is closed.
    let Context { request, calls } = unsafe { &*context.cast::<Context>() };
    let (request, vi, at) = (*request, vi.addr(), descriptor.addr());
    let _ = calls.send(Call::Descriptor { request, vi, at });
}

pub(super) unsafe extern "C" fn on_entry(
    context: VIP_PVOID,
    _nic: VIP_NIC_HANDLE,
    vi: VIP_VI_HANDLE,
    recv: VIP_BOOLEAN,
) {
    // SAFETY: as above.
    let Context { request, calls } = unsafe { &*context.cast::<Context>() };
    let (request, vi, which) = (*request, vi.addr(), side(recv != 0));
    let _ = calls.send(Call::Entry { request, vi, which });
}

pub(super) unsafe extern "C" fn on_error(context: VIP_PVOID, error: *mut VIP_ERROR_DESCRIPTOR) {
    // SAFETY: as above; the error lives during the call.
    let (Context { calls, .. }, error) = unsafe { (&*context.cast::<Context>(), &*error) };
    let _ = calls.send(Call::Error {
        code: error.ErrorCode,
        vi: error.ViHandle.addr(),
        cq: error.CQHandle.addr(),
        at: error.DescriptorPtr.addr(),
    });
}

fn side(recv: bool) -> Which {
    if recv { Which::Recv } else { Which::Send }
}

pub(super) fn pointer(address: usize) -> VIP_PVOID {
    std::ptr::with_exposed_provenance_mut(address)
}

pub(super) fn taken(taken: &Dequeued) -> Answer {
    if taken.descriptor.is_null() {
        return Answer::Nothing(taken.result);
    }
    Answer::Descriptor {
        result: taken.result,
        at: taken.descriptor.addr(),
    }
}

pub(super) fn entry(entry: Result<cq::Entry, Error>) -> Answer {
    match entry {
        Ok(entry) => Answer::Entry {
            vi: entry.vi.addr(),
            which: side(entry.recv),
        },
        Err(Error::NotDone) => Answer::Nothing(VIP_RETURN::VIP_NOT_DONE),
        Err(Error::Timeout) => Answer::Nothing(VIP_RETURN::VIP_TIMEOUT),
        Err(Error::InvalidParameter) => Answer::Nothing(VIP_RETURN::VIP_INVALID_PARAMETER),
        Err(other) => panic!("a CQ said: {other}"),
    }
}
