//! One endpoint: a VI, its memory and its state.
//!
//! ```text
//!            connect            Accept             close, or the peer's end
//!   Idle ──────────────▶ Asking ───────▶ Connected ─────────────▶ Ending ──▶ Ended
//!     │ Hello                                 ▲        what has arrived is read
//!     └─────▶ Asked ──────────────────────────┘ accept
//! ```

use std::collections::VecDeque;

use vipl_abi::*;
use vipl_sys::clock::Instant;

use super::block::{Block, SENDS};
use super::operation::{Answer, Reads, Sent, Waiting};
use super::queues::{Completion, Context, Event, Opaque};
use super::{Incoming, Shared};
use crate::address::Address;
use crate::attributes::RECEIVES;
use crate::credit::Credit;
use crate::device::{Device, Handle};
use crate::fi::{FI_MSG, FI_RECV, FI_SHUTDOWN, fid};
use crate::iov::Iov;
use crate::slab::Id;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Asking,
    Asked,
    Connected,
    /// The connection is over, and what arrived before is being read: for the length of one call only.
    Ending,
    Ended,
}

/// A receive that the program has posted.
#[derive(Clone, Copy)]
pub(crate) struct Receive {
    pub iov: Iov,
    pub context: Context,
    pub flags: u64,
}

/// A message of which pieces have arrived.
pub(super) struct Assembly {
    pub receive: Receive,
    pub total: usize,
    pub arrived: usize,
    pub stored: usize,
    pub data: Option<u64>,
}

/// A queue that the endpoint reports to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Binding {
    pub queue: Option<Id>,
    /// Only operations that ask for it complete.
    pub selective: bool,
}

/// See the module.
pub(crate) struct Endpoint {
    pub id: Id,
    pub vi: Handle,
    pub state: State,
    pub local: Address,
    pub peer: Option<Address>,
    pub sends: Binding,
    pub receives: Binding,
    pub events: Option<Id>,
    /// The object that libfabric sees, for events.
    pub fid: Opaque<fid>,
    /// A connection request that the program has not accepted yet: the listener that it came through.
    pub incoming: Option<Incoming>,
    /// Error that unfinished operations get: what has happened, or that the program closes.
    pub(super) error: i32,
    pub(super) block: Block,
    pub(super) credit: Credit,
    /// Bytes of a receive of the peer.
    pub(super) peer_chunk: usize,
    /// Sends that are posted, oldest first; the ring's places are those of the block's descriptors.
    pub(super) sent: [Sent; SENDS],
    pub(super) head: usize,
    pub(super) tail: usize,
    /// How many of them somebody waits for.
    pub(super) reporting: usize,
    /// Operations that are not posted, or not wholly.
    pub(super) queue: VecDeque<Waiting>,
    pub(super) posted: VecDeque<Receive>,
    pub(super) assembly: Option<Assembly>,
    /// Packets for which the program has posted no receive: which receive of ours, and how long.
    pub(super) held: VecDeque<(usize, usize)>,
    pub(super) reads: Reads,
    pub(super) answers: VecDeque<Answer>,
    /// The program has been told to try again.
    pub(super) refused: bool,
}

impl Endpoint {
    /// Makes a VI with all its receives posted.
    pub(crate) fn new(local: Address, shared: &mut Shared) -> Option<Endpoint> {
        let settings = shared.settings;
        let device = &shared.device;
        let block = Block::new(device, settings.window as usize, settings.chunk as usize)?;
        let vi = device.create_vi()?;
        let mut endpoint = Endpoint {
            id: Id::from_bits(0),
            vi,
            state: State::Idle,
            local,
            peer: None,
            sends: Binding::default(),
            receives: Binding::default(),
            events: None,
            fid: Opaque::NULL,
            incoming: None,
            error: libc::ECONNRESET,
            block,
            credit: Credit::new(settings.window),
            peer_chunk: crate::packet::SMALLEST_CHUNK as usize,
            sent: [const { Sent::Nothing }; SENDS],
            head: 0,
            tail: 0,
            reporting: 0,
            queue: VecDeque::new(),
            posted: VecDeque::new(),
            assembly: None,
            held: VecDeque::new(),
            reads: Reads::default(),
            answers: VecDeque::new(),
            refused: false,
        };
        let device = device.clone();
        for at in 0..settings.window as usize {
            if !endpoint.post_receive(at, &device) {
                endpoint.destroy(shared);
                return None;
            }
        }
        Some(endpoint)
    }

    /// Gives it the number that it has in the engine's table.
    pub(crate) fn set_id(&mut self, id: Id, shared: &Shared) {
        self.id = id;
        // SAFETY: takes any handle and any pointer.
        unsafe { (shared.device.functions.VipSetUserData)(self.vi.raw(), id.to_bits() as *mut _) };
    }

    /// Posts one of our receives.
    #[inline]
    pub(super) fn post_receive(&mut self, at: usize, device: &Device) -> bool {
        let descriptor = self.block.prepare_receive(at);
        // SAFETY: a descriptor of ours that is not posted.
        let code = unsafe {
            (device.functions.VipPostRecv)(self.vi.raw(), descriptor, self.block.handle())
        };
        code == VIP_RETURN::VIP_SUCCESS as i32
    }

