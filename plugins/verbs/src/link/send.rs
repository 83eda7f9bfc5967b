//! The send queue: descriptors become work requests, and completions of the device complete them.

use vipl_abi::*;
use vipl_guard as guard;
use vipl_plugin_sdk::abi::{
    VIPL_LOG_ERROR, VIPL_OPTION_CARRY_IMMEDIATE, VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE,
};
use vipl_plugin_sdk::descriptor::{self, Operation, Outgoing};
use vipl_plugin_sdk::{Entry, Port, Queue};

use super::pieces::{Pieces, Trouble};
use super::request::request;
use super::{FLAGGED, Head, KEYS, Link, Lookup, NOTICE, Sent, WINDOW, own, unreceived};
use crate::counters::counters;
use crate::ibv::*;
use crate::pages::Registered;
use crate::record::{Reason, state};
use crate::tags::Tag;

/// RDMA Read does not exist on Unreliable.
const READ_LEVELS: u16 = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;
/// The last bytes of an RDMA Write, which become visible last (spec §17, COMPAT-15).
const LAST: u32 = 8;

/// What came of a descriptor.
enum Step {
    /// The device has it.
    Posted,
    /// It is complete.
    Done,
    /// It has to wait: for room, for a key, or until those before it are complete.
    Wait,
}

/// Where RDMA goes.
enum Target {
    /// There, by this key.
    Key(u32),
    /// The key is on its way.
    Asked,
    /// The peer does not permit it.
    Refused,
}

impl Link {
    /// Gives posted descriptors to the device.
    #[inline(always)]
    pub(crate) fn post_sends(&mut self, port: &Port) {
        // The usual end first: everything posted is at the device.
        while self.sent != port.posted(Queue::Send)
            && self.up
            && !self.ended
            && port.is_connected()
            && self.sent.wrapping_sub(port.completed(Queue::Send)) < WINDOW
            && let Some(entry) = port.outstanding(Queue::Send, self.sent)
        {
            if !self.post_plain(port, &entry) && !self.post_any(port, &entry) {
                return;
            }
        }
    }

    /// The usual descriptor, of one segment that is sent and in order: a part of what [`post`](Self::post) does, with a
    /// third of its instructions (docs/PERFORMANCE.md). False: nothing was done.
    #[inline(always)]
    fn post_plain(&mut self, port: &Port, entry: &Entry) -> bool {
        // SAFETY: a posted descriptor; faults are caught.
        let image = unsafe { guard::load_descriptor_with(entry.descriptor().cast(), 1) };
        let Some(image) = image else {
            return false;
        };
        let (data, length) = (image.first, image.length);
        let is_plain = image.control & !VIP_CONTROL_IMMEDIATE == VIP_CONTROL_OP_SENDRECV
            && data.length == length
            && u64::from(length) <= port.max_transfer()
            && self.copies.is_none();
        if !is_plain {
            return false;
        }
        // The table of this tag has the regions that the VI may use.
        let Some(key) = self.tag.whole(data.handle, data.address, length) else {
            return false;
        };
        let flagged = image.control & VIP_CONTROL_IMMEDIATE != 0;
        let head = self.head(port, flagged, image.immediate, length, 0);
        let data = ibv_sge {
            addr: data.address,
            length,
            lkey: key,
        };
        if !self.plain.post(&self.pair, self.sent, head.addr, data) {
            return false;
        }
        self.sends[(self.sent % WINDOW) as usize] = Sent {
            opcode: VIP_STATUS_OP_SEND,
            notice: true,
            flagged: false,
        };
        self.sent = self.sent.wrapping_add(1);
        true
    }

    /// Any descriptor. False: those behind it have to wait.
    #[inline(never)]
    fn post_any(&mut self, port: &Port, entry: &Entry) -> bool {
        match self.post(port, entry) {
            Ok(Step::Posted) => self.sent = self.sent.wrapping_add(1),
            Ok(Step::Done) => {}
            Ok(Step::Wait) => return false,
            Err(_) if !self.is_oldest(port) => return false,
            Err(status) => self.fail_send(port, Reason::Lost, status),
        }
        true
    }

    /// Whether all descriptors before the next one are complete.
    fn is_oldest(&self, port: &Port) -> bool {
        self.sent == port.completed(Queue::Send)
    }

