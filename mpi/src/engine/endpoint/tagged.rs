//! A connection's part in messages with tags: what the peer offers, and what is offered to it.
//!
//! ```text
//!   up to a packet     Data, with the tag ───────▶ receive, or a copy
//!   longer             Offer ───────────────────▶ RDMA Read into the receive
//!                      ◀─────────────────── Taken
//! ```

use std::collections::HashMap;

use super::{Endpoint, Malformed, State};
use crate::attributes::INJECT;
use crate::device::{Access, Region};
use crate::engine::Shared;
use crate::engine::operation::{Operation, Owned, PULL, Work};
use crate::engine::queues::{Context, Opaque};
use crate::engine::rdm::{Posted, of_tag};
use crate::engine::sender::Ended;
use crate::fi::{FI_COMPLETION, FI_SEND};
use crate::iov::Iov;
use crate::packet::{Header, Kind, ReadAnswer, ReadRequest};
use crate::slab::{Id, Slab};

/// What a connection has under way.
pub(super) struct Tagged {
    owner: Id,
    /// Messages that the peer has not read yet.
    offers: HashMap<u64, Offered>,
    /// The last of them.
    number: u64,
    /// Messages that are being read.
    pulls: Slab<Pull>,
}

/// A message that was offered.
struct Offered {
    context: Context,
    flags: u64,
    tag: Option<u64>,
    owned: Owned,
}

/// A message that is being read.
struct Pull {
    posted: Posted,
    tag: Option<u64>,
    data: Option<u64>,
    total: usize,
    stored: usize,
    /// Names it for the peer.
    id: u64,
    owned: Owned,
}

/// A message that the program sends.
#[derive(Clone, Copy)]
pub(crate) struct TaggedSend {
    pub iov: Iov,
    pub tag: Option<u64>,
    pub data: Option<u64>,
    pub context: Context,
    pub flags: u64,
    /// Never completes.
    pub silent: bool,
}

impl Endpoint {
    /// The connection belongs to this endpoint for messages with tags.
    pub(crate) fn own(&mut self, owner: Id, shared: &mut Shared) {
        self.tagged = Some(Box::new(Tagged {
            owner,
            offers: HashMap::new(),
            number: 0,
            pulls: Slab::new(),
        }));
        if let Some(rdm) = shared.rdms.get(owner) {
            self.reports = rdm.reports.clone();
        }
    }

    /// Whether it has not come about, and will not.
    pub(crate) fn has_failed(&self) -> bool {
        self.state == State::Ended && !self.reached
    }

