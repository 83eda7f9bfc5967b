//! VipCreatePtag and VipDestroyPtag (spec §3.16).

use vipl_abi::{VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE};

use crate::error::Error;
use crate::nic::{self, Nic};

/// VipCreatePtag.
pub fn create(nic: VIP_NIC_HANDLE) -> Result<VIP_PROTECTION_HANDLE, Error> {
    create_on(&*nic::resolve(nic)?)
}

/// The same, on a NIC that may have been closed since the lookup.
pub(crate) fn create_on(nic: &Nic) -> Result<VIP_PROTECTION_HANDLE, Error> {
    let _inside = nic.enter()?;
    let tag = nic.memory.lock().ptags.create()?;
    log::debug!(target: "mem", "protection tag {tag:?} created");
    Ok(tag)
}

/// VipDestroyPtag.
pub fn destroy(nic: VIP_NIC_HANDLE, ptag: VIP_PROTECTION_HANDLE) -> Result<(), Error> {
    nic::resolve(nic)?.memory.lock().ptags.destroy(ptag)?;
    log::debug!(target: "mem", "protection tag {ptag:?} destroyed");
    Ok(())
}