    /// The oldest descriptor, which is not at the device, fails.
    #[cold]
    fn fail_send(&mut self, port: &Port, reason: Reason, status: u32) {
        self.sent = self.sent.wrapping_add(1);
        if port.is_reliable() {
            self.close(reason);
        }
        port.refuse(Queue::Send, status);
    }

    /// The oldest descriptor at the device, if there is one.
    pub(super) fn oldest_sent(&self, port: &Port) -> Option<Sent> {
        let number = port.completed(Queue::Send);
        (number != self.sent).then(|| self.sends[(number % WINDOW) as usize])
    }

    /// Gives a descriptor to the device. An error is its status.
    fn post(&mut self, port: &Port, entry: &Entry) -> Result<Step, u32> {
        let out = descriptor::outgoing(port, entry, READ_LEVELS).map_err(|fault| fault.status)?;
        let opcode = out.operation.opcode();
        let is_send = out.operation == Operation::Send;
        let sent = Sent {
            opcode,
            notice: is_send || out.flagged,
            flagged: !is_send && out.flagged,
        };
        let mut key = 0;
        if !is_send && out.length > 0 {
            match self.target(&out) {
                Target::Key(found) => key = found,
                Target::Asked => return Ok(Step::Wait),
                Target::Refused => return Ok(self.refuse_rdma(port, sent)),
            }
        }
        if sent.notice
            && let Some(copies) = &self.copies
            && !copies.has_credit()
        {
            // Unreliable: without room at the peer the message is lost, not the connection.
            if !self.is_oldest(port) {
                return Ok(Step::Wait);
            }
            self.sent = self.sent.wrapping_add(1);
            port.complete(Queue::Send, opcode, None);
            return Ok(Step::Done);
        }
        let is_read = out.operation == Operation::Read;
        let pieces = Pieces::of_send(&self.tag, &out.segments, out.length, is_read, self.room);
        let pieces = match pieces {
            Err(Trouble::TooMany) => self.bounce(&out),
            other => other,
        };
        let pieces = pieces.map_err(|_| VIP_STATUS_PROTECTION_ERROR | opcode)?;
        let posted = match is_send {
            true => self.submit_send(port, &out, pieces),
            false => self.submit_rdma(port, &out, pieces, key, sent),
        };
        if posted.is_ok() {
            self.sends[(self.sent % WINDOW) as usize] = sent;
            if sent.notice
                && let Some(copies) = &mut self.copies
            {
                copies.use_credit();
            }
            return Ok(Step::Posted);
        }
        self.bounces.remove(&(true, self.sent));
        let error = posted.err().and_then(|error| error.raw_os_error());
        // Its queue is full: completions make room.
        if error != Some(libc::ENOMEM) {
            let why = std::io::Error::from_raw_os_error(error.unwrap_or(0));
            crate::say(
                VIPL_LOG_ERROR,
                &format!("the device does not take a send: {why}"),
            );
            self.close(Reason::Lost);
            port.lose(false);
        }
        Ok(Step::Wait)
    }

    /// Writes the head of a message: immediate data travels with its flag, and without it where that is asked for.
    #[inline(always)]
    fn head(&self, port: &Port, flagged: bool, immediate: u32, length: u32, flags: u32) -> ibv_sge {
        let is_carried = flagged || port.options() & VIPL_OPTION_CARRY_IMMEDIATE != 0;
        let head = Head {
            immediate: if is_carried { immediate } else { 0 },
            flags: flags | if flagged { FLAGGED } else { 0 },
            length,
            zero: 0,
        };
        self.scratch.put(self.sent, head);
        self.scratch.head(self.sent)
    }

    fn head_of(&self, port: &Port, out: &Outgoing, flags: u32) -> ibv_sge {
        self.head(port, out.flagged, out.immediate, out.length, flags)
    }

    fn submit_send(&self, port: &Port, out: &Outgoing, mut pieces: Pieces) -> std::io::Result<()> {
        let list = pieces.with_head(self.head_of(port, out, 0));
        let mut work = request(self.sent, IBV_WR_SEND, list);
        work.send_flags = IBV_SEND_SIGNALED | fence(out);
        // SAFETY: one request, with a list that lives as long.
        unsafe { self.pair.post_send(&mut work) }
    }

