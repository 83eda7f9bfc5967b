//! What an endpoint receives.
//!
//! Every packet arrives in a receive of the endpoint's own and is copied to where the program wants it. So a message
//! waits for the program's receive without breaking the connection, the packets about the connection need no receive of
//! the program's, and messages may be longer than what one descriptor carries.

use vipl_abi::*;

use super::Shared;
use super::endpoint::{Assembly, Endpoint, Receive, State};
use super::operation::{Answer, READ_FLAGS};
use super::queues::{Completion, Context};
use crate::attributes::RECEIVES;
use crate::credit::READS;
use crate::fi::{
    FI_COMPLETION, FI_ENOKEY, FI_ETRUNC, FI_MSG, FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE,
    FI_RMA,
};
use crate::packet::{Handshake, Header, Kind, ReadAnswer, ReadRequest};

/// The peer has sent what it should not.
struct Malformed;

impl Endpoint {
    /// Takes the oldest receive that is done.
    #[inline]
    pub(super) fn take_received(&mut self, shared: &mut Shared) -> bool {
        let mut descriptor = std::ptr::null_mut();
        // SAFETY: takes any handle; room for the result.
        unsafe { (shared.device.functions.VipRecvDone)(self.vi.raw(), &raw mut descriptor) };
        if descriptor.is_null() {
            return false;
        }
        // SAFETY: it was just given back.
        let outcome = unsafe { self.block.outcome(descriptor) };
        let Some(at) = self.block.receive_of(descriptor) else {
            return false;
        };
        if outcome.status & VIP_STATUS_ERROR_MASK != 0 {
            self.fail(libc::ECONNRESET, shared);
        } else if self.packet(at, outcome.length, shared).is_err() {
            crate::libfabric::warn(|| {
                "a peer sent a packet that makes no sense; the connection ends".to_owned()
            });
            shared.device.disconnect(self.vi);
            self.end(libc::EPROTO, shared);
        }
        true
    }

    /// One packet.
    #[inline]
    fn packet(&mut self, at: usize, length: usize, shared: &mut Shared) -> Result<(), Malformed> {
        let packet = self.block.received(at, length);
        let (header, payload) = Header::read(packet).ok_or(Malformed)?;
        self.credit.hear(header.posted);
        match header.kind {
            Kind::Data | Kind::More => {
                if !matches!(self.state, State::Connected | State::Ending) {
                    return Err(Malformed);
                }
                if !self.held.is_empty() || !self.is_wanted() {
                    self.held.push_back((at, length));
                    return Ok(());
                }
                self.deliver(at, length, shared)?;
            }
            Kind::Credit => {}
            Kind::Written => {
                let data = header.data.ok_or(Malformed)?;
                let length = header.total.ok_or(Malformed)? as usize;
                let flags = FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA;
                self.report(Context::NULL, flags, length, 0, data, shared);
            }
            Kind::Read => {
                let request = ReadRequest::from_bytes(payload).ok_or(Malformed)?;
                self.asked(request, shared)?;
            }
            Kind::ReadDone => {
                let answer = ReadAnswer::from_bytes(payload).ok_or(Malformed)?;
                let ended = self.reads.answered(answer).ok_or(Malformed)?;
                if let Some((context, flags, error)) = ended {
                    self.finish(context, flags, READ_FLAGS, error, shared);
                }
            }
            Kind::Hello | Kind::Accept | Kind::Reject => {
                let handshake = Handshake::from_bytes(payload).ok_or(Malformed)?;
                if !self.handshake(header.kind, handshake, shared) {
                    return Err(Malformed);
                }
            }
        }
        self.post_again(at, shared);
        Ok(())
    }

    #[inline]
    fn post_again(&mut self, at: usize, shared: &Shared) {
        if !matches!(self.state, State::Ending | State::Ended) {
            self.post_receive(at, &shared.device);
            self.credit.posted_again();
        }
    }

    /// Whether there is a place for the next packet of data.
    #[inline]
    fn is_wanted(&self) -> bool {
        self.assembly.is_some() || !self.posted.is_empty()
    }

