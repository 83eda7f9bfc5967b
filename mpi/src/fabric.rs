//! The fabric: makes domains, listeners and event queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::cq::CompletionQueue;
use crate::eq::EventQueue;
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{code, no_bind, no_control, table};

/// See the module.
#[repr(C)]
struct Fabric {
    fabric: fid_fabric,
    slack: Slack,
    nic: Arc<Nic>,
}

static OPS: fi_ops = table(close, no_bind, no_control);
static FABRIC_OPS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain,
    passive_ep,
    eq_open,
    wait_open: unsupported,
    trywait,
};

/// Opens a fabric.
///
/// # Safety
/// Arguments of `fi_fabric`.
pub(crate) unsafe fn open(
    attributes: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> Result<(), c_int> {
    let nic = Nic::get().map_err(|why| {
        crate::libfabric::warn(|| why);
        libc::ENODEV
    })?;
    // SAFETY: the caller's promise.
    let api_version = unsafe { attributes.as_ref() }.map_or(0, |attributes| attributes.api_version);
    let fabric = Box::new(Fabric {
        fabric: fid_fabric {
            fid: fid {
                fclass: FI_CLASS_FABRIC,
                context,
                ops: &raw const OPS,
            },
            ops: &raw const FABRIC_OPS,
            api_version,
        },
        slack: SLACK,
        nic,
    });
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(fabric).cast()) };
    Ok(())
}

/// # Safety
/// `fabric` is one of ours, and open.
unsafe fn nic(fabric: *mut fid_fabric) -> Arc<Nic> {
    // SAFETY: the caller's promise.
    unsafe { &*fabric.cast::<Fabric>() }.nic.clone()
}

unsafe extern "C" fn domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's arguments, here and below.
    code(|| unsafe { crate::domain::open(nic(fabric), info, out, context) })
}

unsafe extern "C" fn passive_ep(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: see `domain`.
    code(|| unsafe { crate::passive::open(nic(fabric), (*fabric).api_version, info, out, context) })
}

unsafe extern "C" fn eq_open(
    fabric: *mut fid_fabric,
    attributes: *mut fi_eq_attr,
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: see `domain`.
    code(|| unsafe { crate::eq::open(nic(fabric), attributes, out, context) })
}

/// Whether a program may sleep on these queues: none of them has anything, and the next entry wakes it.
unsafe extern "C" fn trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    code(|| {
        // SAFETY: see `domain`.
        let nic = unsafe { nic(fabric) };
        for at in 0..usize::try_from(count).map_err(|_| libc::EINVAL)? {
            // SAFETY: see `domain`.
            let object = unsafe { *fids.add(at) };
            // SAFETY: see `domain`.
            let idle = match unsafe { (*object).fclass } {
                // SAFETY: an object of this class is one of ours.
                FI_CLASS_CQ => unsafe { CompletionQueue::of(object) }.may_sleep(),
                // SAFETY: as above.
                FI_CLASS_EQ => unsafe { EventQueue::of(object) }.may_sleep(),
                _ => return Err(libc::ENOSYS),
            };
            if !idle {
                return Err(libc::EAGAIN);
            }
        }
        nic.lock().arm();
        Ok(())
    })
}

unsafe extern "C" fn close(fabric: *mut fid) -> c_int {
    code(|| {
        // SAFETY: made by `open`; libfabric's programs close an object once.
        drop(unsafe { Box::from_raw(fabric.cast::<Fabric>()) });
        Ok(())
    })
}
