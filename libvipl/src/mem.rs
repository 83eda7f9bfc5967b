//! Protection tags and memory registration (spec §3.16 to §3.19).

use vipl_abi::*;
use vipl_core::memory;
use vipl_core::memory::ptag;

use crate::edge::{call, entry, put, release, required};

/// Makes a new protection tag (spec §3.16).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `Ptag`: The tag, which VipCreatePtag writes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipCreatePtag(
    NicHandle: VIP_NIC_HANDLE,
    Ptag: *mut VIP_PROTECTION_HANDLE,
) -> VIP_RETURN {
    entry(call!(VipCreatePtag, NicHandle; Ptag), move || {
        let out = required(Ptag)?;
        let handle = ptag::create(NicHandle)?;
        // SAFETY: `out` was checked.
        unsafe { put(out, handle) };
        Ok(())
    })
}

/// Destroys an unused protection tag (spec §3.16).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `Ptag`: The tag, which VipCreatePtag writes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipDestroyPtag(
    NicHandle: VIP_NIC_HANDLE,
    Ptag: VIP_PROTECTION_HANDLE,
) -> VIP_RETURN {
    release(call!(VipDestroyPtag, NicHandle Ptag;), move || {
        ptag::destroy(NicHandle, Ptag)
    })
}

/// Registers a range of memory (spec §3.17).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `VirtualAddress`: First byte; any alignment.
/// - `Length`: Bytes, above 0.
/// - `MemAttribs`: Protection tag and rights. NULL, unless the setting `strict` is on: no tag, no RDMA.
/// - `MemoryHandle`: Out: the region.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipRegisterMem(
    NicHandle: VIP_NIC_HANDLE,
    VirtualAddress: VIP_PVOID,
    Length: VIP_ULONG,
    MemAttribs: *mut VIP_MEM_ATTRIBUTES,
    MemoryHandle: *mut VIP_MEM_HANDLE,
) -> VIP_RETURN {
    entry(
        call!(VipRegisterMem, NicHandle VirtualAddress Length MemAttribs; MemoryHandle),
        move || {
            let out = required(MemoryHandle)?;
            // SAFETY: NULL, which the compatible mode admits, or the caller's structure, copied once.
            let attributes =
                (!MemAttribs.is_null()).then(|| unsafe { MemAttribs.read_unaligned() });
            let handle = memory::register(NicHandle, VirtualAddress, Length, attributes.as_ref())?;
            // SAFETY: `out` was checked.
            unsafe { put(out, handle) };
            Ok(())
        },
    )
}

/// Ends a registration (spec §3.18).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `VirtualAddress`: Address with which the region was registered.
/// - `MemoryHandle`: The region.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipDeregisterMem(
    NicHandle: VIP_NIC_HANDLE,
    VirtualAddress: VIP_PVOID,
    MemoryHandle: VIP_MEM_HANDLE,
) -> VIP_RETURN {
    release(
        call!(VipDeregisterMem, NicHandle VirtualAddress MemoryHandle;),
        move || memory::deregister(NicHandle, VirtualAddress, MemoryHandle),
    )
}

/// Returns the attributes of a region (spec §3.19).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `Address`: Any address in the region.
/// - `MemHandle`: The region.
/// - `MemAttribs`: Protection tag and rights: VipQueryMem writes all fields, VipSetMemAttributes reads them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipQueryMem(
    NicHandle: VIP_NIC_HANDLE,
    Address: VIP_PVOID,
    MemHandle: VIP_MEM_HANDLE,
    MemAttribs: *mut VIP_MEM_ATTRIBUTES,
) -> VIP_RETURN {
    entry(
        call!(VipQueryMem, NicHandle Address MemHandle; MemAttribs),
        move || {
            let out = required(MemAttribs)?;
            let attributes = memory::query(NicHandle, Address, MemHandle)?;
            // SAFETY: `out` was checked.
            unsafe { put(out, attributes) };
            Ok(())
        },
    )
}

/// Changes the attributes of a region, all or none (spec §3.19).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `Address`: Any address in the region.
/// - `MemHandle`: The region.
/// - `MemAttribs`: Protection tag and rights: VipQueryMem writes all fields, VipSetMemAttributes reads them.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipSetMemAttributes(
    NicHandle: VIP_NIC_HANDLE,
    Address: VIP_PVOID,
    MemHandle: VIP_MEM_HANDLE,
    MemAttribs: *mut VIP_MEM_ATTRIBUTES,
) -> VIP_RETURN {
    entry(
        call!(VipSetMemAttributes, NicHandle Address MemHandle MemAttribs;),
        move || {
            let attributes = required(MemAttribs)?;
            // SAFETY: checked; the structure is copied once.
            let attributes = unsafe { attributes.read_unaligned() };
            memory::set_attributes(NicHandle, Address, MemHandle, &attributes)
        },
    )
}
