//! The domain: makes completion queues, endpoints and memory regions.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::fi::*;
use crate::nic::Nic;
use crate::object::{code, no_bind, no_control, table};

/// See the module.
#[repr(C)]
struct Domain {
    domain: fid_domain,
    slack: Slack,
    nic: Arc<Nic>,
}

static OPS: fi_ops = table(close, no_bind, no_control);
static DOMAIN_OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open,
    cq_open,
    endpoint,
    scalable_ep: unsupported,
    cntr_open: unsupported,
    poll_open: unsupported,
    stx_ctx: unsupported,
    srx_ctx: unsupported,
    query_atomic: unsupported,
};

static MR_OPS: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg,
    regv,
    regattr,
};

/// Opens a domain.
///
/// # Safety
/// Arguments of `fi_domain`.
pub(crate) unsafe fn open(
    nic: Arc<Nic>,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let attributes = unsafe { info.as_ref().and_then(|info| info.domain_attr.as_ref()) };
    let automatic = attributes.is_some_and(|attributes| {
        [attributes.data_progress, attributes.control_progress].contains(&FI_PROGRESS_AUTO)
    });
    if automatic {
        nic.lock().make_automatic();
    }
    let domain = Box::new(Domain {
        domain: fid_domain {
            fid: fid {
                fclass: FI_CLASS_DOMAIN,
                context,
                ops: &raw const OPS,
            },
            ops: &raw const DOMAIN_OPS,
            mr: &raw const MR_OPS,
        },
        slack: SLACK,
        nic,
    });
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(domain).cast()) };
    Ok(())
}

/// # Safety
/// `domain` is one of ours, and open.
unsafe fn nic_of(domain: *mut fid) -> Arc<Nic> {
    // SAFETY: the caller's promise.
    unsafe { &*domain.cast::<Domain>() }.nic.clone()
}

unsafe extern "C" fn av_open(
    domain: *mut fid_domain,
    _attributes: *mut c_void,
    out: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's arguments.
    code(|| unsafe { crate::av::open(nic_of(domain.cast()), out, context) })
}

unsafe extern "C" fn cq_open(
    domain: *mut fid_domain,
    attributes: *mut fi_cq_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's arguments.
    code(|| unsafe { crate::cq::open(nic_of(domain.cast()), attributes, out, context) })
}

unsafe extern "C" fn endpoint(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's arguments.
    code(|| unsafe {
        let nic = nic_of(domain.cast());
        let attributes = info.as_ref().and_then(|info| info.ep_attr.as_ref());
        match attributes.map(|endpoint| endpoint.kind) {
            Some(FI_EP_RDM) => crate::rdm::open(nic, info, out, context),
            _ => crate::connection::open(nic, info, out, context),
        }
    })
}

unsafe extern "C" fn reg(
    domain: *mut fid,
    address: *const c_void,
    length: usize,
    access: u64,
    _offset: u64,
    _requested_key: u64,
    _flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's arguments, here and below.
    code(|| unsafe {
        crate::mr::register(
            nic_of(domain),
            address.cast_mut(),
            length,
            access,
            out,
            context,
        )
    })
}

unsafe extern "C" fn regv(
    domain: *mut fid,
    iov: *const libc::iovec,
    count: usize,
    access: u64,
    _offset: u64,
    _requested_key: u64,
    _flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    code(|| {
        if count != 1 {
            return Err(libc::EINVAL);
        }
        // SAFETY: see `reg`.
        unsafe {
            crate::mr::register(
                nic_of(domain),
                (*iov).iov_base,
                (*iov).iov_len,
                access,
                out,
                context,
            )
        }
    })
}

unsafe extern "C" fn regattr(
    domain: *mut fid,
    attributes: *const fi_mr_attr,
    _flags: u64,
    out: *mut *mut fid_mr,
) -> c_int {
    code(|| {
        // SAFETY: see `reg`.
        let attributes = unsafe { &*attributes };
        if attributes.iov_count != 1 {
            return Err(libc::EINVAL);
        }
        // SAFETY: see `reg`.
        unsafe {
            let iov = &*attributes.mr_iov;
            crate::mr::register(
                nic_of(domain),
                iov.iov_base,
                iov.iov_len,
                attributes.access,
                out,
                attributes.context,
            )
        }
    })
}

unsafe extern "C" fn close(domain: *mut fid) -> c_int {
    code(|| {
        // SAFETY: made by `open`; libfabric's programs close an object once.
        drop(unsafe { Box::from_raw(domain.cast::<Domain>()) });
        Ok(())
    })
}