    /// Whether it came about, and has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Ended && self.reached
    }

    /// Sends a message.
    ///
    /// # Errors
    /// FI_EAGAIN: there is no room, or no connection yet; ENOTCONN: none any more.
    pub(crate) fn send_tagged(&mut self, send: TaggedSend, shared: &mut Shared) -> Result<(), i32> {
        let total = send.iov.total();
        let mut operation = Operation::new(Work::Send, send.iov, send.context, send.flags);
        (operation.data, operation.tag) = (send.data, send.tag);
        operation.silent = send.silent;
        let fits = total <= self.vi.payload_max();
        if self.state != State::Connected || fits && total <= INJECT {
            return self.submit(operation, shared);
        }
        if send.silent {
            return Err(libc::EINVAL);
        }
        if self.sender.room() == 0 {
            return Err(libc::EAGAIN);
        }
        let piece = *send.iov.pieces().first().ok_or(libc::EINVAL)?;
        let access = Access {
            write: false,
            read: !fits,
        };
        let at = piece.address as *mut std::ffi::c_void;
        let key = shared.device.register(at, total, access);
        let owned = Owned {
            address: piece.address,
            key: key.ok_or(libc::EAGAIN)?,
        };
        if fits {
            operation.iov = Iov::one(at, total, owned.key as usize as *mut _);
            operation.owned = Some(owned);
        } else {
            operation = self.offer(&send, owned, shared).ok_or(libc::ENOTCONN)?;
        }
        let submitted = self.submit(operation, shared);
        if submitted.is_err() && fits {
            shared.device.deregister(at, owned.key);
        }
        submitted
    }

    /// Sends an offer of nothing, which makes no sense.
    #[cfg(test)]
    pub(crate) fn offer_nothing(&mut self, tag: u64) {
        let header = Header {
            tag: Some(tag),
            ..Header::new(Kind::Offer)
        };
        let sent = crate::engine::operation::Sent::Nothing;
        self.vi.send_copied(header, 0, |_| {}, sent);
    }

    /// Makes the offer of a long message.
    fn offer(&mut self, send: &TaggedSend, owned: Owned, shared: &mut Shared) -> Option<Operation> {
        let length = send.iov.total() as u64;
        if !shared.device.limits.reads {
            let region = Region {
                address: owned.address,
                length,
                access: Access {
                    write: false,
                    read: true,
                },
            };
            shared.regions.insert(owned.key, region);
        }
        let tagged = self.tagged.as_mut()?;
        tagged.number += 1;
        let offered = Offered {
            context: send.context,
            flags: send.flags,
            tag: send.tag,
            owned,
        };
        tagged.offers.insert(tagged.number, offered);
        let request = ReadRequest {
            id: tagged.number,
            from: owned.address,
            from_key: owned.key,
            to: 0,
            to_key: 0,
            length,
        };
        let (work, iov) = (Work::Offer(request), Iov::default());
        let mut operation = Operation::new(work, iov, Opaque::NULL, 0);
        (operation.data, operation.tag) = (send.data, send.tag);
        operation.silent = true;
        Some(operation)
    }

    /// The peer has read what was offered, or did not want it.
    pub(super) fn offer_taken(
        &mut self,
        answer: ReadAnswer,
        shared: &mut Shared,
    ) -> Result<(), Malformed> {
        let tagged = self.tagged.as_mut().ok_or(Malformed)?;
        let offered = tagged.offers.remove(&answer.id).ok_or(Malformed)?;
        self.end_offer(offered, answer.error as i32, shared);
        Ok(())
    }

    fn end_offer(&self, offered: Offered, error: i32, shared: &mut Shared) {
        shared.regions.remove(&offered.owned.key);
        let ended = Ended {
            context: offered.context,
            flags: offered.flags,
            kind: FI_SEND | of_tag(offered.tag),
            error,
            owned: Some(offered.owned),
        };
        self.release(&ended, shared);
        self.reports.sent(&ended, shared);
    }

    /// The connection is over: nothing that was offered will be read.
    pub(super) fn end_offers(&mut self, shared: &mut Shared) {
        if let Some(tagged) = &mut self.tagged {
            for (_, offered) in std::mem::take(&mut tagged.offers) {
                self.end_offer(offered, self.error, shared);
            }
        }
    }

    /// The provider's registration for an operation that has ended.
    fn release(&self, ended: &Ended, shared: &Shared) {
        if let Some(owned) = ended.owned {
            let at = owned.address as *mut std::ffi::c_void;
            shared.device.deregister(at, owned.key);
        }
    }

    /// An operation has ended.
    #[inline]
    pub(super) fn ended(&mut self, ended: &Ended, shared: &mut Shared) {
        if ended.owned.is_some() {
            self.release(ended, shared);
        }
        if ended.kind == PULL {
            self.pulled(ended, shared);
        } else {
            self.reports.sent(ended, shared);
        }
    }

    /// A message, or the offer of one, which is in this receive of the VI.
    #[inline]
    pub(super) fn tagged_message(
        &mut self,
        header: &Header,
        at: usize,
        length: usize,
        shared: &mut Shared,
    ) -> Result<(), Malformed> {
        let (Some(tagged), Some(from), None) = (&self.tagged, self.peer, header.total) else {
            return Err(Malformed);
        };
        let tag = header.tag;
        let (_, payload) = Header::read(self.vi.packet(at, length)).ok_or(Malformed)?;
        // An endpoint that closes wants nothing.
        let Some(rdm) = shared.rdms.get(tagged.owner) else {
            return Ok(());
        };
        // Before a receive is taken: that of another peer's message must not be lost by a packet that makes no sense.
        let payload = match header.kind {
            Kind::Data => Ok(payload),
            _ => Err(ReadRequest::from_bytes(payload).ok_or(Malformed)?),
        };
        let Some(posted) = rdm.posted_for(&from, tag) else {
            let kept = rdm.keep(from, self.id, tag, header.data, payload);
            return kept.then_some(()).ok_or(Malformed);
        };
        let completion = match payload {
            Ok(bytes) => {
                // SAFETY: memory that the program has given for this message and leaves alone until it is complete.
                let stored = unsafe { posted.iov.scatter(0, bytes) };
                posted.completion(tag, header.data, bytes.len(), stored)
            }
            Err(request) => {
                let pulled = self.pull(request, &posted, tag, header.data, shared);
                (!pulled).then(|| posted.failure(libc::ECONNRESET))
            }
        };
        if let Some(completion) = completion {
            self.reports.received(completion, shared);
        }
        Ok(())
    }

    /// Reads a message that the peer has offered into its receive; false: the connection is over.
    pub(in crate::engine) fn pull(
        &mut self,
        request: ReadRequest,
        posted: &Posted,
        tag: Option<u64>,
        data: Option<u64>,
        shared: &mut Shared,
    ) -> bool {
        if self.state != State::Connected {
            return false;
        }
        let total = request.length as usize;
        let stored = posted.iov.total().min(total);
        let place = posted.iov.pieces().first().filter(|_| stored > 0);
        let Some(place) = place.copied() else {
            self.report_pull(posted.completion(tag, data, total, 0), shared);
            self.refuse(request, shared);
            return true;
        };
        // Where the device cannot read remote memory, the peer writes.
        let access = Access {
            write: !shared.device.limits.reads,
            read: false,
        };
        let at = place.address as *mut std::ffi::c_void;
        let (Some(key), Some(tagged)) = (
            shared.device.register(at, stored, access),
            self.tagged.as_mut(),
        ) else {
            self.report_pull(Some(posted.failure(libc::ENOMEM)), shared);
            self.refuse(request, shared);
            return true;
        };
        let pull = tagged.pulls.insert(Pull {
            posted: *posted,
            tag,
            data,
            total,
            stored,
            id: request.id,
            owned: Owned {
                address: place.address,
                key,
            },
        });
        let work = Work::Pull {
            address: request.from,
            key: request.from_key,
        };
        let iov = Iov::one(at, stored, key as usize as *mut _);
        let context = Opaque(pull.to_bits() as *mut std::ffi::c_void);
        self.sender
            .add(Operation::new(work, iov, context, FI_COMPLETION));
        self.pump(shared);
        true
    }

    fn report_pull(&self, completion: Option<crate::engine::Completion>, shared: &mut Shared) {
        if let Some(completion) = completion {
            self.reports.received(completion, shared);
        }
    }

    /// Lets go of what the peer has offered.
    pub(in crate::engine) fn refuse(&mut self, request: ReadRequest, shared: &mut Shared) {
        self.sender.taken(ReadAnswer {
            id: request.id,
            error: 0,
        });
        self.pump(shared);
    }

    /// A message has been read.
    fn pulled(&mut self, ended: &Ended, shared: &mut Shared) {
        let pull = Id::from_bits(ended.context.0 as usize);
        let pull = self
            .tagged
            .as_mut()
            .and_then(|tagged| tagged.pulls.remove(pull));
        let Some(pull) = pull else {
            return;
        };
        let at = pull.owned.address as *mut std::ffi::c_void;
        shared.device.deregister(at, pull.owned.key);
        let completion = match ended.error {
            0 => pull
                .posted
                .completion(pull.tag, pull.data, pull.total, pull.stored),
            error => Some(pull.posted.failure(error)),
        };
        self.report_pull(completion, shared);
        self.sender.taken(ReadAnswer {
            id: pull.id,
            error: 0,
        });
        // The caller posts what waits.
    }
}
