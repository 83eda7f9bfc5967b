//! One endpoint: its state, and what it does with a packet, a completed send and the end of its connection.
//!
//! ```text
//!            connect            Accept             close, or the peer's end
//!   Idle ──────────────▶ Asking ───────▶ Connected ─────────────▶ Ending ──▶ Ended
//!     │ Hello                                 ▲        what has arrived is read
//!     └─────▶ Asked ──────────────────────────┘ accept
//! ```
//!
//! Its parts have private states and do not know of each other: [`Vi`] posts, [`Sender`] has the operations,
//! [`Receiver`] the receives, [`Reports`] the queues that the program reads.

mod handshake;
mod tagged;

use vipl_abi::*;
use vipl_sys::clock::Instant;

use super::operation::{Operation, Sent};
use super::queues::{Completion, Context};
use super::receiver::{Malformed, Receive, Receiver};
use super::reports::Reports;
use super::sender::{Ended, Sender};
use super::vi::{Received, Vi};
use super::{Incoming, Shared};
use crate::address::Address;
use crate::device::Handle;
use crate::fi::{FI_ENOKEY, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_RMA, FI_SHUTDOWN};
use crate::packet::{Handshake, Header, Kind, ReadAnswer, ReadRequest};
use crate::slab::Id;

use tagged::Tagged;
pub(crate) use tagged::TaggedSend;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Asking,
    Asked,
    Connected,
    /// The connection is over, and what arrived before is being read: for the length of one call only.
    Ending,
    Ended,
}

/// See the module.
pub(crate) struct Endpoint {
    id: Id,
    state: State,
    local: Address,
    peer: Option<Address>,
    /// A connection request that the program has not accepted yet: the listener that it came through.
    incoming: Option<Incoming>,
    /// Error of unfinished operations: what has happened, or that the program closes.
    error: i32,
    /// It was connected once.
    reached: bool,
    vi: Vi,
    sender: Sender,
    receiver: Receiver,
    /// The connection belongs to an endpoint for messages with tags.
    tagged: Option<Box<Tagged>>,
    pub reports: Reports,
}

impl Endpoint {
    /// Creates a VI of this level with all its receives posted. `incoming`: for a connection request.
    pub(crate) fn new(
        local: Address,
        incoming: Option<Incoming>,
        level: VIP_RELIABILITY_LEVEL,
        shared: &Shared,
    ) -> Option<Endpoint> {
        Some(Endpoint {
            id: Id::from_bits(0),
            state: State::Idle,
            local,
            peer: None,
            incoming,
            error: libc::ECONNRESET,
            reached: false,
            vi: Vi::new(&shared.device, shared.settings, level)?,
            sender: Sender::default(),
            receiver: Receiver::default(),
            tagged: None,
            reports: Reports::default(),
        })
    }

    /// Sets the id that it has in the engine's table.
    pub(super) fn set_id(&mut self, id: Id) {
        self.id = id;
        self.vi.set_id(id);
    }

    pub(crate) fn local(&self) -> Address {
        self.local
    }

    pub(crate) fn peer(&self) -> Option<Address> {
        self.peer
    }

    pub(crate) fn vi(&self) -> Handle {
        self.vi.handle()
    }

    /// The listener whose connection request this is.
    pub(super) fn listener(&self) -> Option<Id> {
        self.incoming.map(|incoming| incoming.passive)
    }

    /// Whether it is a connection request that the program has not taken.
    #[cfg(test)]
    pub(crate) fn is_request(&self) -> bool {
        self.incoming.is_some()
    }

