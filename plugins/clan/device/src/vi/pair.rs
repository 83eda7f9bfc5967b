//! Messages between two VIs of this host. Errors follow the error table of the specification, §6.4.

mod offer;
mod rdma;

use vipl_abi::*;
use vipl_clan_proto::message::flag;
use vipl_clan_proto::vi::{RECEIVE_SEGMENTS, SMALL, end, event};
use vipl_rules::descriptor::Operation;

use super::Vi;
use crate::completions::{Outcome, Placed};
use crate::process::{Fault, pieces};
use crate::queues::{Data, Incoming, Outgoing};
use crate::tools::{CHUNK, Tools};

pub(crate) use offer::OFFERS_MAX;
use offer::PATIENCE_NS;

/// A VI that sends, and its peer.
pub(crate) struct Pair<'a> {
    from: &'a mut Vi,
    to: &'a mut Vi,
    tools: &'a mut Tools,
}

impl<'a> Pair<'a> {
    #[inline(always)]
    pub(crate) fn new(from: &'a mut Vi, to: &'a mut Vi, tools: &'a mut Tools) -> Pair<'a> {
        Pair { from, to, tools }
    }

    /// Processes a bounded part of the send queue. True: there was work.
    pub(crate) fn pump(&mut self, messages: u32, bytes: usize) -> bool {
        let mut worked = self.check_offers(PATIENCE_NS);
        let mut moved = 0;
        for _ in 0..messages {
            if !self.from.is_rung() || self.to.halted || moved >= bytes {
                break;
            }
            let Some(bytes) = self.process() else { break };
            moved += bytes;
            worked = true;
        }
        worked
    }

    /// Processes the next send, at most [`CHUNK`] bytes; returns how many. `None`: it waits until the offers before it
    /// have been fetched.
    fn process(&mut self) -> Option<usize> {
        let (done, total) = self.from.moved;
        let number = self.from.next_send();
        let found = self.from.queues.outgoing(number, self.tools);
        match &found {
            Ok(outgoing) if done > 0 && outgoing.length != total => {
                // The length of a transfer must not change after its begin.
                self.sender_error(VIP_STATUS_LENGTH_ERROR | outgoing.operation.opcode());
                Some(0)
            }
            Ok(outgoing) if outgoing.operation == Operation::Send => self.send(outgoing),
            _ if self.from.offered > 0 => self.hold(),
            Ok(outgoing) if outgoing.operation == Operation::Write => Some(self.write(outgoing)),
            Ok(outgoing) => Some(self.read(outgoing)),
            Err(status) => {
                self.sender_error(*status);
                Some(0)
            }
        }
    }

    /// The next send waits for the offers before it.
    fn hold(&mut self) -> Option<usize> {
        self.from.held = true;
        None
    }

    fn send(&mut self, outgoing: &Outgoing) -> Option<usize> {
        let may_offer = self.may_offer(outgoing);
        if self.from.offered > 0 && !may_offer {
            return self.hold();
        }
        let number = self.to.receives().wrapping_add(self.from.offered);
        let queues = &self.to.queues;
        let line = queues.pages().receive_doorbell(number);
        let Some(line) = line else {
            if self.from.offered > 0 {
                return self.hold();
            }
            self.nothing_posted(VIP_STATUS_OP_SEND);
            return Some(0);
        };
        let incoming = queues.incoming(&line, Some(outgoing.length), self.tools);
        let fits = matches!(&incoming, Ok(found) if u64::from(outgoing.length) <= found.capacity);
        if may_offer && fits && self.tools.into.len() <= RECEIVE_SEGMENTS {
            self.offer(outgoing, number);
            return Some(outgoing.length as usize);
        }
        if self.from.offered > 0 {
            return self.hold();
        }
        let error = match &incoming {
            Ok(incoming) if fits => return Some(self.deliver(outgoing, incoming)),
            Ok(_) => VIP_STATUS_LENGTH_ERROR,
            Err(error) => *error,
        };
        self.cannot_receive(error, VIP_STATUS_OP_SEND);
        Some(0)
    }

    /// Moves the next chunk of a message into the posted buffers; returns its length.
    fn deliver(&mut self, outgoing: &Outgoing, incoming: &Incoming) -> usize {
        let (bytes, last) = self.chunk(outgoing.length);
        if outgoing.segments != Data::Inline && self.gather(bytes).is_err() {
            self.sender_error(VIP_STATUS_PROTECTION_ERROR);
            return 0;
        }
        let offset = self.from.moved.0;
        if !last {
            self.tools.pieces.clear();
            pieces(&mut self.tools.pieces, &self.tools.into, offset, bytes);
            let data = &self.tools.bounce[..bytes];
            let process = self.to.queues.process();
            if process.write(data, &self.tools.pieces) != bytes {
                self.cannot_receive(VIP_STATUS_PROTECTION_ERROR, VIP_STATUS_OP_SEND);
                return bytes;
            }
            self.from.moved = (offset + bytes as u32, outgoing.length);
            return bytes;
        }
        let outcome = self.outcome(outgoing);
        if bytes <= SMALL && offset == 0 && self.to.queues.terms().takes_inline() {
            self.to.complete_receive(self.tools, outcome, bytes);
        } else {
            let Vi {
                completions,
                queues,
                ..
            } = &mut *self.to;
            let part = (offset, bytes);
            let placed = completions.place_last(queues, self.tools, incoming, part, outcome);
            if placed == Placed::Fault {
                self.refused(VIP_STATUS_OP_SEND, end::REPORTED);
                return bytes;
            }
        }
        self.from.complete_send(self.tools, VIP_STATUS_OP_SEND);
        bytes
    }

    /// Whether a fault was caused by the end of a process, so that no descriptor reports it. Both VIs halt until the
    /// agent reports how the process has exited.
    fn is_orphaned(&mut self) -> bool {
        let has_exited = |vi: &Vi| vi.queues.process().has_exited();
        let gone = has_exited(self.from) || has_exited(self.to);
        if gone {
            self.withdraw();
            self.from.peer = None;
            self.to.peer = None;
            self.from.orphan(self.tools);
            self.to.orphan(self.tools);
        }
        gone
    }

    /// E1, E2, E3: the descriptor reports it; on the reliable levels the connection ends.
    #[cold]
    fn sender_error(&mut self, status: u32) {
        if self.is_orphaned() {
            return;
        }
        let begun = self.from.moved.0;
        if self.from.queues.terms().is_unreliable() && begun > 0 {
            self.cut_short(status & VIP_STATUS_OP_MASK, begun);
        }
        self.from.complete_send(self.tools, status);
        if !self.from.queues.terms().is_unreliable() {
            self.end(end::REPORTED, end::LOST);
        }
    }

    /// Ends the connection, for these reasons at its two sides.
    fn end(&mut self, here: u32, there: u32) {
        self.withdraw();
        self.from.die(self.tools, here);
        self.to.die(self.tools, there);
    }

    /// Unreliable: a part of the message has already been placed (spec §6.2).
    fn cut_short(&mut self, opcode: u32, begun: u32) {
        match opcode {
            VIP_STATUS_OP_SEND => {
                let outcome = Outcome {
                    status: VIP_STATUS_PARTIAL_ERROR | VIP_STATUS_OP_RECEIVE,
                    length: begun,
                    immediate: 0,
                };
                self.to.complete_receive(self.tools, outcome, 0);
            }
            VIP_STATUS_OP_RDMA_WRITE => self.to.raise(self.tools, event::CUT),
            _ => {}
        }
    }

    /// E6, E11: the peer has no receive descriptor for this message.
    #[cold]
    fn nothing_posted(&mut self, opcode: u32) {
        if self.to.queues.terms().is_unreliable() {
            self.to.raise(self.tools, event::EMPTY);
        }
        self.refused(opcode, end::EMPTY);
    }

    /// E7, E8: the receive descriptor reports it.
    #[cold]
    fn cannot_receive(&mut self, error: u32, opcode: u32) {
        if self.is_orphaned() {
            return;
        }
        let outcome = Outcome {
            status: error | VIP_STATUS_OP_RECEIVE,
            length: 0,
            immediate: 0,
        };
        self.to.complete_receive(self.tools, outcome, 0);
        self.refused(opcode, end::REPORTED);
    }

    /// The peer could not receive the message; `reason` is for the peer.
    #[cold]
    fn refused(&mut self, opcode: u32, reason: u32) {
        if self.is_orphaned() {
            return;
        }
        let error = vipl_rules::receive_failed(self.from.queues.terms().reliability);
        self.from.complete_send(self.tools, error | opcode);
        if !self.from.queues.terms().is_unreliable() {
            self.end(end::REPORTED, reason);
        }
    }

    /// Length of the next chunk, and whether it is the last one, which has at least eight bytes if the message has.
    fn chunk(&self, total: u32) -> (usize, bool) {
        let left = (total - self.from.moved.0) as usize;
        if left <= CHUNK {
            (left, true)
        } else if left - CHUNK < 8 {
            (CHUNK - 8, false)
        } else {
            (CHUNK, false)
        }
    }

    /// Copies the next chunk from the sender into [`Tools::bounce`].
    fn gather(&mut self, bytes: usize) -> Result<(), Fault> {
        let tools = &mut *self.tools;
        tools.pieces.clear();
        pieces(&mut tools.pieces, &tools.out, self.from.moved.0, bytes);
        let into = &mut tools.bounce[..bytes];
        self.from.queues.process().read(&tools.pieces, into)
    }

    /// The immediate data for the receiver.
    fn immediate(&self, outgoing: &Outgoing) -> u32 {
        let carries = |vi: &Vi| vi.queues.terms().has(flag::CARRY_IMMEDIATE);
        if outgoing.flagged || carries(self.from) && carries(self.to) {
            outgoing.immediate
        } else {
            0
        }
    }

    /// The result for the receiver of a message.
    fn outcome(&self, outgoing: &Outgoing) -> Outcome {
        let flag = if outgoing.flagged {
            VIP_STATUS_IMMEDIATE
        } else {
            0
        };
        Outcome {
            status: VIP_STATUS_OP_RECEIVE | flag,
            length: outgoing.length,
            immediate: self.immediate(outgoing),
        }
    }
}
