//! Endpoints for messages with tags, and plain ones, FI_EP_RDM: the object that libfabric sees, what suits it, its listener and its connections.

mod transfer;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::address::Address;
use crate::attributes::{
    CQ_DATA, DOMAIN_CAPS, INJECT, Offer, RECEIVES, TAGGED_PROTOCOL, WAITING, op_flags,
};
use crate::av::AddressVector;
use crate::cq::CompletionQueue;
use crate::engine::{Endpoint, Engine, Opaque, Passive, Rdm};
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{cm_table, code, size, start, table};
use crate::slab::Id;

/// See the module.
#[repr(C)]
struct RdmObject {
    ep: fid_ep,
    slack: Slack,
    nic: Arc<Nic>,
    id: Id,
    passive: Id,
    address: Address,
    /// Flags of operations that are given none.
    send_flags: u64,
    receive_flags: u64,
    closing: Arc<AtomicBool>,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    listener: Option<JoinHandle<()>>,
    /// Those that connect, and their connections.
    connecting: Vec<(Id, JoinHandle<()>)>,
}

static OPS: fi_ops = table(close, bind, control);
static EP_OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel,
    getopt: no_getopt,
    setopt: crate::endpoint::setopt,
    tx_ctx: unsupported,
    rx_ctx: unsupported,
    rx_size_left,
    tx_size_left,
};
static CM_OPS: fi_ops_cm = cm_table(getname);

/// Whether the hints ask for such an endpoint, and for nothing that it lacks; if not, what that is.
///
/// # Safety
/// `hints` is null or a valid `fi_info`.
pub(crate) unsafe fn suits(hints: *const fi_info) -> Result<(), &'static str> {
    let check = |holds: bool, reason: &'static str| if holds { Ok(()) } else { Err(reason) };
    // SAFETY: the caller's promise, here and below: members of hints are null or valid.
    let hints = unsafe { hints.as_ref() }.ok_or("no hints")?;
    let caps = FI_TAGGED | FI_MSG | FI_SEND | FI_RECV | FI_DIRECTED_RECV | DOMAIN_CAPS;
    check(hints.caps & FI_TAGGED != 0, "no messages with tags")?;
    check(hints.caps & !caps == 0, "capabilities")?;
    check(
        [FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IN6].contains(&hints.addr_format),
        "address format",
    )?;
    // SAFETY: see above.
    let endpoint = unsafe { hints.ep_attr.as_ref() }.ok_or("no type of endpoint")?;
    check(endpoint.kind == FI_EP_RDM, "endpoint type")?;
    check(
        [0, TAGGED_PROTOCOL].contains(&endpoint.protocol),
        "protocol",
    )?;
    check(
        endpoint.tx_ctx_cnt <= 1 && endpoint.rx_ctx_cnt <= 1,
        "contexts",
    )?;
    // SAFETY: see above.
    if let Some(send) = unsafe { hints.tx_attr.as_ref() } {
        let flags = FI_COMPLETION | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE;
        check(send.op_flags & !flags == 0, "flags of sends")?;
        check(send.msg_order & !FI_ORDER_SAS == 0, "order")?;
        check(send.inject_size <= INJECT, "inject size")?;
        check(send.iov_limit <= 1, "pieces of an operation")?;
        check(send.size <= WAITING, "size of the send queue")?;
    }
    // SAFETY: see above.
    if let Some(receive) = unsafe { hints.rx_attr.as_ref() } {
        check(receive.op_flags & !FI_COMPLETION == 0, "flags of receives")?;
        check(receive.msg_order & !FI_ORDER_SAS == 0, "order")?;
        check(receive.iov_limit <= 1, "pieces of a receive")?;
        check(receive.size <= RECEIVES, "size of the receive queue")?;
    }
    // SAFETY: see above.
    let domain = unsafe { hints.domain_attr.as_ref() };
    let data = domain.map_or(0, |domain| domain.cq_data_size);
    check(data <= CQ_DATA, "data in completions")
}

/// Makes an endpoint.
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
    let (send_flags, receive_flags) = unsafe { op_flags(info.as_ref().ok_or(libc::EINVAL)?) };
    let address = nic.address(crate::passive::next_port());
    let mut engine = nic.lock();
    let id = engine.shared.rdms.insert(Rdm::default());
    let passive = engine.shared.passives.insert(Passive {
        address,
        events: None,
        fid: Opaque::NULL,
        offer: Offer::new(&nic.device.limits),
        tagged: Some(id),
    });
    drop(engine);
    let object = Box::new(RdmObject {
        ep: fid_ep {
            fid: fid {
                fclass: FI_CLASS_EP,
                context,
                ops: &raw const OPS,
            },
            ops: &raw const EP_OPS,
            cm: &raw const CM_OPS,
            msg: &raw const transfer::MSG_OPS,
            rma: std::ptr::null(),
            tagged: &raw const transfer::TAGGED_OPS,
            atomic: std::ptr::null(),
            collective: std::ptr::null(),
        },
        slack: SLACK,
        nic,
        id,
        passive,
        address,
        send_flags,
        receive_flags,
        closing: Arc::default(),
        threads: Mutex::default(),
    });
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(object).cast()) };
    Ok(())
}

/// # Safety
/// `ep` is one of ours, and open.
#[inline]
unsafe fn object<'a>(ep: *mut fid) -> &'a RdmObject {
    // SAFETY: the caller's promise.
    unsafe { &*ep.cast::<RdmObject>() }
}

