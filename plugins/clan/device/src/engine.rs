//! Sends between two VIs of this host. What happens when something is wrong is the error table of the
//! specification, §6.4.

use vipl_abi::*;
use vipl_clan_proto::vi::{SMALL, end, news};
use vipl_rules::descriptor::Operation;

use crate::complete::{Outcome, Placed};
use crate::descriptor::Outgoing;
use crate::offer::PATIENCE_NS;
use crate::pair::Pair;
use crate::vm::pieces;

impl Pair<'_> {
    /// Processes the send queue, a bounded part of it. True: there was something.
    pub(crate) fn pump(&mut self, messages: u32, bytes: usize) -> bool {
        let mut worked = self.hear_fetches(PATIENCE_NS);
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

    /// Processes the next send, [`CHUNK`] bytes at most; gives how many. None: it waits until those before it
    /// have been fetched.
    fn process(&mut self) -> Option<usize> {
        let (done, total) = self.from.moved;
        let found = self.from.outgoing(self.from.next_send(), self.tools);
        if let Ok(outgoing) = &found
            && self.offer(outgoing)
        {
            return Some(outgoing.length as usize);
        }
        if self.from.offered > 0 {
            self.from.held = true;
            return None;
        }
        match found {
            Err(status) => self.sender_error(status),
            // A transfer that is under way does not change its length.
            Ok(outgoing) if done > 0 && outgoing.length != total => {
                self.sender_error(VIP_STATUS_LENGTH_ERROR | outgoing.operation.opcode());
            }
            Ok(outgoing) => match outgoing.operation {
                Operation::Send => return Some(self.send(&outgoing)),
                Operation::Write => return Some(self.write(&outgoing)),
                Operation::Read => return Some(self.read(&outgoing)),
            },
        }
        Some(0)
    }

    /// Whether a fault was no fault but the end of a process: then nobody's descriptor tells of it. The
    /// connection rests until the agent says what has become of the process.
    pub(crate) fn is_orphaned(&mut self) -> bool {
        let gone = self.from.process.is_gone() || self.to.process.is_gone();
        if gone {
            self.withdraw();
            self.from.partner = None;
            self.to.partner = None;
            self.from.orphan(self.tools);
            self.to.orphan(self.tools);
        }
        gone
    }

    fn send(&mut self, outgoing: &Outgoing) -> usize {
        let Some(line) = self.to.pages.receive_doorbell(self.to.receives) else {
            self.nothing_posted(VIP_STATUS_OP_SEND);
            return 0;
        };
        let incoming = match self.to.incoming(&line, Some(outgoing.length), self.tools) {
            Ok(incoming) if u64::from(outgoing.length) <= incoming.capacity => incoming,
            Ok(_) => {
                self.cannot_receive(VIP_STATUS_LENGTH_ERROR, VIP_STATUS_OP_SEND);
                return 0;
            }
            Err(status) => {
                self.cannot_receive(status, VIP_STATUS_OP_SEND);
                return 0;
            }
        };
        let (bytes, last) = self.chunk(outgoing.length);
        if !outgoing.inline && self.gather(bytes).is_err() {
            self.sender_error(VIP_STATUS_PROTECTION_ERROR);
            return 0;
        }
        let outcome = self.outcome(outgoing);
        let offset = self.from.moved.0;
        if !last {
            self.tools.pieces.clear();
            pieces(&mut self.tools.pieces, &self.tools.into, offset, bytes);
            let data = &self.tools.bounce[..bytes];
            if self.to.process.write(data, &self.tools.pieces) != bytes {
                self.cannot_receive(VIP_STATUS_PROTECTION_ERROR, VIP_STATUS_OP_SEND);
                return bytes;
            }
            self.from.moved = (offset + bytes as u32, outgoing.length);
            return bytes;
        }
        if bytes <= SMALL && offset == 0 && self.to.takes_inline() {
            self.to.complete_receive(self.tools, outcome, bytes);
        } else {
            let placed = self
                .to
                .place_last(self.tools, &incoming, offset, bytes, outcome);
            if placed == Placed::Fault {
                self.refused(VIP_STATUS_OP_SEND, end::TOLD);
                return bytes;
            }
        }
        self.from.complete_send(self.tools, VIP_STATUS_OP_SEND);
        bytes
    }

    /// E1, E2, E3: the descriptor tells; on the reliable levels the connection ends.
    #[cold]
    pub(crate) fn sender_error(&mut self, status: u32) {
        if self.is_orphaned() {
            return;
        }
        let begun = self.from.moved.0;
        if self.from.is_unreliable() && begun > 0 {
            self.cut_short(status & VIP_STATUS_OP_MASK, begun);
        }
        self.from.complete_send(self.tools, status);
        if !self.from.is_unreliable() {
            self.end(end::TOLD, end::LOST);
        }
    }

    /// Ends the connection, for these reasons at its two sides.
    pub(crate) fn end(&mut self, here: u32, there: u32) {
        self.withdraw();
        self.from.die(self.tools, here);
        self.to.die(self.tools, there);
    }

    /// Unreliable: a part of the message is there already (spec §6.2).
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
            VIP_STATUS_OP_RDMA_WRITE => self.to.raise(self.tools, news::CUT),
            _ => {}
        }
    }

    /// E6, E11: the partner has no receive descriptor for this message.
    #[cold]
    pub(crate) fn nothing_posted(&mut self, opcode: u32) {
        if self.to.is_unreliable() {
            self.to.raise(self.tools, news::EMPTY);
        }
        self.refused(opcode, end::EMPTY);
    }

    /// E7, E8: the receive descriptor tells.
    #[cold]
    pub(crate) fn cannot_receive(&mut self, error: u32, opcode: u32) {
        if self.is_orphaned() {
            return;
        }
        let outcome = Outcome {
            status: error | VIP_STATUS_OP_RECEIVE,
            length: 0,
            immediate: 0,
        };
        self.to.complete_receive(self.tools, outcome, 0);
        self.refused(opcode, end::TOLD);
    }

    /// A message that the partner could not receive, and what the partner is told; the sender's part.
    #[cold]
    fn refused(&mut self, opcode: u32, reason: u32) {
        if self.is_orphaned() {
            return;
        }
        let error = vipl_rules::receive_failed(self.from.terms.reliability);
        self.from.complete_send(self.tools, error | opcode);
        if !self.from.is_unreliable() {
            self.end(end::TOLD, reason);
        }
    }
}
