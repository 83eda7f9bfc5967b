//! Name service (spec §3.32 to §3.34).

use std::ffi::CStr;

use vipl_abi::*;
use vipl_core::connect::address::Address as NetAddress;
use vipl_core::names;
use vipl_core::nic;

use crate::edge::{call, entry, release, required};

/// Reads the table of names; NULL means the default file (spec §3.32).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `NSInitInfo`: Path of a table of hosts, NUL-terminated; NULL: that of the setting `hosts`,
///   `/etc/vip_hosts`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipNSInit(
    NicHandle: VIP_NIC_HANDLE,
    NSInitInfo: VIP_PVOID,
) -> VIP_RETURN {
    entry(call!(VipNSInit, NicHandle NSInitInfo;), move || {
        let nic = nic::resolve(NicHandle)?;
        // SAFETY: not NULL is a NUL-terminated path.
        let path = (!NSInitInfo.is_null()).then(|| unsafe { CStr::from_ptr(NSInitInfo.cast()) });
        names::init(&nic, path)
    })
}

/// Translates a name to an address; only the host part is written (spec §3.33).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `Name`: Name of a host, NUL-terminated.
/// - `Address`: Out: HostAddressLen and the host address; the rest is not touched. Room for 4 +
///   `NicAddressLen` bytes.
/// - `NameIndex`: Which of several addresses of the host, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipNSGetHostByName(
    NicHandle: VIP_NIC_HANDLE,
    Name: *mut VIP_CHAR,
    Address: *mut VIP_NET_ADDRESS,
    NameIndex: VIP_ULONG,
) -> VIP_RETURN {
    entry(
        call!(VipNSGetHostByName, NicHandle Name NameIndex; Address),
        move || {
            let nic = nic::resolve(NicHandle)?;
            let out = required(Address)?;
            // SAFETY: not NULL; a NUL-terminated string.
            let name = unsafe { CStr::from_ptr(required(Name)?) };
            let host = names::host_by_name(&nic, name, NameIndex)?;
            // SAFETY: the caller has room for `4 + NicAddressLen` bytes.
            unsafe { vipl_core::connect::address::write_host(out, &host) };
            Ok(())
        },
    )
}

/// Translates an address to its first name (spec §3.34).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `Address`: Address; its discriminator is not looked at.
/// - `Name`: Out: first name of the host, NUL-terminated.
/// - `NameLen`: In: bytes of `Name`. Out: bytes of the name with its NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipNSGetHostByAddr(
    NicHandle: VIP_NIC_HANDLE,
    Address: *mut VIP_NET_ADDRESS,
    Name: *mut VIP_CHAR,
    NameLen: *mut VIP_ULONG,
) -> VIP_RETURN {
    entry(
        call!(VipNSGetHostByAddr, NicHandle Address; Name NameLen),
        move || {
            let nic = nic::resolve(NicHandle)?;
            let (address, name, length) = (required(Address)?, required(Name)?, required(NameLen)?);
            // SAFETY: checked; the host bytes are guaranteed by the caller.
            let host = unsafe { NetAddress::read_host(address) }?;
            let found = names::name_by_host(&nic, &host)?;
            // SAFETY: checked; `length` states the size of `name`.
            unsafe { names::copy_name(&found, name, length) }
        },
    )
}

/// Discards the table (spec §3.32).
///
/// - `NicHandle`: NIC of VipOpenNic.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipNSShutdown(NicHandle: VIP_NIC_HANDLE) -> VIP_RETURN {
    release(call!(VipNSShutdown, NicHandle;), move || {
        names::shutdown(&*nic::resolve(NicHandle)?)
    })
}
