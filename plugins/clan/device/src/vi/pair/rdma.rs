//! RDMA Write and Read between two VIs of this host (spec §10.2, E9 to E13): the device checks the regions of the
//! target and moves the data, without the target's application.

use vipl_abi::*;
use vipl_clan_proto::message::flag;
use vipl_clan_proto::vi::{Segment, end, event};
use vipl_plugin_abi::{VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE};
use vipl_rules::refusal::Refusal;

use super::Pair;
use crate::completions::Outcome;
use crate::process::{piece, pieces};
use crate::queues::{Outgoing, Queues};

impl Pair<'_> {
    /// The range in the memory of the target.
    fn target(&self, outgoing: &Outgoing) -> Segment {
        Segment {
            length: outgoing.length,
            ..self.to.queues.process().own(outgoing.remote)
        }
    }

    /// The target's application, and if it is `unreported` the sender's, finds in its page what was refused.
    #[cold]
    fn note_refused(&self, outgoing: &Outgoing, right: u32, unreported: bool) {
        let note = |queues: &Queues, at_target| {
            queues.pages().words().refused.set(&Refusal {
                at_target,
                right,
                range: self.target(outgoing),
            });
        };
        note(&self.to.queues, true);
        if unreported {
            note(&self.from.queues, false);
        }
    }

    pub(super) fn write(&mut self, outgoing: &Outgoing) -> usize {
        let (target, queues) = (self.target(outgoing), &self.to.queues);
        if !queues.permits(&target, flag::RDMA_WRITE, VIPL_REGION_RDMA_WRITE) {
            self.write_refused(outgoing);
            return 0;
        }
        let (bytes, last) = self.chunk(outgoing.length);
        if self.gather(bytes).is_err() {
            self.sender_error(VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RDMA_WRITE);
            return 0;
        }
        let offset = self.from.moved.0;
        let to = target.address.wrapping_add(u64::from(offset));
        self.tools.pieces.clear();
        // Applications poll the last eight bytes of the range, which become visible last.
        let flag_bytes = if last { bytes.min(8) } else { 0 };
        let first = bytes - flag_bytes;
        self.tools.pieces.push(piece(to, first));
        self.tools
            .pieces
            .push(piece(to.wrapping_add(first as u64), flag_bytes));
        let data = &self.tools.bounce[..bytes];
        if self.to.queues.process().write(data, &self.tools.pieces) != bytes {
            self.write_refused(outgoing);
            return bytes;
        }
        if !last {
            self.from.moved = (offset + bytes as u32, outgoing.length);
            return bytes;
        }
        if outgoing.flagged && !self.complete_target(outgoing, None) {
            return bytes;
        }
        self.from
            .complete_send(self.tools, VIP_STATUS_OP_RDMA_WRITE);
        bytes
    }

    /// Completes the receive descriptor that the immediate data of an RDMA Write uses, with `error` if there is one.
    /// False: that was not possible, and the send has completed with an error.
    fn complete_target(&mut self, outgoing: &Outgoing, error: Option<u32>) -> bool {
        let Some(line) = self.to.queues.pages().receive_doorbell(self.to.receives()) else {
            self.nothing_posted(VIP_STATUS_OP_RDMA_WRITE);
            return false;
        };
        if let Err(status) = self.to.queues.incoming(&line, None, self.tools) {
            self.cannot_receive(status, VIP_STATUS_OP_RDMA_WRITE);
            return false;
        }
        let opcode = VIP_STATUS_OP_REMOTE_RDMA_WRITE;
        let outcome = match error {
            None => Outcome {
                status: opcode | VIP_STATUS_IMMEDIATE,
                length: outgoing.length,
                immediate: outgoing.immediate,
            },
            Some(error) => Outcome {
                status: opcode | error,
                length: 0,
                immediate: outgoing.immediate,
            },
        };
        self.to.complete_receive(self.tools, outcome, 0);
        true
    }

    /// E9 and E10.
    #[cold]
    fn write_refused(&mut self, outgoing: &Outgoing) {
        if self.is_orphaned() {
            return;
        }
        let opcode = VIP_STATUS_OP_RDMA_WRITE;
        let terms = self.from.queues.terms();
        // The send of Reliable Delivery completes with success, so that nothing else says why the connection ends.
        let unreported = !terms.is_unreliable() && !terms.waits_for_reception();
        self.note_refused(outgoing, VIPL_REGION_RDMA_WRITE, unreported);
        let posted = self
            .to
            .queues
            .pages()
            .receive_doorbell(self.to.receives())
            .is_some();
        let by_descriptor = outgoing.flagged && posted;
        if by_descriptor && !self.complete_target(outgoing, Some(VIP_STATUS_RDMA_PROT_ERROR)) {
            return;
        }
        if self.from.queues.terms().is_unreliable() {
            if !by_descriptor {
                self.to.raise(self.tools, event::REFUSED);
            }
            self.from.complete_send(self.tools, opcode);
            return;
        }
        let (status, here) = if self.from.queues.terms().waits_for_reception() {
            (VIP_STATUS_RDMA_PROT_ERROR | opcode, end::REPORTED)
        } else {
            // A write is complete when its data has been sent; the loss is reported afterwards.
            (opcode, end::LOST)
        };
        self.from.complete_send(self.tools, status);
        let there = if by_descriptor {
            end::REPORTED
        } else {
            end::WRITE_REFUSED
        };
        self.end(here, there);
    }

    pub(super) fn read(&mut self, outgoing: &Outgoing) -> usize {
        let opcode = VIP_STATUS_OP_RDMA_READ;
        let (bytes, last) = self.chunk(outgoing.length);
        let offset = self.from.moved.0;
        let (target, queues) = (self.target(outgoing), &self.to.queues);
        let from = target.address.wrapping_add(u64::from(offset));
        let permitted = queues.permits(&target, flag::RDMA_READ, VIPL_REGION_RDMA_READ);
        let into = &mut self.tools.bounce[..bytes];
        if !permitted || queues.process().read(&[piece(from, bytes)], into).is_err() {
            if permitted && self.is_orphaned() {
                return 0;
            }
            self.note_refused(outgoing, VIPL_REGION_RDMA_READ, false);
            let status = VIP_STATUS_RDMA_PROT_ERROR | opcode;
            self.from.complete_send(self.tools, status);
            self.end(end::REPORTED, end::READ_REFUSED);
            return 0;
        }
        self.tools.pieces.clear();
        pieces(&mut self.tools.pieces, &self.tools.out, offset, bytes);
        let data = &self.tools.bounce[..bytes];
        if self.from.queues.process().write(data, &self.tools.pieces) != bytes {
            self.sender_error(VIP_STATUS_PROTECTION_ERROR | opcode);
            return bytes;
        }
        if last {
            self.from.complete_send(self.tools, opcode);
        } else {
            self.from.moved = (offset + bytes as u32, outgoing.length);
        }
        bytes
    }
}