    /// Since when a peer that has connected has been expected to identify itself, or to disconnect.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        let incoming = self.incoming.filter(|_| self.state == State::Idle);
        incoming.map(|incoming| incoming.since)
    }

    /// Whether the connection is being established.
    pub(super) fn is_connecting(&self) -> bool {
        match self.state {
            State::Asking | State::Asked => true,
            State::Idle => self.incoming.is_some(),
            State::Connected | State::Ending | State::Ended => false,
        }
    }

    /// Whether something is still to be sent or acknowledged.
    pub(crate) fn is_busy(&self) -> bool {
        self.state == State::Connected && !(self.vi.is_idle() && self.sender.is_empty())
    }

    /// Receives that the program may still post.
    pub(crate) fn room_for_receives(&self) -> usize {
        self.receiver.room()
    }

    /// Operations that may still be submitted.
    pub(crate) fn room_for_operations(&self) -> usize {
        self.sender.room()
    }

    /// Takes an operation.
    ///
    /// # Errors
    /// FI_EAGAIN: there is no room, or no connection yet; ENOTCONN: none any more; EINVAL: see [`Sender::submit`].
    #[inline]
    pub(crate) fn submit(&mut self, operation: Operation, shared: &mut Shared) -> Result<(), i32> {
        match self.state {
            State::Connected => {}
            State::Ending | State::Ended => return Err(libc::ENOTCONN),
            State::Idle | State::Asking | State::Asked => return Err(libc::EAGAIN),
        }
        if self.sender.submit(operation, &mut self.vi)? {
            self.pump(shared);
        }
        Ok(())
    }

    /// Sends a short message at once; false: it has to wait, or to be refused.
    #[inline]
    pub(crate) fn inject(&mut self, bytes: &[u8], data: Option<u64>, tag: Option<u64>) -> bool {
        self.state == State::Connected && self.sender.inject(bytes, data, tag, &mut self.vi)
    }

    /// Posts a receive of the program.
    ///
    /// # Errors
    /// FI_EAGAIN: there is no room; ENOTCONN: nothing will arrive any more.
    #[inline]
    pub(crate) fn receive(&mut self, receive: Receive, shared: &mut Shared) -> Result<(), i32> {
        // What arrived before the end may still be taken.
        if self.state == State::Ended && !self.receiver.holds_packets() {
            return Err(libc::ENOTCONN);
        }
        if !self.receiver.post(receive) {
            return Err(libc::EAGAIN);
        }
        if self.receiver.holds_packets() {
            self.place_held(shared);
        }
        if self.state == State::Ended && !self.receiver.holds_packets() {
            // Only a part of the last message has arrived.
            self.flush(shared);
        }
        Ok(())
    }

    /// Withdraws a receive of the program; false if there is none with this context.
    pub(crate) fn cancel(&mut self, context: Context, shared: &mut Shared) -> bool {
        let withdrawn = self.receiver.cancel(context);
        if let Some(completion) = withdrawn {
            self.reports.received(completion, shared);
        }
        withdrawn.is_some()
    }

    /// Something has completed on one of the queues.
    #[inline]
    pub(super) fn completed(&mut self, receive: bool, shared: &mut Shared) {
        // Sends first: a peer's answer must not be reported before the send that it answers.
        if !receive || self.vi.is_reporting() {
            self.take_sent(shared);
        }
        if receive {
            self.take_received(shared);
        }
        if !self.sender.is_idle() || self.vi.credit().owes() {
            self.pump(shared);
        }
    }

    /// Posts what there is room for.
    fn pump(&mut self, shared: &mut Shared) {
        if self.state == State::Connected && self.sender.pump(&mut self.vi) {
            self.reports.nudge(shared);
        }
    }

    /// Takes the sends that are done.
    #[inline]
    fn take_sent(&mut self, shared: &mut Shared) {
        while let Some((sent, status)) = self.vi.take_sent() {
            let error = if status == 0 { 0 } else { self.meaning(status) };
            if let Sent::Operation {
                context,
                flags,
                kind,
                owned,
            } = sent
            {
                let ended = Ended {
                    context,
                    flags,
                    kind,
                    error,
                    owned,
                };
                self.ended(&ended, shared);
            }
            if error != 0 {
                self.fail(error, shared);
            }
        }
    }

    /// libfabric's error for the error bits of a status.
    #[cold]
    fn meaning(&self, status: u32) -> i32 {
        if matches!(self.state, State::Ending | State::Ended)
            || status & VIP_STATUS_DESC_FLUSHED_ERROR != 0
        {
            self.error
        } else if status & (VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_RDMA_PROT_ERROR) != 0 {
            libc::EACCES
        } else if status & VIP_STATUS_LENGTH_ERROR != 0 {
            libc::EMSGSIZE
        } else if status & VIP_STATUS_REMOTE_DESC_ERROR != 0 {
            libc::EREMOTEIO
        } else {
            libc::EIO
        }
    }

    /// Takes the oldest receive that is done; false if there is none.
    #[inline]
    fn take_received(&mut self, shared: &mut Shared) -> bool {
        let Some(received) = self.vi.take_received() else {
            return false;
        };
        if received.error != 0 {
            self.fail(libc::ECONNRESET, shared);
        } else if self.packet(received, shared).is_err() {
            crate::libfabric::warn(|| {
                "a peer sent a packet that makes no sense; the connection ends".to_owned()
            });
            self.protocol_error(shared);
        }
        true
    }

    /// The peer violates the protocol: the connection ends.
    fn protocol_error(&mut self, shared: &mut Shared) {
        self.vi.disconnect();
        self.end(libc::EPROTO, shared);
    }

    /// One packet.
    #[inline]
    fn packet(&mut self, received: Received, shared: &mut Shared) -> Result<(), Malformed> {
        let Received { at, length, .. } = received;
        let (header, payload) = Header::read(self.vi.packet(at, length)).ok_or(Malformed)?;
        match header.kind {
            Kind::Data | Kind::Offer if self.tagged.is_some() => {
                if !matches!(self.state, State::Connected | State::Ending) {
                    return Err(Malformed);
                }
                self.tagged_message(&header, at, length, shared)?;
            }
            Kind::Offer => return Err(Malformed),
            Kind::More if self.tagged.is_some() => return Err(Malformed),
            Kind::Taken => {
                let answer = ReadAnswer::from_bytes(payload).ok_or(Malformed)?;
                self.offer_taken(answer, shared)?;
            }
            Kind::Data | Kind::More => {
                if !matches!(self.state, State::Connected | State::Ending) {
                    return Err(Malformed);
                }
                if self.receiver.can_place() {
                    let selective = self.reports.receives.selective;
                    let whole = self.receiver.place(&header, payload, selective)?;
                    if let Some(completion) = whole {
                        self.reports.received(completion, shared);
                    }
                } else {
                    self.receiver.hold(at, length);
                    self.vi.credit().peer_posted(header.posted);
                    return Ok(());
                }
            }
            Kind::Credit => {}
            Kind::Written => {
                let completion = Completion {
                    context: Context::NULL,
                    flags: FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA,
                    len: header.total.ok_or(Malformed)? as usize,
                    data: header.data.ok_or(Malformed)?,
                    error: 0,
                    missing: 0,
                    tag: 0,
                };
                self.reports.received(completion, shared);
            }
            Kind::Read => {
                let request = ReadRequest::from_bytes(payload).ok_or(Malformed)?;
                self.asked(request, shared)?;
            }
            Kind::ReadDone => {
                let answer = ReadAnswer::from_bytes(payload).ok_or(Malformed)?;
                if let Some(ended) = self.sender.answered(answer).ok_or(Malformed)? {
                    self.ended(&ended, shared);
                }
            }
            Kind::Hello | Kind::Accept | Kind::Reject => {
                let handshake = Handshake::from_bytes(payload).ok_or(Malformed)?;
                if !self.handshake(header.kind, handshake, shared) {
                    return Err(Malformed);
                }
            }
        }
        self.vi.credit().peer_posted(header.posted);
        self.post_again(at);
        Ok(())
    }

    #[inline]
    fn post_again(&mut self, at: usize) {
        if !matches!(self.state, State::Ending | State::Ended) {
            self.vi.post_again(at);
        }
    }

    /// The peer requests contents of our memory.
    fn asked(&mut self, request: ReadRequest, shared: &Shared) -> Result<(), Malformed> {
        if self.state == State::Ending {
            return Ok(()); // No thread waits for the answer.
        }
        let region = shared.regions.get(&request.from_key);
        let allowed = region.is_some_and(|region| region.may_read(request.from, request.length));
        let error = if allowed { 0 } else { FI_ENOKEY as u32 };
        if self.state == State::Connected && self.sender.answer(request, error) {
            Ok(())
        } else {
            Err(Malformed)
        }
    }

    /// Places the packets for which there were no receives.
    #[cold]
    fn place_held(&mut self, shared: &mut Shared) {
        while let Some((at, length)) = self.receiver.next_held() {
            let selective = self.reports.receives.selective;
            let placed = Header::read(self.vi.packet(at, length))
                .ok_or(Malformed)
                .and_then(|(header, payload)| self.receiver.place(&header, payload, selective));
            match placed {
                Ok(Some(completion)) => self.reports.received(completion, shared),
                Ok(None) => {}
                Err(Malformed) => return self.protocol_error(shared),
            }
            self.post_again(at);
        }
        self.pump(shared);
    }

    /// The connection is over. What arrived before is reported, everything else ends with an error. One event reports
    /// it, after all that.
    pub(crate) fn fail(&mut self, error: i32, shared: &mut Shared) {
        if matches!(self.state, State::Ending | State::Ended) {
            return;
        }
        self.error = error;
        self.drain(shared);
        self.end(error, shared);
    }

    /// The program shuts the connection down.
    pub(crate) fn shut_down(&mut self, shared: &mut Shared) {
        self.vi.disconnect();
        self.fail(libc::ECANCELED, shared);
    }

    /// Reads what has completed on a connection that is over, in both directions.
    fn drain(&mut self, shared: &mut Shared) {
        if self.state == State::Connected {
            self.state = State::Ending;
            self.take_sent(shared);
            while self.state == State::Ending && self.take_received(shared) {}
        }
    }

    /// Ends the connection without reading what has arrived.
    fn end(&mut self, error: i32, shared: &mut Shared) {
        let before = std::mem::replace(&mut self.state, State::Ended);
        if before == State::Ended {
            return;
        }
        self.error = error;
        self.flush(shared);
        match before {
            State::Connected | State::Ending => {
                self.reports.event(FI_SHUTDOWN, 0, Vec::new(), shared);
            }
            State::Asking => self
                .reports
                .event(0, libc::ECONNREFUSED, Vec::new(), shared),
            // The program does not know it: no request yet, or one that cannot be accepted any more.
            State::Idle if self.incoming.is_some() => shared.abandon(self.id),
            State::Idle | State::Asked | State::Ended => {}
        }
    }

    /// Ends what has not been posted and what waits for the peer.
    fn flush(&mut self, shared: &mut Shared) {
        for ended in self.sender.end(self.error) {
            self.ended(&ended, shared);
        }
        self.end_offers(shared);
        for completion in self.receiver.cancel_all() {
            self.reports.received(completion, shared);
        }
    }

    /// Ends the endpoint. What has completed stays so until the program reads it; all else is reported as cancelled.
    pub(crate) fn destroy(mut self, shared: &mut Shared) {
        self.vi.disconnect();
        self.error = libc::ECANCELED;
        self.drain(shared);
        self.state = State::Ended;
        self.take_sent(shared);
        self.flush(shared);
        self.reports.forget_events(shared);
        self.vi.destroy();
    }
}
