//! Transfers: the many forms in which libfabric's programs send, receive, write and read.

use std::ffi::c_void;

use crate::endpoint::{EndpointObject, object};
use crate::engine::{Opaque, Operation, Receive, Work};
use crate::fi::*;
use crate::iov::{Iov, remote};
use crate::object::{bytes, entry, entry_points, size};

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

type Ptr = *mut c_void;
type Source = *const c_void;
type Vector = *const libc::iovec;

/// More pieces than an operation may have.
const TOO_MANY: isize = -(libc::EINVAL as isize);

/// Submits an operation.
#[inline]
fn submit(ep: &EndpointObject, operation: Option<Operation>) -> isize {
    let Some(operation) = operation else {
        return TOO_MANY;
    };
    size(|| {
        ep.nic.lock().submit(|engine| {
            engine
                .with(ep.id, |endpoint, shared| endpoint.submit(operation, shared))
                .ok_or(libc::EBADF)?
        })
    })
}

/// Sends a message that does not complete.
///
/// # Safety
/// `length` bytes at `buffer` are readable.
#[inline]
unsafe fn inject_message(
    ep: &EndpointObject,
    buffer: Source,
    length: usize,
    data: Option<u64>,
) -> isize {
    let short = entry(false, || {
        // SAFETY: the caller's promise.
        let bytes = unsafe { bytes(buffer, length) };
        let mut engine = ep.nic.lock();
        engine.called();
        let sent = engine.with(ep.id, |endpoint, _| endpoint.inject(bytes, data, None));
        sent == Some(true)
    });
    if short {
        return 0;
    }
    let mut operation = injected(Work::Send, buffer, length);
    operation.data = data;
    submit(ep, Some(operation))
}

/// Posts a receive.
fn post(ep: &EndpointObject, iov: Option<Iov>, context: Ptr, flags: u64) -> isize {
    let Some(iov) = iov else {
        return TOO_MANY;
    };
    size(|| {
        let receive = Receive {
            iov,
            context: Opaque(context),
            flags,
        };
        let mut engine = ep.nic.lock();
        engine.called();
        let posted = engine.with(ep.id, |endpoint, shared| endpoint.receive(receive, shared));
        posted.ok_or(libc::EBADF)?.map(|()| 0)
    })
}

/// An operation with the endpoint's own flags.
#[inline]
fn operation(ep: &EndpointObject, work: Work, iov: Iov, context: Ptr) -> Operation {
    Operation::new(work, iov, Opaque(context), ep.send_flags)
}

/// An operation that does not complete.
#[inline]
fn injected(work: Work, buffer: Source, length: usize) -> Operation {
    let iov = Iov::one(buffer, length, std::ptr::null_mut());
    let mut operation = Operation::new(work, iov, Opaque::NULL, FI_INJECT);
    operation.silent = true;
    operation
}

/// A key of 32 bits; another one names no region of VIPL, and the device refuses it.
fn rdma_key(key: u64) -> u32 {
    u32::try_from(key).unwrap_or(0)
}

fn reading(address: u64, key: u64) -> Work {
    let key = rdma_key(key);
    Work::Read { address, key }
}

fn writing(address: u64, key: u64) -> Work {
    let key = rdma_key(key);
    Work::Write { address, key }
}

/// A message that a structure describes.
///
/// # Safety
/// The argument of `fi_sendmsg`.
unsafe fn message(message: &fi_msg, flags: u64) -> Option<Operation> {
    // SAFETY: the caller's promise.
    let iov = unsafe { Iov::from_raw(message.msg_iov, message.desc, message.iov_count) }?;
    let mut operation = Operation::new(Work::Send, iov, Opaque(message.context), flags);
    operation.data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
    Some(operation)
}

