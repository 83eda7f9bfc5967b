//! Connections: client/server, peer-to-peer, disconnect (spec §3.8 to §3.15).

use vipl_abi::*;
use vipl_core::connect;
use vipl_core::connect::address::Address;
use vipl_core::trace;
use vipl_core::waiting::Begun;

use crate::edge::{call, code, entry, put, put_vi_attributes, release, required, waiting};

/// Reads an address from the caller, with any alignment (spec §2.2).
///
/// # Safety
/// `address` is NULL or points to a network address whose lengths describe readable bytes.
unsafe fn address(address: *mut VIP_NET_ADDRESS) -> Result<Address, vipl_core::Error> {
    // SAFETY: not NULL; the rest is guaranteed by the caller.
    unsafe { Address::read(required(address)?) }
}

/// Stores the result of a waiting call, after checking the output.
fn store_attributes(
    out: *mut VIP_VI_ATTRIBUTES,
    attributes: Result<VIP_VI_ATTRIBUTES, vipl_core::Error>,
) -> VIP_RETURN {
    code(move || {
        // SAFETY: there are none before `out` was checked.
        unsafe { put_vi_attributes(out, attributes?) };
        Ok(())
    })()
}

/// Waits for one connection request for the discriminator of `LocalAddr` (spec §3.8).
///
/// - `NicHandle`: NIC of VipOpenNic.
/// - `LocalAddr`: Address whose discriminator clients must ask for. The bytes of its host address are not
///   looked at.
/// - `Timeout`: Milliseconds to wait. 0: look once; VIP_INFINITE: no limit.
/// - `RemoteAddr`: Out: host address and discriminator of the client. Room for 4 + `NicAddressLen` +
///   `MaxDiscriminatorLen` bytes.
/// - `RemoteViAttribs`: Out: attributes of the client's VI; Ptag is NULL.
/// - `ConnHandle`: Out: the request, for VipConnectAccept or VipConnectReject.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipConnectWait(
    NicHandle: VIP_NIC_HANDLE,
    LocalAddr: *mut VIP_NET_ADDRESS,
    Timeout: VIP_ULONG,
    RemoteAddr: *mut VIP_NET_ADDRESS,
    RemoteViAttribs: *mut VIP_VI_ATTRIBUTES,
    ConnHandle: *mut VIP_CONN_HANDLE,
) -> VIP_RETURN {
    let begin = move || {
        trace::begin();
        let nic = vipl_core::nic::resolve(NicHandle)?;
        required(RemoteAddr)?;
        required(RemoteViAttribs)?;
        required(ConnHandle)?;
        // SAFETY: the caller's address, as `address` asks.
        let local = unsafe { address(LocalAddr) }?;
        connect::wait(&nic, &local, Timeout)
    };
    waiting(
        call!(VipConnectWait, NicHandle LocalAddr Timeout; RemoteAddr RemoteViAttribs ConnHandle),
        move || begin().unwrap_or_else(|error| Begun::Over(Err(error))),
        move |arrived: Result<connect::Arrived, _>| {
            code(move || {
                let incoming = arrived?;
                // SAFETY: the outputs were checked; the address needs exactly as many bytes as it has.
                unsafe {
                    incoming.remote.write(RemoteAddr);
                    put_vi_attributes(RemoteViAttribs, incoming.attributes);
                    put(ConnHandle, incoming.handle);
                }
                Ok(())
            })()
        },
    )
}

/// Binds a request to an Idle VI (spec §3.9).
///
/// - `ConnHandle`: Request of VipConnectWait.
/// - `ViHandle`: Idle VI of the same NIC handle, with the same ReliabilityLevel and MaxTransferSize as the
///   client's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipConnectAccept(
    ConnHandle: VIP_CONN_HANDLE,
    ViHandle: VIP_VI_HANDLE,
) -> VIP_RETURN {
    entry(call!(VipConnectAccept, ConnHandle ViHandle;), move || {
        connect::accept(ConnHandle, ViHandle)
    })
}

/// Refuses a request (spec §3.10).
///
/// - `ConnHandle`: Request of VipConnectWait.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipConnectReject(ConnHandle: VIP_CONN_HANDLE) -> VIP_RETURN {
    release(call!(VipConnectReject, ConnHandle;), move || {
        connect::reject(ConnHandle)
    })
}