    /// Copies a packet of data to where the program wants it. There is such a place.
    #[inline]
    fn deliver(&mut self, at: usize, length: usize, shared: &mut Shared) -> Result<(), Malformed> {
        let packet = self.block.received(at, length);
        let (header, payload) = Header::read(packet).ok_or(Malformed)?;
        let mut assembly = match (header.kind, self.assembly.take()) {
            (Kind::Data, None) => Assembly {
                receive: self.posted.pop_front().ok_or(Malformed)?,
                total: header.total.map_or(payload.len(), |total| total as usize),
                arrived: 0,
                stored: 0,
                data: header.data,
            },
            (Kind::More, Some(assembly)) => assembly,
            _ => return Err(Malformed),
        };
        if payload.len() > assembly.total - assembly.arrived {
            return Err(Malformed);
        }
        // SAFETY: memory that the program has given for this message and leaves alone until it is complete.
        assembly.stored += unsafe { assembly.receive.iov.scatter(assembly.arrived, payload) };
        assembly.arrived += payload.len();
        if assembly.arrived < assembly.total {
            self.assembly = Some(assembly);
            return Ok(());
        }
        let receive = &assembly.receive;
        let missing = assembly.total - assembly.stored;
        let mut flags = FI_RECV | FI_MSG;
        if assembly.data.is_some() {
            flags |= FI_REMOTE_CQ_DATA;
        }
        if missing > 0 || !self.receives.selective || receive.flags & FI_COMPLETION != 0 {
            let data = assembly.data.unwrap_or(0);
            self.report(
                receive.context,
                flags,
                assembly.stored,
                missing,
                data,
                shared,
            );
        }
        Ok(())
    }

    #[inline]
    fn report(
        &self,
        context: Context,
        flags: u64,
        len: usize,
        missing: usize,
        data: u64,
        shared: &mut Shared,
    ) {
        let completion = Completion {
            context,
            flags,
            len,
            data,
            error: if missing > 0 { FI_ETRUNC } else { 0 },
            missing,
        };
        shared.complete(self.receives.queue, completion);
    }

    /// The peer asks for contents of our memory.
    fn asked(&mut self, request: ReadRequest, shared: &Shared) -> Result<(), Malformed> {
        if self.state == State::Ending {
            return Ok(()); // Nobody waits for the answer.
        }
        if self.state != State::Connected || self.answers.len() >= READS as usize {
            return Err(Malformed);
        }
        let region = shared.regions.get(&request.from_key);
        let allowed = region.is_some_and(|region| region.may_read(request.from, request.length));
        self.answers.push_back(Answer {
            request,
            done: 0,
            error: if allowed { 0 } else { FI_ENOKEY as u32 },
        });
        Ok(())
    }

    /// The program posts a receive.
    #[inline]
    pub(crate) fn receive(&mut self, receive: Receive, shared: &mut Shared) -> Result<(), i32> {
        // What arrived before the end may still be taken.
        if self.state == State::Ended && self.held.is_empty() {
            return Err(libc::ENOTCONN);
        }
        if self.posted.len() >= RECEIVES {
            return Err(libc::EAGAIN);
        }
        self.posted.push_back(receive);
        if !self.held.is_empty() {
            self.take_held(shared);
        }
        if self.state == State::Ended && self.held.is_empty() {
            // Of the last message only a part has arrived.
            self.flush(shared);
        }
        Ok(())
    }

    #[cold]
    fn take_held(&mut self, shared: &mut Shared) {
        while self.is_wanted() {
            let Some((at, length)) = self.held.pop_front() else {
                break;
            };
            if self.deliver(at, length, shared).is_err() {
                shared.device.disconnect(self.vi);
                self.end(libc::EPROTO, shared);
                return;
            }
            self.post_again(at, shared);
        }
        self.pump(shared);
    }

    /// The program withdraws a receive.
    pub(crate) fn cancel(&mut self, context: Context, shared: &mut Shared) -> bool {
        let Some(at) = self
            .posted
            .iter()
            .position(|receive| receive.context == context)
        else {
            return false;
        };
        self.posted.remove(at);
        let completion = Completion {
            context,
            flags: FI_RECV | FI_MSG,
            len: 0,
            data: 0,
            error: libc::ECANCELED,
            missing: 0,
        };
        shared.complete(self.receives.queue, completion);
        true
    }
}
