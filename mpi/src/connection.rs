//! Endpoints: making them, connecting, closing.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use vipl_sys::clock::Instant;

use vipl_abi::{VIP_RETURN, VIP_ULONG};

use crate::address::{Address, SOCKADDR};
use crate::attributes::op_flags;
use crate::device::Handle;
use crate::endpoint::{EP_OPS, EndpointObject, bind, control, object};
use crate::engine::{Endpoint, Opaque};
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{ConnectionRequest, bytes, cm_table, code, start, table};
use crate::packet::CM_DATA;
use crate::slab::Id;

static OPS: fi_ops = table(close, bind, control);
static CM_OPS: fi_ops_cm = fi_ops_cm {
    getpeer,
    connect,
    accept,
    shutdown,
    ..cm_table(getname)
};

/// Makes an endpoint, or takes that of a connection request.
///
/// # Safety
/// Arguments of `fi_endpoint`.
pub(crate) unsafe fn open(
    nic: Arc<Nic>,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let info = unsafe { info.as_mut() }.ok_or(libc::EINVAL)?;
    // SAFETY: the caller's promise; the handle is the program's only one.
    let request = unsafe { ConnectionRequest::take(info.handle) };
    let mut engine = nic.lock();
    let id = match request {
        Some(id) => {
            info.handle = std::ptr::null_mut();
            engine
                .with(id, |endpoint, _| endpoint.take_request())
                .ok_or(libc::ECONNABORTED)?;
            id
        }
        None => {
            // SAFETY: the caller's promise.
            let source = unsafe { Address::from_sockaddr(info.src_addr, info.src_addrlen) };
            let source = source.unwrap_or_else(|| nic.address(0));
            let level = nic.device.limits.level;
            let endpoint = Endpoint::new(source, None, level, &engine.shared);
            let endpoint = endpoint.ok_or(libc::ENOMEM)?;
            engine.add(endpoint)
        }
    };
    // SAFETY: the caller's promise.
    let (send_flags, receive_flags) = unsafe { op_flags(info) };
    let object = Box::into_raw(Box::new(EndpointObject {
        ep: fid_ep {
            fid: fid {
                fclass: FI_CLASS_EP,
                context,
                ops: &raw const OPS,
            },
            ops: &raw const EP_OPS,
            cm: &raw const CM_OPS,
            msg: &raw const crate::transfer::MSG_OPS,
            rma: &raw const crate::transfer::RMA_OPS,
            tagged: std::ptr::null(),
            atomic: std::ptr::null(),
            collective: std::ptr::null(),
        },
        slack: SLACK,
        nic: nic.clone(),
        id,
        send_flags,
        receive_flags,
        thread: Mutex::new(None),
    }));
    engine.with(id, |endpoint, _| {
        endpoint.reports.fid = Opaque(object.cast())
    });
    // SAFETY: the caller's promise.
    unsafe { out.write(object.cast()) };
    Ok(())
}

/// Copies an address into the program's room, as much as fits, and stores its whole length in any case.
///
/// # Safety
/// `to` has room for `length` bytes.
pub(crate) unsafe fn give_address(
    address: Address,
    to: *mut c_void,
    length: *mut usize,
) -> Result<(), c_int> {
    let address = address.to_sockaddr();
    // SAFETY: the caller's promise.
    unsafe {
        let room = length.replace(SOCKADDR);
        std::ptr::copy_nonoverlapping(
            (&raw const address).cast::<u8>(),
            to.cast(),
            room.min(SOCKADDR),
        );
        if room < SOCKADDR {
            Err(FI_ETOOSMALL)
        } else {
            Ok(())
        }
    }
}

/// The program's data for the other side.
///
/// # Safety
/// `data` is null or points to `length` bytes.
pub(crate) unsafe fn cm_data<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], c_int> {
    if length > CM_DATA {
        return Err(libc::EINVAL);
    }
    if data.is_null() {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { bytes(data, length) })
}

unsafe extern "C" fn getname(ep: *mut fid, address: *mut c_void, length: *mut usize) -> c_int {
    code(|| {
        // SAFETY: see `bind`.
        let local = unsafe { object(ep) }.with(|endpoint| endpoint.local())?;
        // SAFETY: see `bind`.
        unsafe { give_address(local, address, length) }
    })
}

unsafe extern "C" fn getpeer(ep: *mut fid_ep, address: *mut c_void, length: *mut usize) -> c_int {
    code(|| {
        // SAFETY: see `bind`.
        let peer = unsafe { object(ep.cast()) }
            .with(|endpoint| endpoint.peer())?
            .ok_or(libc::ENOTCONN)?;
        // SAFETY: see `bind`.
        unsafe { give_address(peer, address, length) }
    })
}

