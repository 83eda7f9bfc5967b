//! The receive queue.

use vipl_abi::*;
use vipl_guard as guard;
use vipl_plugin_sdk::abi::VIPL_LOG_ERROR;
use vipl_plugin_sdk::descriptor;
use vipl_plugin_sdk::{Entry, Port, Queue};

use super::pieces::{Pieces, Trouble};
use super::{FLAGGED, HEAD, Link, NOTICE, Posted, WINDOW, own};
use crate::card::TRANSFER_MAX;
use crate::counters::counters;
use crate::ibv::*;
use crate::pages::Registered;
use crate::record::Reason;

impl Link {
    /// Gives posted receives to the device.
    #[inline(always)]
    pub(crate) fn post_receives(&mut self, port: &Port) {
        if self.copies.is_some() {
            return;
        }
        while !self.ended
            && self.received.wrapping_sub(port.completed(Queue::Recv)) < WINDOW
            && let Some(entry) = port.outstanding(Queue::Recv, self.received)
        {
            let (mut pieces, suspect) = self.receive_room(port, &entry);
            let number = self.received;
            self.receives[(number % WINDOW) as usize] = Posted { suspect };
            let list = pieces.with_head(self.scratch.room(number));
            if let Err(error) = self
                .pair
                .post_receive(own::RECEIVE | u64::from(number), list)
            {
                self.bounces.remove(&(false, number));
                let text = format!("the device does not take a receive: {error}");
                return crate::say(VIPL_LOG_ERROR, &text);
            }
            self.received = number.wrapping_add(1);
        }
    }

    /// Room for a message, as far as the descriptor is in order; true: as a whole it is not, and its message finds that.
    #[inline(always)]
    fn receive_room(&mut self, port: &Port, entry: &Entry) -> (Pieces, bool) {
        // Its segments are checked here, as far as a message may reach.
        let Ok(segments) = descriptor::incoming(port, entry, Some(0)) else {
            return (Pieces::new(), true);
        };
        let limit = port.max_transfer().max(TRANSFER_MAX).min(u32::MAX.into()) as u32;
        match Pieces::of_receive(&self.tag, &segments, limit, self.room) {
            Ok(pieces) => pieces,
            Err(Trouble::Protection) => (Pieces::new(), true),
            Err(Trouble::TooMany) => self.receive_buffer(segments.len(), &segments, limit),
        }
    }

    /// A buffer for a descriptor with more segments than the device has.
    #[cold]
    fn receive_buffer(
        &mut self,
        count: u16,
        segments: &descriptor::Segments,
        limit: u32,
    ) -> (Pieces, bool) {
        let lengths = (0..count).filter_map(|number| segments.get(number).ok());
        let total: u64 = lengths.map(|segment| u64::from(segment.length)).sum();
        let bytes = total.min(limit.into()) as u32;
        let access = IBV_ACCESS_LOCAL_WRITE;
        let Ok(buffer) = Registered::new(self.tag.domain(), bytes as usize, access) else {
            return (Pieces::new(), true);
        };
        let piece = ibv_sge {
            addr: buffer.pages().address(),
            length: bytes,
            lkey: buffer.memory().local_key(),
        };
        self.bounces.insert((false, self.received), buffer);
        (Pieces::one(piece), true)
    }

    /// A receive has completed.
    #[inline(always)]
    pub(super) fn take_receive(&mut self, port: &Port, status: u32, bytes: u32) {
        let number = port.completed(Queue::Recv);
        if status == IBV_WC_WR_FLUSH_ERR {
            return self.doubt();
        }
        if status != IBV_WC_SUCCESS {
            // Devices differ in their codes: the descriptor tells.
            let fault = self.fault_of(port, u32::MAX);
            return self.fail_receive(port, fault | VIP_STATUS_OP_RECEIVE);
        }
        if bytes < HEAD {
            self.close(Reason::Lost);
            return port.lose(false);
        }
        let head = self.scratch.get(number);
        let notice = head.flags & NOTICE != 0;
        let (opcode, length) = match notice {
            true => (VIP_STATUS_OP_REMOTE_RDMA_WRITE, head.length),
            false => (VIP_STATUS_OP_RECEIVE, bytes - HEAD),
        };
        if self.receives[(number % WINDOW) as usize].suspect
            && let Err(fault) = self.examine(port, number, (!notice).then_some(length))
        {
            return self.fail_receive(port, fault | opcode);
        }
        self.delivered = self.delivered.wrapping_add(1);
        let flag = if head.flags & FLAGGED != 0 {
            VIP_STATUS_IMMEDIATE
        } else {
            0
        };
        port.complete(Queue::Recv, opcode | flag, Some((length, head.immediate)));
    }

    /// Checks a descriptor again, now that its message is known, and copies that out of a buffer. `None`: nothing was
    /// placed.
    #[cold]
    fn examine(&mut self, port: &Port, number: u32, length: Option<u32>) -> Result<(), u32> {
        let buffer = self.bounces.remove(&(false, number));
        let entry = port
            .outstanding(Queue::Recv, number)
            .ok_or(VIP_STATUS_PROTECTION_ERROR)?;
        let segments = descriptor::incoming(port, &entry, length).map_err(|fault| fault.status)?;
        let (Some(buffer), Some(length)) = (buffer, length) else {
            return Ok(());
        };
        let from = buffer.pages().base();
        let bytes = (length as usize).min(buffer.pages().bytes());
        counters().copied(bytes);
        let copied = segments.pieces(0, bytes, |at, to, length| {
            // SAFETY: inside the buffer; faults are caught.
            unsafe { guard::copy(to, from.wrapping_add(at), length) }
        });
        copied.map_err(|_| VIP_STATUS_PROTECTION_ERROR)
    }

    /// What is wrong with the oldest receive for a message of this length. If nothing is, it was too short.
    #[cold]
    fn fault_of(&self, port: &Port, length: u32) -> u32 {
        let Some(entry) = port.oldest(Queue::Recv) else {
            return VIP_STATUS_PROTECTION_ERROR;
        };
        match descriptor::incoming(port, &entry, Some(length)) {
            Err(fault) => fault.status,
            Ok(_) => VIP_STATUS_LENGTH_ERROR,
        }
    }

    #[cold]
    fn fail_receive(&mut self, port: &Port, status: u32) {
        self.close(Reason::BadReceive);
        port.refuse(Queue::Recv, status);
    }
}
