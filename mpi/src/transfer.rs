//! Transfers: the many forms in which libfabric's programs send, receive, write and read.

use std::ffi::c_void;

use crate::endpoint::{EndpointObject, object};
use crate::engine::{Opaque, Operation, Receive, Work};
use crate::fi::*;
use crate::iov::{Iov, remote};
use crate::object::size;

/// Messages.
pub(crate) static MSG_OPS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

/// RDMA.
pub(crate) static RMA_OPS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject: inject_write,
    writedata,
    injectdata: inject_writedata,
};

/// # Safety
/// `ep` is one of ours, and open.
#[inline]
unsafe fn endpoint<'a>(ep: *mut fid_ep) -> &'a EndpointObject {
    // SAFETY: the caller's promise.
    unsafe { object(ep.cast()) }
}

/// Gives an operation to the engine. When there is no room, progress may make some.
#[inline]
fn submit(ep: &EndpointObject, operation: Operation) -> isize {
    size(|| {
        let mut engine = ep.nic.lock();
        engine.called();
        let first = engine
            .with(ep.id, |endpoint, shared| endpoint.submit(operation, shared))
            .ok_or(libc::EBADF)?;
        match first {
            Ok(()) => Ok(0),
            Err(libc::EAGAIN) => {
                engine.progress();
                let again =
                    engine.with(ep.id, |endpoint, shared| endpoint.submit(operation, shared));
                again.ok_or(libc::EBADF)?.map(|()| 0)
            }
            Err(error) => Err(error),
        }
    })
}

/// An operation with the endpoint's own flags.
#[inline]
fn plain(ep: &EndpointObject, work: Work, iov: Iov, context: *mut c_void) -> Operation {
    Operation::new(work, iov, Opaque(context), ep.send_flags)
}

/// An operation that does not complete.
#[inline]
fn injected(work: Work, buffer: *const c_void, length: usize) -> Operation {
    let iov = Iov::one(buffer, length, std::ptr::null_mut());
    let mut operation = Operation::new(work, iov, Opaque::NULL, FI_INJECT);
    operation.silent = true;
    operation
}

fn give(ep: &EndpointObject, iov: Iov, context: *mut c_void, flags: u64) -> isize {
    size(|| {
        let receive = Receive {
            iov,
            context: Opaque(context),
            flags,
        };
        let mut engine = ep.nic.lock();
        engine.called();
        let given = engine.with(ep.id, |endpoint, shared| endpoint.receive(receive, shared));
        given.ok_or(libc::EBADF)?.map(|()| 0)
    })
}

const TOO_MANY: isize = -(libc::EINVAL as isize);

