//! vipl_alloc and vipl_free.

use vipl_abi::{VIP_PVOID, VIP_ULONG};

use crate::error::Error;
use crate::process;

/// vipl_alloc.
pub fn allocate(length: VIP_ULONG) -> Result<VIP_PVOID, Error> {
    process::get().allocated.allocate(length as u64)
}

/// vipl_free.
pub fn free(address: VIP_PVOID) -> Result<(), Error> {
    if address.is_null() {
        return Ok(());
    }
    process::get().allocated.free(address)
}