    /// An RDMA operation; a Write is followed by its last bytes and by its notice, each a request of its own.
    fn submit_rdma(
        &self,
        port: &Port,
        out: &Outgoing,
        mut pieces: Pieces,
        key: u32,
        sent: Sent,
    ) -> std::io::Result<()> {
        let is_read = out.operation == Operation::Read;
        let splits = self.splits && !is_read && out.length > LAST;
        let mut tail = match splits {
            true => pieces.split_off(LAST),
            false => Pieces::new(),
        };
        let mut head = Pieces::new();
        let code = if is_read {
            IBV_WR_RDMA_READ
        } else {
            IBV_WR_RDMA_WRITE
        };
        let mut data = request(self.sent, code, pieces.data());
        data.remote_addr = out.remote.address;
        data.rkey = key;
        data.send_flags = fence(out);
        let mut last = request(self.sent, IBV_WR_RDMA_WRITE, tail.data());
        last.remote_addr = out
            .remote
            .address
            .wrapping_add(u64::from(out.length))
            .wrapping_sub(LAST.into());
        last.rkey = key;
        let mut notice;
        let mut end = &mut data;
        if splits {
            end.next = &raw mut last;
            end = &mut last;
        }
        if sent.flagged {
            notice = request(
                self.sent,
                IBV_WR_SEND,
                head.with_head(self.head_of(port, out, NOTICE)),
            );
            end.next = &raw mut notice;
            end = &mut notice;
        }
        // The device completes them in order.
        end.send_flags |= IBV_SEND_SIGNALED;
        // SAFETY: up to three requests, which live as long as their lists.
        unsafe { self.pair.post_send(&mut data) }
    }

    /// A buffer for a descriptor with more segments than the device has.
    #[cold]
    fn bounce(&mut self, out: &Outgoing) -> Result<Pieces, Trouble> {
        let bytes = out.length as usize;
        let access = IBV_ACCESS_LOCAL_WRITE;
        let buffer =
            Registered::new(self.tag.domain(), bytes, access).map_err(|_| Trouble::TooMany)?;
        if out.operation != Operation::Read {
            counters().copied(bytes);
            let to = buffer.pages().base();
            out.segments.pieces(0, bytes, |at, from, length| {
                // SAFETY: inside the buffer; faults are caught.
                unsafe { guard::copy(to.wrapping_add(at), from, length) }
            })?;
        }
        let piece = ibv_sge {
            addr: buffer.pages().address(),
            length: out.length,
            lkey: buffer.memory().local_key(),
        };
        self.bounces.insert((true, self.sent), buffer);
        Ok(Pieces::one(piece))
    }

    /// The key for the peer's memory, from what is known or from the peer's table.
    fn target(&mut self, out: &Outgoing) -> Target {
        let (admits, right) = match out.operation {
            Operation::Read => (self.peer_admits_read, VIPL_REGION_RDMA_READ),
            _ => (self.peer_admits_write, VIPL_REGION_RDMA_WRITE),
        };
        let (handle, base) = (out.remote.handle, out.remote.address);
        let length = u64::from(out.length);
        let place = handle as usize % KEYS;
        if !admits {
            return Target::Refused;
        }
        if let Some(key) = self.keys[place].permits(handle, base, length, right) {
            return Target::Key(key);
        }
        match self.lookup {
            Lookup::Asked => return Target::Asked,
            Lookup::Found(known) if known == handle => {
                self.lookup = Lookup::None;
                let found = self.scratch.key();
                if found.handle == handle {
                    self.keys[place] = found;
                }
                let key = found.permits(handle, base, length, right);
                return key.map_or(Target::Refused, Target::Key);
            }
            _ => {}
        }
        let mut list = [self.scratch.key_room()];
        let mut work = request(0, IBV_WR_RDMA_READ, &mut list);
        work.wr_id = own::LOOKUP | u64::from(handle);
        work.send_flags = IBV_SEND_SIGNALED;
        work.remote_addr = self.peer.table.wrapping_add(Tag::offset(handle));
        work.rkey = self.peer.table_key;
        // SAFETY: one request, with a list that lives as long. Without room for it, completions make some.
        if unsafe { self.pair.post_send(&mut work) }.is_ok() {
            self.lookup = Lookup::Asked;
        }
        Target::Asked
    }

