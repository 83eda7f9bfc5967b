//! NICs: VipOpenNic, VipCloseNic, VipQueryNic, VipQuerySystemManagementInfo (spec §3.1 to §3.3, §3.30).

use std::ffi::CStr;

use vipl_abi::*;
use vipl_core::Error;
use vipl_core::device;
use vipl_core::nic;

use crate::edge::{call, entry, put, put_fields, release, required};

/// Opens the device to which the device map resolves `DeviceName` (spec §3.1).
///
/// - `DeviceName`: Name of the device, NUL-terminated, up to 63 bytes: `via_lo`, `via_eth0`, `ip:`. `/dev/`
///   before it makes no difference.
/// - `NicHandle`: Out: the NIC.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipOpenNic(
    DeviceName: *const VIP_CHAR,
    NicHandle: *mut VIP_NIC_HANDLE,
) -> VIP_RETURN {
    entry(call!(VipOpenNic, DeviceName; NicHandle), move || {
        required(DeviceName.cast_mut())?;
        let out = required(NicHandle)?;
        // SAFETY: not NULL; the caller passes a NUL-terminated string.
        let name = unsafe { CStr::from_ptr(DeviceName) };
        let handle = device::open(name)?;
        // SAFETY: `out` was checked.
        unsafe { put(out, handle) };
        Ok(())
    })
}

/// Ends the association of process and NIC (spec §3.2).
///
/// - `NicHandle`: NIC of VipOpenNic.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipCloseNic(NicHandle: VIP_NIC_HANDLE) -> VIP_RETURN {
    release(call!(VipCloseNic, NicHandle;), move || {
        device::close(NicHandle)
    })
}

/// Returns the properties of the NIC (spec §3.3).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `NicAttribs`: Out: the attributes, all fields.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipQueryNic(
    NicHandle: VIP_NIC_HANDLE,
    NicAttribs: *mut VIP_NIC_ATTRIBUTES,
) -> VIP_RETURN {
    entry(call!(VipQueryNic, NicHandle; NicAttribs), move || {
        let attributes = device::query(NicHandle)?;
        let out = required(NicAttribs)?;
        // SAFETY: `out` was checked.
        unsafe {
            put_fields!(
                out,
                attributes,
                Name,
                HardwareVersion,
                ProviderVersion,
                NicAddressLen,
                LocalNicAddress,
                ThreadSafe,
                MaxDiscriminatorLen,
                MaxRegisterBytes,
                MaxRegisterRegions,
                MaxRegisterBlockBytes,
                MaxVI,
                MaxDescriptorsPerQueue,
                MaxSegmentsPerDesc,
                MaxCQ,
                MaxCQEntries,
                MaxTransferSize,
                NativeMTU,
                MaxPtags,
                ReliabilityLevelSupport,
                RDMAReadSupport,
            );
        }
        Ok(())
    })
}

/// Lists the addresses that a NIC can reach (spec §3.30).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `InfoType`: VIP_SMI_AUTODISCOVERY.
/// - `SysManInfo`: In and out: a VIP_AUTODISCOVERY_LIST.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipQuerySystemManagementInfo(
    NicHandle: VIP_NIC_HANDLE,
    InfoType: VIP_ULONG,
    SysManInfo: VIP_PVOID,
) -> VIP_RETURN {
    entry(
        call!(VipQuerySystemManagementInfo, NicHandle InfoType SysManInfo;),
        move || {
            let nic = nic::resolve(NicHandle)?;
            let list = required(SysManInfo)?.cast::<VIP_AUTODISCOVERY_LIST>();
            if InfoType != VIP_SMI_AUTODISCOVERY {
                return Err(Error::InvalidParameter);
            }
            // SAFETY: `list` is not NULL and for this InfoType points to an autodiscovery list.
            unsafe { vipl_core::names::discovery::autodiscover(&nic, list) }
        },
    )
}
