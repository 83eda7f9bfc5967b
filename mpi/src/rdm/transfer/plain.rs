//! The same calls for plain messages, which have no tag.

use super::{Ptr, Source, TaggedSend, Vector, object, one};
use crate::fi::*;
use crate::iov::Iov;
use crate::object::entry_points;

/// Their table.
pub(in crate::rdm) static MSG_OPS: fi_ops_msg = fi_ops_msg {
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

entry_points! {
    recv(buffer: Ptr, length: usize, desc: Ptr, from: u64, context: Ptr)
        |ep| ep.receive(Some(Iov::one(buffer, length, desc)), from, (None, 0), context, ep.receive_flags);
    recvv(iov: Vector, desc: *const Ptr, count: usize, from: u64, context: Ptr)
        |ep| ep.receive(one(iov, desc, count), from, (None, 0), context, ep.receive_flags);
    recvmsg(to: *const fi_msg, flags: u64)
        |ep| {
            let to = &*to;
            ep.receive(one(to.msg_iov, to.desc, to.iov_count), to.addr, (None, 0), to.context, flags)
        };

    send(buffer: Source, length: usize, desc: Ptr, to: u64, context: Ptr)
        |ep| ep.send(to, ep.message(Some(Iov::one(buffer, length, desc)), None, None, context));
    sendv(iov: Vector, desc: *const Ptr, count: usize, to: u64, context: Ptr)
        |ep| ep.send(to, ep.message(one(iov, desc, count), None, None, context));
    sendmsg(from: *const fi_msg, flags: u64)
        |ep| {
            let from = &*from;
            let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(from.data);
            let iov = one(from.msg_iov, from.desc, from.iov_count);
            let message = ep.message(iov, None, data, from.context);
            ep.send(from.addr, message.map(|message| TaggedSend { flags, ..message }))
        };
    senddata(buffer: Source, length: usize, desc: Ptr, data: u64, to: u64, context: Ptr)
        |ep| ep.send(to, ep.message(Some(Iov::one(buffer, length, desc)), None, Some(data), context));
    inject(buffer: Source, length: usize, to: u64)
        |ep| ep.inject(to, buffer, length, None, None);
    injectdata(buffer: Source, length: usize, data: u64, to: u64)
        |ep| ep.inject(to, buffer, length, None, Some(data));
}
