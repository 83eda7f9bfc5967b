//! Memory regions. Key and descriptor are the memory handle of VIPL.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::device::{Access, Region};
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{code, no_bind, no_control, table};

/// See the module.
#[repr(C)]
struct MemoryRegion {
    mr: fid_mr,
    slack: Slack,
    nic: Arc<Nic>,
    address: *mut c_void,
}

static OPS: fi_ops = table(close, no_bind, no_control);

/// Registers memory.
///
/// # Safety
/// Arguments of `fi_mr_reg`.
pub(crate) unsafe fn register(
    nic: Arc<Nic>,
    address: *mut c_void,
    length: usize,
    access: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> Result<(), c_int> {
    // MPI_BOTTOM: MPI libraries request all of memory this way, and continue without it.
    if address.is_null() && length > 0 {
        crate::libfabric::info(|| "memory at address 0 is not registered".to_owned());
        return Err(libc::EFAULT);
    }
    let emulated = !nic.device.limits.reads;
    // Where the device cannot read remote memory, the peer writes what was to be read.
    let allowed = Access {
        write: access & FI_REMOTE_WRITE != 0 || emulated && access & FI_READ != 0,
        read: access & FI_REMOTE_READ != 0,
    };
    // Nothing can be said about no bytes; a program may have an empty window all the same.
    let handle = match length {
        0 => 0,
        _ => nic
            .device
            .register(address, length, allowed)
            .ok_or(libc::ENOMEM)?,
    };
    if emulated && allowed.read && handle != 0 {
        let region = Region {
            address: address as u64,
            length: length as u64,
            access: allowed,
        };
        nic.lock().shared.regions.insert(handle, region);
    }
    let region = Box::new(MemoryRegion {
        mr: fid_mr {
            fid: fid {
                fclass: FI_CLASS_MR,
                context,
                ops: &raw const OPS,
            },
            mem_desc: handle as usize as *mut c_void,
            key: u64::from(handle),
        },
        slack: SLACK,
        nic,
        address,
    });
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(region).cast()) };
    Ok(())
}

unsafe extern "C" fn close(region: *mut fid) -> c_int {
    code(|| {
        // SAFETY: made by `register`; libfabric's programs close an object once.
        let region = unsafe { Box::from_raw(region.cast::<MemoryRegion>()) };
        let handle = region.mr.key as u32;
        if handle != 0 {
            if !region.nic.device.limits.reads {
                region.nic.lock().shared.regions.remove(&handle);
            }
            region.nic.device.deregister(region.address, handle);
        }
        Ok(())
    })
}