type Ptr = *mut c_void;

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buffer: Ptr,
    length: usize,
    desc: Ptr,
    _: u64,
    context: Ptr,
) -> isize {
    // SAFETY: libfabric's arguments, here and below.
    let ep = unsafe { endpoint(ep) };
    give(
        ep,
        Iov::one(buffer, length, desc),
        context,
        ep.receive_flags,
    )
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *const Ptr,
    count: usize,
    _: u64,
    context: Ptr,
) -> isize {
    // SAFETY: see `recv`.
    let (ep, iov) = unsafe { (endpoint(ep), Iov::from_raw(iov, desc, count)) };
    iov.map_or(TOO_MANY, |iov| give(ep, iov, context, ep.receive_flags))
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    // SAFETY: see `recv`.
    let (ep, message) = unsafe { (endpoint(ep), &*message) };
    // SAFETY: see `recv`.
    let iov = unsafe { Iov::from_raw(message.msg_iov, message.desc, message.iov_count) };
    iov.map_or(TOO_MANY, |iov| give(ep, iov, message.context, flags))
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    desc: Ptr,
    _: u64,
    context: Ptr,
) -> isize {
    // SAFETY: see `recv`.
    let ep = unsafe { endpoint(ep) };
    submit(
        ep,
        plain(ep, Work::Send, Iov::one(buffer, length, desc), context),
    )
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *const Ptr,
    count: usize,
    _: u64,
    context: Ptr,
) -> isize {
    // SAFETY: see `recv`.
    let (ep, iov) = unsafe { (endpoint(ep), Iov::from_raw(iov, desc, count)) };
    iov.map_or(TOO_MANY, |iov| {
        submit(ep, plain(ep, Work::Send, iov, context))
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    // SAFETY: see `recv`.
    let (ep, message) = unsafe { (endpoint(ep), &*message) };
    // SAFETY: see `recv`.
    let Some(iov) = (unsafe { Iov::from_raw(message.msg_iov, message.desc, message.iov_count) })
    else {
        return TOO_MANY;
    };
    let mut operation = Operation::new(Work::Send, iov, Opaque(message.context), flags);
    operation.data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
    submit(ep, operation)
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    _: u64,
) -> isize {
    // SAFETY: see `recv`.
    submit(
        unsafe { endpoint(ep) },
        injected(Work::Send, buffer, length),
    )
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    desc: Ptr,
    data: u64,
    _: u64,
    context: Ptr,
) -> isize {
    // SAFETY: see `recv`.
    let ep = unsafe { endpoint(ep) };
    let mut operation = plain(ep, Work::Send, Iov::one(buffer, length, desc), context);
    operation.data = Some(data);
    submit(ep, operation)
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    data: u64,
    _: u64,
) -> isize {
    let mut operation = injected(Work::Send, buffer, length);
    operation.data = Some(data);
    // SAFETY: see `recv`.
    submit(unsafe { endpoint(ep) }, operation)
}

/// A key of 32 bits; another one names nothing here, and the device refuses it.
fn rdma_key(key: u64) -> u32 {
    u32::try_from(key).unwrap_or(0)
}

fn reading(address: u64, key: u64) -> Work {
    Work::Read {
        address,
        key: rdma_key(key),
    }
}

fn writing(address: u64, key: u64) -> Work {
    Work::Write {
        address,
        key: rdma_key(key),
    }
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buffer: Ptr,
    length: usize,
    desc: Ptr,
    _: u64,
    address: u64,
    key: u64,
    context: Ptr,
) -> isize {
    // SAFETY: see `recv`.
    let ep = unsafe { endpoint(ep) };
    submit(
        ep,
        plain(
            ep,
            reading(address, key),
            Iov::one(buffer, length, desc),
            context,
        ),
    )
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *const Ptr,
    count: usize,
    _: u64,
    address: u64,
    key: u64,
    context: Ptr,
) -> isize {
    // SAFETY: see `recv`.
    let (ep, iov) = unsafe { (endpoint(ep), Iov::from_raw(iov, desc, count)) };
    iov.map_or(TOO_MANY, |iov| {
        submit(ep, plain(ep, reading(address, key), iov, context))
    })
}

/// An operation on remote memory that is described by a structure.
///
/// # Safety
/// Arguments of `fi_readmsg` or `fi_writemsg`.
unsafe fn described(
    message: *const fi_msg_rma,
    flags: u64,
    work: fn(u64, u64) -> Work,
) -> Option<Operation> {
    // SAFETY: the caller's promise.
    unsafe {
        let message = &*message;
        let iov = Iov::from_raw(message.msg_iov, message.desc, message.iov_count)?;
        let target = remote(message.rma_iov, message.rma_iov_count)?;
        let mut operation = Operation::new(
            work(target.addr, target.key),
            iov,
            Opaque(message.context),
            flags,
        );
        operation.data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        Some(operation)
    }
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: see `recv`.
    let (ep, operation) = unsafe {
        (
            endpoint(ep),
            described(message, flags & !FI_REMOTE_CQ_DATA, reading),
        )
    };
    operation.map_or(TOO_MANY, |operation| submit(ep, operation))
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    desc: Ptr,
    _: u64,
    address: u64,
    key: u64,
    context: Ptr,
) -> isize {
    // SAFETY: see `recv`.
    let ep = unsafe { endpoint(ep) };
    submit(
        ep,
        plain(
            ep,
            writing(address, key),
            Iov::one(buffer, length, desc),
            context,
        ),
    )
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *const Ptr,
    count: usize,
    _: u64,
    address: u64,
    key: u64,
    context: Ptr,
) -> isize {
    // SAFETY: see `recv`.
    let (ep, iov) = unsafe { (endpoint(ep), Iov::from_raw(iov, desc, count)) };
    iov.map_or(TOO_MANY, |iov| {
        submit(ep, plain(ep, writing(address, key), iov, context))
    })
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: see `recv`.
    let (ep, operation) = unsafe { (endpoint(ep), described(message, flags, writing)) };
    operation.map_or(TOO_MANY, |operation| submit(ep, operation))
}

unsafe extern "C" fn inject_write(
    ep: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    _: u64,
    address: u64,
    key: u64,
) -> isize {
    // SAFETY: see `recv`.
    submit(
        unsafe { endpoint(ep) },
        injected(writing(address, key), buffer, length),
    )
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    desc: Ptr,
    data: u64,
    _: u64,
    address: u64,
    key: u64,
    context: Ptr,
) -> isize {
    // SAFETY: see `recv`.
    let ep = unsafe { endpoint(ep) };
    let mut operation = plain(
        ep,
        writing(address, key),
        Iov::one(buffer, length, desc),
        context,
    );
    operation.data = Some(data);
    submit(ep, operation)
}

unsafe extern "C" fn inject_writedata(
    ep: *mut fid_ep,
    buffer: *const c_void,
    length: usize,
    data: u64,
    _: u64,
    address: u64,
    key: u64,
) -> isize {
    let mut operation = injected(writing(address, key), buffer, length);
    operation.data = Some(data);
    // SAFETY: see `recv`.
    submit(unsafe { endpoint(ep) }, operation)
}
