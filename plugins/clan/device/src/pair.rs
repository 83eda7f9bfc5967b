//! Two connected VIs of this host, one of which sends.

use vipl_abi::*;
use vipl_clan_proto::message::flag;

use crate::complete::Outcome;
use crate::descriptor::Outgoing;
use crate::vi::{CHUNK, Tools, Vi};
use crate::vm::{Fault, pieces};

/// A VI that sends, and its partner.
pub(crate) struct Pair<'a> {
    pub(crate) from: &'a mut Vi,
    pub(crate) to: &'a mut Vi,
    pub(crate) tools: &'a mut Tools,
}

impl Pair<'_> {
    /// Bytes of the next chunk, and whether it is the last one. The last one has eight bytes at least, if
    /// there are so many.
    pub(crate) fn chunk(&self, total: u32) -> (usize, bool) {
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
    pub(crate) fn gather(&mut self, bytes: usize) -> Result<(), Fault> {
        let tools = &mut *self.tools;
        tools.pieces.clear();
        pieces(&mut tools.pieces, &tools.out, self.from.moved.0, bytes);
        self.from
            .process
            .read(&tools.pieces, &mut tools.bounce[..bytes])
    }

    /// The immediate data that the receiver finds.
    pub(crate) fn immediate(&self, outgoing: &Outgoing) -> u32 {
        let carried = self.from.has(flag::CARRY_IMMEDIATE) && self.to.has(flag::CARRY_IMMEDIATE);
        if outgoing.flagged || carried {
            outgoing.immediate
        } else {
            0
        }
    }

    /// What the receiver of a message finds.
    pub(crate) fn outcome(&self, outgoing: &Outgoing) -> Outcome {
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