    /// Something has completed on one of the queues.
    #[inline]
    pub(super) fn completed(&mut self, receive: bool, shared: &mut Shared) {
        // Sends first: a peer's answer must not be reported before the send that it answers.
        if !receive || self.reporting > 0 {
            self.take_sent(shared);
        }
        if receive {
            self.take_received(shared);
        }
        self.pump(shared);
    }

    /// Nobody was reached.
    pub(crate) fn unreachable(&mut self, error: i32, shared: &mut Shared) {
        if self.state == State::Asking {
            self.state = State::Ended;
            self.flush(shared);
            let event = self.event(0, error, Vec::new());
            shared.event(self.events, event);
        }
    }

    /// Receives that the program may still post.
    pub(crate) fn room_for_receives(&self) -> usize {
        RECEIVES - self.posted.len()
    }

    /// The connection is over. What has arrived before is reported; everything else ends with an error. The program is
    /// told once, behind all that.
    pub(crate) fn fail(&mut self, error: i32, shared: &mut Shared) {
        if matches!(self.state, State::Ending | State::Ended) {
            return;
        }
        self.error = error;
        self.drain(shared);
        self.end(error, shared);
    }

    /// Reads what has completed on a connection that is over, in both directions.
    fn drain(&mut self, shared: &mut Shared) {
        if self.state == State::Connected {
            self.state = State::Ending;
            self.take_sent(shared);
            while self.state == State::Ending && self.take_received(shared) {}
        }
    }

    /// The end of the connection, without another look at what has arrived.
    pub(super) fn end(&mut self, error: i32, shared: &mut Shared) {
        let before = std::mem::replace(&mut self.state, State::Ended);
        if before == State::Ended {
            return;
        }
        self.error = error;
        self.flush(shared);
        match before {
            State::Connected | State::Ending => {
                let event = self.event(FI_SHUTDOWN, 0, Vec::new());
                shared.event(self.events, event);
            }
            State::Asking => {
                let event = self.event(0, libc::ECONNREFUSED, Vec::new());
                shared.event(self.events, event);
            }
            // Nobody has seen it: no request yet, or one that cannot be accepted any more.
            State::Idle if self.incoming.is_some() => shared.abandoned.push(self.id),
            State::Idle | State::Asked | State::Ended => {}
        }
    }

    /// An event of this endpoint.
    pub(super) fn event(&self, kind: u32, error: i32, data: Vec<u8>) -> Event {
        Event {
            kind,
            fid: self.fid,
            info: Opaque::NULL,
            data,
            error,
        }
    }

    /// Ends what has not been posted and what waits for the peer.
    pub(super) fn flush(&mut self, shared: &mut Shared) {
        while let Some(Waiting { operation, .. }) = self.queue.pop_front() {
            if operation.silent {
                continue;
            }
            self.finish(
                operation.context,
                operation.flags,
                operation.work.flags(),
                self.error,
                shared,
            );
        }
        for (context, flags) in self.reads.take_all() {
            self.finish(
                context,
                flags,
                super::operation::READ_FLAGS,
                self.error,
                shared,
            );
        }
        self.answers.clear();
        let assembly = self.assembly.take().map(|assembly| assembly.receive);
        for receive in assembly.into_iter().chain(std::mem::take(&mut self.posted)) {
            // A receive did not fail, it was withdrawn; ofi_rxm expects this error and no other.
            shared.complete(
                self.receives.queue,
                Completion {
                    context: receive.context,
                    flags: FI_RECV | FI_MSG,
                    len: 0,
                    data: 0,
                    error: libc::ECANCELED,
                    missing: 0,
                },
            );
        }
    }

    /// Since when a peer that has connected has been expected to say who it is, or to go.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        let incoming = self.incoming.filter(|_| self.state == State::Idle);
        incoming.map(|incoming| incoming.since)
    }

    /// Whether the connection is coming about.
    pub(super) fn is_connecting(&self) -> bool {
        match self.state {
            State::Asking | State::Asked => true,
            State::Idle => self.incoming.is_some(),
            State::Connected | State::Ending | State::Ended => false,
        }
    }

    /// Whether something that was sent is still under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.state == State::Connected && (self.head != self.tail || !self.queue.is_empty())
    }

    /// Ends the endpoint. What has completed stays so until the program reads it; all else is reported as cancelled.
    pub(crate) fn destroy(mut self, shared: &mut Shared) {
        let device = shared.device.clone();
        device.disconnect(self.vi);
        self.error = libc::ECANCELED;
        self.drain(shared);
        self.state = State::Ended;
        self.take_sent(shared);
        self.flush(shared);
        if let Some(events) = self.events.and_then(|queue| shared.events.get(queue)) {
            events.forget(self.fid);
        }
        // SAFETY: takes any handle; the VI is idle, and its descriptors are collected before it is destroyed.
        unsafe {
            let mut descriptor = std::ptr::null_mut();
            while (device.functions.VipRecvDone)(self.vi.raw(), &raw mut descriptor)
                != VIP_RETURN::VIP_NOT_DONE as i32
                && !descriptor.is_null()
            {
                descriptor = std::ptr::null_mut();
            }
            let code = (device.functions.VipDestroyVi)(self.vi.raw());
            if code != VIP_RETURN::VIP_SUCCESS as i32 {
                crate::libfabric::warn(|| format!("VipDestroyVi: {code}"));
            }
        }
    }
}