/// An operation on remote memory that a structure describes.
///
/// # Safety
/// The argument of `fi_readmsg` or `fi_writemsg`.
unsafe fn rdma(message: &fi_msg_rma, flags: u64, work: fn(u64, u64) -> Work) -> Option<Operation> {
    // SAFETY: the caller's promise.
    unsafe {
        let iov = Iov::from_raw(message.msg_iov, message.desc, message.iov_count)?;
        let target = remote(message.rma_iov, message.rma_iov_count)?;
        let work = work(target.addr, target.key);
        let mut operation = Operation::new(work, iov, Opaque(message.context), flags);
        operation.data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        Some(operation)
    }
}

entry_points! {
    recv(buffer: Ptr, length: usize, desc: Ptr, _from: u64, context: Ptr)
        |ep| post(ep, Some(Iov::one(buffer, length, desc)), context, ep.receive_flags);
    recvv(iov: Vector, desc: *const Ptr, count: usize, _from: u64, context: Ptr)
        |ep| post(ep, Iov::from_raw(iov, desc, count), context, ep.receive_flags);
    recvmsg(to: *const fi_msg, flags: u64)
        |ep| post(ep, Iov::from_raw((*to).msg_iov, (*to).desc, (*to).iov_count), (*to).context, flags);

    send(buffer: Source, length: usize, desc: Ptr, _to: u64, context: Ptr)
        |ep| submit(ep, Some(operation(ep, Work::Send, Iov::one(buffer, length, desc), context)));
    sendv(iov: Vector, desc: *const Ptr, count: usize, _to: u64, context: Ptr)
        |ep| submit(ep, Iov::from_raw(iov, desc, count).map(|iov| operation(ep, Work::Send, iov, context)));
    sendmsg(from: *const fi_msg, flags: u64)
        |ep| submit(ep, message(&*from, flags));
    senddata(buffer: Source, length: usize, desc: Ptr, data: u64, _to: u64, context: Ptr)
        |ep| submit(ep, Some(operation(ep, Work::Send, Iov::one(buffer, length, desc), context).with_data(data)));
    inject(buffer: Source, length: usize, _to: u64)
        |ep| inject_message(ep, buffer, length, None);
    injectdata(buffer: Source, length: usize, data: u64, _to: u64)
        |ep| inject_message(ep, buffer, length, Some(data));

    read(buffer: Ptr, length: usize, desc: Ptr, _to: u64, address: u64, key: u64, context: Ptr)
        |ep| submit(ep, Some(operation(ep, reading(address, key), Iov::one(buffer, length, desc), context)));
    readv(iov: Vector, desc: *const Ptr, count: usize, _to: u64, address: u64, key: u64, context: Ptr)
        |ep| submit(ep, Iov::from_raw(iov, desc, count).map(|iov| operation(ep, reading(address, key), iov, context)));
    readmsg(of: *const fi_msg_rma, flags: u64)
        |ep| submit(ep, rdma(&*of, flags & !FI_REMOTE_CQ_DATA, reading));

    write(buffer: Source, length: usize, desc: Ptr, _to: u64, address: u64, key: u64, context: Ptr)
        |ep| submit(ep, Some(operation(ep, writing(address, key), Iov::one(buffer, length, desc), context)));
    writev(iov: Vector, desc: *const Ptr, count: usize, _to: u64, address: u64, key: u64, context: Ptr)
        |ep| submit(ep, Iov::from_raw(iov, desc, count).map(|iov| operation(ep, writing(address, key), iov, context)));
    writemsg(of: *const fi_msg_rma, flags: u64)
        |ep| submit(ep, rdma(&*of, flags, writing));
    writedata(buffer: Source, length: usize, desc: Ptr, data: u64, _to: u64, address: u64, key: u64, context: Ptr)
        |ep| submit(ep, Some(operation(ep, writing(address, key), Iov::one(buffer, length, desc), context).with_data(data)));
    inject_write(buffer: Source, length: usize, _to: u64, address: u64, key: u64)
        |ep| submit(ep, Some(injected(writing(address, key), buffer, length)));
    inject_writedata(buffer: Source, length: usize, data: u64, _to: u64, address: u64, key: u64)
        |ep| submit(ep, Some(injected(writing(address, key), buffer, length).with_data(data)));
}