    /// The peer does not permit the RDMA of the next descriptor (E9, E10, E13).
    #[cold]
    fn refuse_rdma(&mut self, port: &Port, sent: Sent) -> Step {
        if !self.is_oldest(port) {
            return Step::Wait;
        }
        let opcode = sent.opcode;
        if port.is_reliable() {
            let reason = Reason::Refused {
                opcode,
                notice: sent.flagged,
            };
            self.fail_send(port, reason, VIP_STATUS_RDMA_PROT_ERROR | opcode);
        } else {
            // Only the peer learns of it.
            self.own.refused = match sent.flagged {
                true => self.own.refused.wrapping_add(1 << 16),
                false => self.own.refused & !0xffff | self.own.refused.wrapping_add(1) & 0xffff,
            };
            self.exchange.publish(&self.own);
            self.sent = self.sent.wrapping_add(1);
            port.complete(Queue::Send, opcode, None);
        }
        Step::Done
    }

    /// A request of the send queue has completed, which is no descriptor or has failed.
    pub(super) fn take_send(&mut self, port: &Port, number: u64, status: u32) {
        if status != IBV_WC_SUCCESS {
            self.send_failed(port, number, status);
        } else if number & own::LOOKUP != 0 {
            self.lookup = Lookup::Found(number as u32);
        }
    }

    /// The oldest descriptor at the device is complete.
    #[inline(always)]
    pub(super) fn complete_send(&mut self, port: &Port) {
        let Some(sent) = self.oldest_sent(port) else {
            return;
        };
        if sent.notice {
            self.messages = self.messages.wrapping_add(1);
        }
        if !self.bounces.is_empty() && !self.unbounce(port, sent) {
            return self.fail_taken(port, VIP_STATUS_PROTECTION_ERROR | sent.opcode);
        }
        port.complete(Queue::Send, sent.opcode, None);
    }

    /// Copies what an RDMA Read has put into a buffer. False: the application's memory has gone.
    #[cold]
    fn unbounce(&mut self, port: &Port, sent: Sent) -> bool {
        let number = port.completed(Queue::Send);
        let Some(buffer) = self.bounces.remove(&(true, number)) else {
            return true;
        };
        if sent.opcode != VIP_STATUS_OP_RDMA_READ {
            return true;
        }
        let entry = port.outstanding(Queue::Send, number);
        let Some(Ok(out)) = entry.map(|entry| descriptor::outgoing(port, &entry, READ_LEVELS))
        else {
            return false;
        };
        let bytes = (out.length as usize).min(buffer.pages().bytes());
        let from = buffer.pages().base();
        counters().copied(bytes);
        let copied = out.segments.pieces(0, bytes, |at, to, length| {
            // SAFETY: inside the buffer; faults are caught.
            unsafe { guard::copy(to, from.wrapping_add(at), length) }
        });
        copied.is_ok()
    }

    /// The oldest descriptor at the device fails.
    #[cold]
    fn fail_taken(&mut self, port: &Port, status: u32) {
        if port.is_reliable() {
            self.close(Reason::Lost);
        }
        port.refuse(Queue::Send, status);
    }

    /// The device reports an error. The codes of devices differ, so what the descriptor and the peer say counts more.
    #[cold]
    fn send_failed(&mut self, port: &Port, number: u64, status: u32) {
        if status == IBV_WC_WR_FLUSH_ERR || self.own.state == state::CLOSED {
            return self.doubt();
        }
        if let Some(record) = self.exchange.update() {
            self.peer = record;
        }
        if self.peer.state == state::CLOSED {
            self.ended = true;
            return;
        }
        if number & (own::LOOKUP | own::OTHER) != 0 || !port.is_reliable() {
            self.close(Reason::Lost);
            return port.lose(false);
        }
        let Some(sent) = self.oldest_sent(port) else {
            return;
        };
        let opcode = sent.opcode;
        let (reason, bit) = match status {
            IBV_WC_RNR_RETRY_EXC_ERR => (Reason::NoReceive, unreceived(port)),
            IBV_WC_REM_ACCESS_ERR => {
                let reason = Reason::Refused {
                    opcode,
                    notice: sent.flagged,
                };
                (reason, VIP_STATUS_RDMA_PROT_ERROR)
            }
            // The peer's receive was too short or otherwise wrong, of which its side tells, too.
            IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_OP_ERR => (Reason::Lost, unreceived(port)),
            IBV_WC_RETRY_EXC_ERR => (Reason::Lost, VIP_STATUS_TRANSPORT_ERROR),
            // The device cannot read or write the application's memory.
            _ => (Reason::Lost, VIP_STATUS_PROTECTION_ERROR),
        };
        self.close(reason);
        port.refuse(Queue::Send, bit | opcode);
    }
}

#[inline(always)]
fn fence(out: &Outgoing) -> u32 {
    if out.fenced { IBV_SEND_FENCE } else { 0 }
}