impl RdmObject {
    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to accept connections.
    fn listen(&self) -> Result<(), c_int> {
        let mut threads = self.threads();
        if threads.listener.is_none() {
            let (nic, closing) = (self.nic.clone(), self.closing.clone());
            let (passive, address) = (self.passive, self.address);
            let run = move || crate::passive::wait(&nic, passive, address, &closing);
            threads.listener = Some(start("vipl-fi-listen", run)?);
        }
        Ok(())
    }

    /// Begins to connect to a peer.
    #[cold]
    fn connect(&self, engine: &mut Engine, peer: Address) -> Result<(), c_int> {
        let _off = vipl_sys::cancel::Off::new();
        if !engine.shared.may_try(peer) {
            return Err(libc::ECONNREFUSED);
        }
        let level = self.nic.device.limits.tagged_level;
        let mut endpoint = Endpoint::new(self.address, None, level, &engine.shared);
        if endpoint.is_none() && engine.drop_ended(self.id) {
            endpoint = Endpoint::new(self.address, None, level, &engine.shared);
        }
        let endpoint = endpoint.ok_or(libc::ENOMEM)?;
        let vi = endpoint.vi();
        let id = engine.add(endpoint);
        engine
            .with(id, |endpoint, shared| {
                endpoint.own(self.id, shared);
                endpoint.ask(peer)
            })
            .ok_or(libc::EBADF)??;
        let rdm = engine.shared.rdms.get(self.id).ok_or(libc::EBADF)?;
        rdm.joined(id, peer);
        let nic = self.nic.clone();
        let run = move || crate::connection::ask(&nic, id, vi, peer, &[]);
        let mut threads = self.threads();
        threads
            .connecting
            .retain(|(_, thread)| !thread.is_finished());
        match start("vipl-fi-connect", run) {
            Ok(thread) => threads.connecting.push((id, thread)),
            Err(error) => {
                engine.drop_connection(self.id, id);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends its threads.
    fn end_threads(&self) {
        self.closing.store(true, Ordering::Release);
        let Threads {
            listener,
            connecting,
        } = std::mem::take(&mut *self.threads());
        for (id, thread) in connecting {
            crate::connection::stop_asking(&self.nic, id, thread);
        }
        if let Some(listener) = listener {
            // It reports a panic itself.
            let _ = listener.join();
        }
    }
}

unsafe extern "C" fn bind(ep: *mut fid, queue: *mut fid, flags: u64) -> c_int {
    code(|| {
        // SAFETY: libfabric's arguments, here and below.
        let (object, class) = unsafe { (object(ep), (*queue).fclass) };
        let mut engine = object.nic.lock();
        let rdm = engine.shared.rdms.get(object.id).ok_or(libc::EBADF)?;
        match class {
            // SAFETY: an address vector, which is one of ours.
            FI_CLASS_AV => rdm.av = Some(unsafe { AddressVector::of(queue) }.id()),
            FI_CLASS_CQ => {
                // SAFETY: a completion queue, which is one of ours.
                let completions = unsafe { CompletionQueue::of(queue) }.id();
                rdm.reports.bind(completions, flags);
            }
            // It has no events.
            FI_CLASS_EQ => {}
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    })
}

unsafe extern "C" fn control(ep: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    code(|| {
        if command != FI_ENABLE {
            return Err(libc::ENOSYS);
        }
        // SAFETY: see `bind`.
        let object = unsafe { object(ep) };
        let mut engine = object.nic.lock();
        let rdm = engine.shared.rdms.get(object.id).ok_or(libc::EBADF)?;
        if rdm.reports.sends.queue.is_none() || rdm.reports.receives.queue.is_none() {
            return Err(FI_ENOCQ);
        }
        if rdm.av.is_none() {
            return Err(FI_EOPBADSTATE);
        }
        drop(engine);
        object.listen()
    })
}

unsafe extern "C" fn cancel(ep: *mut fid, context: *mut c_void) -> isize {
    size(|| {
        // SAFETY: see `bind`.
        let object = unsafe { object(ep) };
        let found = object.nic.lock().cancel_tagged(object.id, Opaque(context));
        if found { Ok(0) } else { Err(libc::ENOENT) }
    })
}

unsafe extern "C" fn no_getopt(
    _: *mut fid,
    _: c_int,
    _: c_int,
    _: *mut c_void,
    _: *mut usize,
) -> c_int {
    -libc::ENOPROTOOPT
}

unsafe extern "C" fn rx_size_left(ep: *mut fid_ep) -> isize {
    size(|| {
        // SAFETY: see `bind`.
        let object = unsafe { object(ep.cast()) };
        let mut engine = object.nic.lock();
        let rdm = engine.shared.rdms.get(object.id).ok_or(libc::EBADF)?;
        Ok(rdm.room())
    })
}

/// Each peer has room of its own.
unsafe extern "C" fn tx_size_left(_: *mut fid_ep) -> isize {
    WAITING as isize
}

unsafe extern "C" fn getname(ep: *mut fid, address: *mut c_void, length: *mut usize) -> c_int {
    // SAFETY: see `bind`.
    code(|| unsafe { crate::connection::give_address(object(ep).address, address, length) })
}

unsafe extern "C" fn close(ep: *mut fid) -> c_int {
    code(|| {
        // SAFETY: made by `open`; libfabric's programs close an object once.
        let object = unsafe { Box::from_raw(ep.cast::<RdmObject>()) };
        let id = object.id;
        object.nic.linger(|engine| engine.is_busy_tagged(id));
        object.end_threads();
        let mut engine = object.nic.lock();
        engine.shared.passives.remove(object.passive);
        engine.abandon(object.passive);
        engine.close_tagged(object.id);
        Ok(())
    })
}
