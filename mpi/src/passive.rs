//! Listeners. Each has a thread that waits for connection requests.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use vipl_abi::{VIP_RELIABILITY_LEVEL, VIP_RETURN, VIP_ULONG};
use vipl_sys::clock::Instant;

use crate::address::{Address, VipAddress};
use crate::attributes::Offer;
use crate::engine::{Endpoint, Engine, Incoming, Opaque, Passive};
use crate::eq::EventQueue;
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{ConnectionRequest, cm_table, code, no_control, start, table};
use crate::slab::Id;

/// See the module.
#[repr(C)]
struct Listener {
    pep: fid_pep,
    slack: Slack,
    nic: Arc<Nic>,
    id: Id,
    address: Address,
    /// The program has chosen the port.
    known: bool,
    closing: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

static OPS: fi_ops = table(close, bind, no_control);
static CM_OPS: fi_ops_cm = fi_ops_cm {
    listen,
    reject,
    ..cm_table(getname)
};

/// Listeners without a port of the program's choice get those from here on, as it is usual for the ephemeral ports of others.
const FIRST_PORT: u16 = 49_152;
/// Milliseconds that one wait takes; a listener that closes is noticed after this time.
const WAIT: VIP_ULONG = 100;

/// A port for a listener without one of the program's choice.
pub(crate) fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(FIRST_PORT);
    NEXT.fetch_add(1, Ordering::Relaxed).max(FIRST_PORT)
}

/// Makes a listener.
///
/// # Safety
/// Arguments of `fi_passive_ep`.
pub(crate) unsafe fn open(
    nic: Arc<Nic>,
    version: u32,
    info: *mut fi_info,
    out: *mut *mut fid_pep,
    context: *mut c_void,
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let source = unsafe {
        info.as_ref()
            .and_then(|info| Address::from_sockaddr(info.src_addr, info.src_addrlen))
    };
    let mut address = source.unwrap_or_else(|| nic.address(0));
    let known = address.port != 0;
    if !known {
        address = nic.address(next_port());
    }
    let offer = Offer::new(&nic.device.limits);
    // SAFETY: the caller's promise. An info of fi_getinfo suits as it is.
    let offer = match unsafe { offer.clone().suit(version, info) } {
        Ok(suited) => suited,
        Err(_) => offer.for_version(version),
    };
    let mut listener = Box::new(Listener {
        pep: fid_pep {
            fid: fid {
                fclass: FI_CLASS_PEP,
                context,
                ops: &raw const OPS,
            },
            ops: &raw const crate::endpoint::EP_OPS,
            cm: &raw const CM_OPS,
        },
        slack: SLACK,
        nic: nic.clone(),
        id: Id::from_bits(0),
        address,
        known,
        closing: Arc::default(),
        threads: Mutex::default(),
    });
    listener.id = nic.lock().shared.passives.insert(Passive {
        address,
        events: None,
        fid: Opaque((&raw mut *listener).cast()),
        offer,
        tagged: None,
    });
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(listener).cast()) };
    Ok(())
}

/// # Safety
/// `pep` is one of ours, and open.
unsafe fn listener<'a>(pep: *mut fid) -> &'a Listener {
    // SAFETY: the caller's promise.
    unsafe { &*pep.cast::<Listener>() }
}

unsafe extern "C" fn bind(pep: *mut fid, queue: *mut fid, _flags: u64) -> c_int {
    code(|| {
        // SAFETY: libfabric's arguments, here and below.
        let (listener, class) = unsafe { (listener(pep), (*queue).fclass) };
        if class != FI_CLASS_EQ {
            return Err(libc::EINVAL);
        }
        // SAFETY: an event queue, which is one of ours.
        let events = unsafe { EventQueue::of(queue) }.id();
        let mut engine = listener.nic.lock();
        engine
            .shared
            .passives
            .get(listener.id)
            .ok_or(libc::EBADF)?
            .events = Some(events);
        Ok(())
    })
}

unsafe extern "C" fn listen(pep: *mut fid_pep) -> c_int {
    code(|| {
        // SAFETY: see `bind`.
        let listener = unsafe { listener(pep.cast()) };
        let mut engine = listener.nic.lock();
        if engine
            .shared
            .passives
            .get(listener.id)
            .is_none_or(|passive| passive.events.is_none())
        {
            return Err(FI_ENOEQ);
        }
        drop(engine);
        let mut threads = listener
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if threads.is_empty() {
            for address in listener.places() {
                let (nic, closing) = (listener.nic.clone(), listener.closing.clone());
                let id = listener.id;
                let run = move || wait(&nic, id, address, &closing);
                threads.push(start("vipl-fi-listen", run)?);
            }
        }
        Ok(())
    })
}

impl Listener {
    /// The addresses at which others reach it. A port of the program's choice is known to those who know nothing of the process.
    /// `ofi_rxm` puts such a port into an address that it has requested without one, and which has the process.
    fn places(&self) -> Vec<Address> {
        let mut places = vec![self.address];
        if self.known && self.address.process != 0 {
            places.push(Address {
                process: 0,
                ..self.address
            });
        }
        places
    }
}