unsafe extern "C" fn connect(
    ep: *mut fid_ep,
    address: *const c_void,
    data: *const c_void,
    length: usize,
) -> c_int {
    code(|| {
        // SAFETY: see `bind`.
        let (object, data) = unsafe { (object(ep.cast()), cm_data(data, length)?.to_vec()) };
        // SAFETY: the program's address; the call has no length for it.
        let peer = unsafe { Address::from_sockaddr(address, SOCKADDR) }.ok_or(libc::EINVAL)?;
        if !object.nic.lock().shared.may_try(peer) {
            return Err(libc::ECONNREFUSED);
        }
        let vi = object.with(|endpoint| {
            endpoint.ask(peer)?;
            Ok::<_, c_int>(endpoint.vi())
        })??;
        let (nic, id) = (object.nic.clone(), object.id);
        let thread = start("vipl-fi-connect", move || ask(&nic, id, vi, peer, &data))?;
        *object.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    })
}

/// The thread that connects. A listener answers only while it waits: if there is none now, the request is repeated.
pub(crate) fn ask(nic: &Nic, id: Id, vi: Handle, peer: Address, data: &[u8]) {
    let functions = nic.device.functions;
    let bytes = nic.device.limits.address_bytes;
    let (mut local, mut remote) = (nic.address(0).to_vip(bytes), peer.to_vip(bytes));
    let end = Instant::now() + nic.settings.connect_timeout;
    let mut pause = Duration::from_micros(100);
    let mut answer = None;
    let code = loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = VIP_ULONG::try_from(left.as_millis())
            .unwrap_or(VIP_ULONG::MAX)
            .max(1);
        let mut attributes = std::mem::MaybeUninit::<vipl_abi::VIP_VI_ATTRIBUTES>::zeroed();
        // SAFETY: a VI that is idle, addresses, and room for the attributes.
        let code = unsafe {
            (functions.VipConnectRequest)(
                vi.raw(),
                local.as_mut_ptr(),
                remote.as_mut_ptr(),
                timeout,
                attributes.as_mut_ptr(),
            )
        };
        let wanted = nic.lock().with(id, |endpoint, _| endpoint.is_asking());
        if wanted != Some(true) {
            return; // The program closes the endpoint.
        }
        // No thread waits there now, or there is no VI left.
        let soon = [VIP_RETURN::VIP_NO_MATCH, VIP_RETURN::VIP_REJECT].map(|code| code as c_int);
        if !soon.contains(&code) || left.is_zero() {
            // What the peer has answered counts, not that the last attempt was short.
            let timeout = code == VIP_RETURN::VIP_TIMEOUT as c_int;
            break answer.filter(|_| timeout).unwrap_or(code);
        }
        answer = Some(code);
        vipl_sys::clock::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    nic.lock().with(id, |endpoint, shared| {
        if code == VIP_RETURN::VIP_SUCCESS as c_int {
            shared.reached(peer);
            endpoint.hello(data);
        } else {
            shared.not_reached(peer, code);
            let timeout = code == VIP_RETURN::VIP_TIMEOUT as c_int;
            endpoint.unreachable(
                if timeout {
                    libc::ETIMEDOUT
                } else {
                    libc::ECONNREFUSED
                },
                shared,
            );
        }
    });
}

unsafe extern "C" fn accept(ep: *mut fid_ep, data: *const c_void, length: usize) -> c_int {
    code(|| {
        // SAFETY: see `bind`.
        let (object, data) = unsafe { (object(ep.cast()), cm_data(data, length)?) };
        let mut engine = object.nic.lock();
        engine
            .with(object.id, |endpoint, shared| endpoint.accept(data, shared))
            .ok_or(libc::EBADF)?
    })
}

unsafe extern "C" fn shutdown(ep: *mut fid_ep, _flags: u64) -> c_int {
    code(|| {
        // SAFETY: see `bind`.
        let object = unsafe { object(ep.cast()) };
        object.linger();
        let mut engine = object.nic.lock();
        engine.with(object.id, |endpoint, shared| {
            endpoint.shut_down(shared);
        });
        Ok(())
    })
}

/// Waits for the thread that connects an endpoint, which ends soon.
pub(crate) fn stop_asking(nic: &Nic, id: Id, thread: JoinHandle<()>) {
    let vi = nic.lock().with(id, |endpoint, _| {
        endpoint.stop_asking();
        endpoint.vi()
    });
    while !thread.is_finished() {
        // Ends a request that is under way; one that begins afterwards, the next time.
        if let Some(vi) = vi {
            nic.device.disconnect(vi);
        }
        vipl_sys::clock::sleep(Duration::from_millis(1));
    }
    // It reports a panic itself.
    let _ = thread.join();
}

unsafe extern "C" fn close(ep: *mut fid) -> c_int {
    code(|| {
        // SAFETY: see `bind`.
        let object = unsafe { object(ep) };
        object.linger();
        let thread = object
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            stop_asking(&object.nic, object.id, thread);
        }
        let mut engine = object.nic.lock();
        if let Some(endpoint) = engine.endpoints.remove(object.id) {
            endpoint.destroy(&mut engine.shared);
        }
        drop(engine);
        // SAFETY: made by `open`; libfabric's programs close an object once.
        crate::endpoint::keep_closed(unsafe { Box::from_raw(ep.cast::<EndpointObject>()) });
        Ok(())
    })
}