/// Requests a connection from a server; blocks until the request succeeds or fails (spec §3.11).
///
/// - `ViHandle`: Idle VI.
/// - `LocalAddr`: Address that the server is shown: the own host address, and any discriminator.
/// - `RemoteAddr`: Address of the server: its host address, and the discriminator for which it waits.
/// - `Timeout`: Milliseconds to wait for the server's answer, above 0; VIP_INFINITE: no limit.
/// - `RemoteViAttribs`: Out: attributes of the server's VI; Ptag is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipConnectRequest(
    ViHandle: VIP_VI_HANDLE,
    LocalAddr: *mut VIP_NET_ADDRESS,
    RemoteAddr: *mut VIP_NET_ADDRESS,
    Timeout: VIP_ULONG,
    RemoteViAttribs: *mut VIP_VI_ATTRIBUTES,
) -> VIP_RETURN {
    let begin = move || {
        trace::begin();
        required(RemoteViAttribs)?;
        // SAFETY: the caller's addresses, as `address` asks.
        let (local, remote) = unsafe { (address(LocalAddr)?, address(RemoteAddr)?) };
        connect::request(ViHandle, &local, &remote, Timeout)
    };
    waiting(
        call!(VipConnectRequest, ViHandle LocalAddr RemoteAddr Timeout; RemoteViAttribs),
        move || begin().unwrap_or_else(|error| Begun::Over(Err(error))),
        move |attributes| store_attributes(RemoteViAttribs, attributes),
    )
}

/// Ends the connection and makes the VI Idle (spec §3.12).
///
/// - `ViHandle`: VI of VipCreateVi.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipDisconnect(ViHandle: VIP_VI_HANDLE) -> VIP_RETURN {
    release(call!(VipDisconnect, ViHandle;), move || {
        connect::disconnect(ViHandle)
    })
}

/// Starts a peer-to-peer connection and returns at once (spec §3.13).
///
/// - `ViHandle`: Idle VI.
/// - `LocalAddr`: The own address: the peer's RemoteAddr.
/// - `RemoteAddr`: Address of the peer: its LocalAddr.
/// - `Timeout`: Milliseconds for which the request stands, above 0; VIP_INFINITE: no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipConnectPeerRequest(
    ViHandle: VIP_VI_HANDLE,
    LocalAddr: *mut VIP_NET_ADDRESS,
    RemoteAddr: *mut VIP_NET_ADDRESS,
    Timeout: VIP_ULONG,
) -> VIP_RETURN {
    entry(
        call!(VipConnectPeerRequest, ViHandle LocalAddr RemoteAddr Timeout;),
        move || {
            // SAFETY: the caller's addresses, as `address` asks.
            let (local, remote) = unsafe { (address(LocalAddr)?, address(RemoteAddr)?) };
            connect::peer_request(ViHandle, &local, &remote, Timeout)
        },
    )
}

/// Checks whether a peer-to-peer connection is established (spec §3.14).
///
/// - `ViHandle`: VI of VipConnectPeerRequest.
/// - `RemoteViAttribs`: Out: attributes of the peer's VI; Ptag is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipConnectPeerDone(
    ViHandle: VIP_VI_HANDLE,
    RemoteViAttribs: *mut VIP_VI_ATTRIBUTES,
) -> VIP_RETURN {
    entry(
        call!(VipConnectPeerDone, ViHandle; RemoteViAttribs),
        move || {
            let out = required(RemoteViAttribs)?;
            let attributes = connect::peer_done(ViHandle)?;
            // SAFETY: `out` was checked.
            unsafe { put_vi_attributes(out, attributes) };
            Ok(())
        },
    )
}

/// Waits until a peer-to-peer connection is established (spec §3.15).
///
/// - `ViHandle`: VI of VipConnectPeerRequest.
/// - `RemoteViAttribs`: Out: attributes of the peer's VI; Ptag is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn VipConnectPeerWait(
    ViHandle: VIP_VI_HANDLE,
    RemoteViAttribs: *mut VIP_VI_ATTRIBUTES,
) -> VIP_RETURN {
    let begin = move || {
        trace::begin();
        required(RemoteViAttribs)?;
        connect::peer_wait(ViHandle)
    };
    waiting(
        call!(VipConnectPeerWait, ViHandle; RemoteViAttribs),
        move || begin().unwrap_or_else(|error| Begun::Over(Err(error))),
        move |attributes| store_attributes(RemoteViAttribs, attributes),
    )
}