/// A listener's thread.
pub(crate) fn wait(nic: &Nic, passive: Id, address: Address, closing: &AtomicBool) {
    let functions = nic.device.functions;
    let mut local = address.to_vip(nic.device.limits.address_bytes);
    while !closing.load(Ordering::Acquire) {
        let (mut remote, mut request) = (VipAddress::room(), std::ptr::null_mut());
        let mut attributes = std::mem::MaybeUninit::<vipl_abi::VIP_VI_ATTRIBUTES>::zeroed();
        // SAFETY: a live NIC, addresses with all their room, and places for the results.
        let code = unsafe {
            (functions.VipConnectWait)(
                nic.device.nic.raw(),
                local.as_mut_ptr(),
                WAIT,
                remote.as_mut_ptr(),
                attributes.as_mut_ptr(),
                &raw mut request,
            )
        };
        nic.lock().hang_up_on_silent();
        if code == VIP_RETURN::VIP_TIMEOUT as c_int {
            continue;
        }
        if code != VIP_RETURN::VIP_SUCCESS as c_int {
            crate::libfabric::warn(|| format!("VipConnectWait: {code}; the listener ends"));
            return;
        }
        // SAFETY: initialized, as zeroes or by the call.
        let asked = unsafe { attributes.assume_init_ref() }.ReliabilityLevel;
        let Some(id) = prepare(&mut nic.lock(), passive, address, asked) else {
            // SAFETY: a request that was neither accepted nor rejected.
            unsafe { (functions.VipConnectReject)(request) };
            continue;
        };
        let vi = nic.lock().with(id, |endpoint, _| endpoint.vi());
        // SAFETY: a request, and a VI that is idle.
        let code = vi.map(|vi| unsafe { (functions.VipConnectAccept)(request, vi.raw()) });
        if code != Some(VIP_RETURN::VIP_SUCCESS as c_int) {
            crate::libfabric::info(|| format!("VipConnectAccept: {code:?}"));
            // It waits for an answer if its level is another one. If it does not, the library no longer knows it, and says so.
            // SAFETY: accepts any handle.
            unsafe { (functions.VipConnectReject)(request) };
            let mut engine = nic.lock();
            if let Some(endpoint) = engine.endpoints.remove(id) {
                endpoint.destroy(&mut engine.shared);
            }
        }
    }
}

/// Makes the endpoint for a request. When the device has no VI left, the peer that has been silent longest loses its own, or
/// connections for messages with tags that are over, which no program closes.
fn prepare(
    engine: &mut Engine,
    passive: Id,
    address: Address,
    asked: VIP_RELIABILITY_LEVEL,
) -> Option<Id> {
    let incoming = Some(Incoming {
        passive,
        since: Instant::now(),
    });
    let listener = engine.shared.passives.get(passive);
    let tagged = listener.and_then(|listener| listener.tagged);
    let limits = &engine.shared.device.limits;
    // Messages with tags rely on no level: theirs is that of the peer.
    let level = match tagged {
        Some(_) if asked != limits.level => limits.tagged_level,
        _ => limits.level,
    };
    let mut endpoint = Endpoint::new(address, incoming, level, &engine.shared);
    let mut has_room =
        || engine.hang_up_on_oldest() || tagged.is_some_and(|tagged| engine.drop_ended(tagged));
    if endpoint.is_none() && has_room() {
        endpoint = Endpoint::new(address, incoming, level, &engine.shared);
    }
    Some(engine.add(endpoint?))
}

unsafe extern "C" fn reject(
    _: *mut fid_pep,
    handle: *mut fid,
    data: *const c_void,
    length: usize,
) -> c_int {
    code(|| {
        // SAFETY: see `bind`.
        let data = unsafe { crate::connection::cm_data(data, length) }?;
        // SAFETY: see `bind`; the program gives the handle back.
        let id = unsafe { ConnectionRequest::take(handle) }.ok_or(libc::EINVAL)?;
        let nic = Nic::get().map_err(|_| libc::ENODEV)?;
        nic.lock()
            .with(id, |endpoint, shared| endpoint.reject(data, shared))
            .ok_or(libc::EINVAL)
    })
}

unsafe extern "C" fn getname(pep: *mut fid, address: *mut c_void, length: *mut usize) -> c_int {
    // SAFETY: see `bind`.
    code(|| unsafe { crate::connection::give_address(listener(pep).address, address, length) })
}

unsafe extern "C" fn close(pep: *mut fid) -> c_int {
    code(|| {
        // SAFETY: made by `open`; libfabric's programs close an object once.
        let listener = unsafe { Box::from_raw(pep.cast::<Listener>()) };
        listener.closing.store(true, Ordering::Release);
        let threads = std::mem::take(
            &mut *listener
                .threads
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for thread in threads {
            // It reports a panic itself.
            let _ = thread.join();
        }
        let mut engine = listener.nic.lock();
        let passive = engine.shared.passives.remove(listener.id);
        let events = passive.and_then(|passive| passive.events);
        engine.shared.forget_events(events, Opaque(pep));
        engine.abandon(listener.id);
        Ok(())
    })
}
