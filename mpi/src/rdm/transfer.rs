//! The calls of an endpoint for messages with tags and plain ones, in their many forms.

mod plain;

use std::ffi::{c_int, c_void};

pub(super) use plain::MSG_OPS;

use super::{RdmObject, object};
use crate::engine::{Engine, Opaque, Posted, Probe, Route, TaggedSend};
use crate::fi::*;
use crate::iov::Iov;
use crate::object::{bytes, entry, entry_points, size};

/// Messages with tags.
pub(super) static TAGGED_OPS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
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

type Ptr = *mut c_void;
type Source = *const c_void;
type Vector = *const libc::iovec;

impl RdmObject {
    /// Sends a message.
    #[inline]
    fn send(&self, to: u64, send: Option<TaggedSend>) -> isize {
        size(|| {
            let send = send.ok_or(libc::EINVAL)?;
            let mut engine = self.nic.lock();
            engine.submit(|engine| self.attempt(engine, to, send))
        })
    }

    fn attempt(&self, engine: &mut Engine, to: u64, send: TaggedSend) -> Result<(), c_int> {
        let id = match engine.route(self.id, to)? {
            Route::Connection(id) => id,
            Route::Missing(peer) => {
                self.connect(engine, peer)?;
                return Err(libc::EAGAIN);
            }
        };
        let sent = engine.with(id, |endpoint, shared| endpoint.send_tagged(send, shared));
        let sent = sent.ok_or(libc::EBADF)?;
        // One that did not come about is tried again, until `may_try` refuses.
        if sent == Err(libc::ENOTCONN)
            && engine.with(id, |endpoint, _| endpoint.has_failed()) == Some(true)
        {
            engine.drop_connection(self.id, id);
            return Err(libc::EAGAIN);
        }
        sent
    }

    /// Sends a message that does not complete.
    ///
    /// # Safety
    /// `length` bytes at `buffer` are readable.
    #[inline]
    unsafe fn inject(
        &self,
        to: u64,
        buffer: *const c_void,
        length: usize,
        tag: Option<u64>,
        data: Option<u64>,
    ) -> isize {
        let short = entry(false, || {
            // SAFETY: the caller's promise.
            let bytes = unsafe { bytes(buffer, length) };
            let mut engine = self.nic.lock();
            engine.called();
            match engine.route(self.id, to) {
                Ok(Route::Connection(id)) => {
                    let sent = engine.with(id, |endpoint, _| endpoint.inject(bytes, data, tag));
                    sent == Some(true)
                }
                _ => false,
            }
        });
        if short {
            return 0;
        }
        let send = TaggedSend {
            iov: Iov::one(buffer, length, std::ptr::null_mut()),
            tag,
            data,
            context: Opaque::NULL,
            flags: FI_INJECT,
            silent: true,
        };
        self.send(to, Some(send))
    }

    /// What a send with the endpoint's own flags is.
    #[inline]
    fn message(
        &self,
        iov: Option<Iov>,
        tag: Option<u64>,
        data: Option<u64>,
        context: *mut c_void,
    ) -> Option<TaggedSend> {
        Some(TaggedSend {
            iov: iov?,
            tag,
            data,
            context: Opaque(context),
            flags: self.send_flags,
            silent: false,
        })
    }

    /// Posts a receive, or does what the flags say.
    #[inline]
    fn receive(
        &self,
        iov: Option<Iov>,
        from: u64,
        (tag, ignore): (Option<u64>, u64),
        context: *mut c_void,
        flags: u64,
    ) -> isize {
        size(|| {
            let mut engine = self.nic.lock();
            engine.called();
            let from = match from {
                FI_ADDR_UNSPEC => None,
                number => Some(engine.peer(self.id, number).ok_or(libc::EINVAL)?),
            };
            let mut posted = Posted {
                iov: iov.ok_or(libc::EINVAL)?,
                from,
                tag,
                ignore,
                context: Opaque(context),
                reported: true,
            };
            let (claims, discards) = (flags & FI_CLAIM != 0, flags & FI_DISCARD != 0);
            if flags & FI_PEEK != 0 {
                let probe = Probe { claims, discards };
                engine.probe(self.id, posted, probe)?;
            } else if claims {
                engine.take_claimed(self.id, posted, discards)?;
            } else {
                posted.reported = flags & FI_COMPLETION != 0 || !engine.is_selective(self.id);
                engine.receive_tagged(self.id, posted)?;
            }
            Ok(0)
        })
    }
}

/// At most one piece.
///
/// # Safety
/// As for [`Iov::from_raw`].
unsafe fn one(iov: Vector, descriptors: *const Ptr, count: usize) -> Option<Iov> {
    match count {
        // SAFETY: the caller's promise.
        0..=1 => unsafe { Iov::from_raw(iov, descriptors, count) },
        _ => None,
    }
}

entry_points! {
    recv(buffer: Ptr, length: usize, desc: Ptr, from: u64, tag: u64, ignore: u64, context: Ptr)
        |ep| ep.receive(Some(Iov::one(buffer, length, desc)), from, (Some(tag), ignore), context, ep.receive_flags);
    recvv(iov: Vector, desc: *const Ptr, count: usize, from: u64, tag: u64, ignore: u64, context: Ptr)
        |ep| ep.receive(one(iov, desc, count), from, (Some(tag), ignore), context, ep.receive_flags);
    recvmsg(to: *const fi_msg_tagged, flags: u64)
        |ep| {
            let to = &*to;
            ep.receive(one(to.msg_iov, to.desc, to.iov_count), to.addr, (Some(to.tag), to.ignore), to.context, flags)
        };

    send(buffer: Source, length: usize, desc: Ptr, to: u64, tag: u64, context: Ptr)
        |ep| ep.send(to, ep.message(Some(Iov::one(buffer, length, desc)), Some(tag), None, context));
    sendv(iov: Vector, desc: *const Ptr, count: usize, to: u64, tag: u64, context: Ptr)
        |ep| ep.send(to, ep.message(one(iov, desc, count), Some(tag), None, context));
    sendmsg(from: *const fi_msg_tagged, flags: u64)
        |ep| {
            let from = &*from;
            let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(from.data);
            let iov = one(from.msg_iov, from.desc, from.iov_count);
            let message = ep.message(iov, Some(from.tag), data, from.context);
            ep.send(from.addr, message.map(|message| TaggedSend { flags, ..message }))
        };
    senddata(buffer: Source, length: usize, desc: Ptr, data: u64, to: u64, tag: u64, context: Ptr)
        |ep| ep.send(to, ep.message(Some(Iov::one(buffer, length, desc)), Some(tag), Some(data), context));
    inject(buffer: Source, length: usize, to: u64, tag: u64)
        |ep| ep.inject(to, buffer, length, Some(tag), None);
    injectdata(buffer: Source, length: usize, data: u64, to: u64, tag: u64)
        |ep| ep.inject(to, buffer, length, Some(tag), Some(data));
}
