//! Transfers with the rules of the specification built in, for plug-ins that process one descriptor at a time: each
//! is read, checked, copied and completed, or completed with the error that the rules demand (spec §5.7, §6.4).

use std::ffi::c_int;

use vipl_abi::*;
use vipl_plugin_abi::{VIPL_CAUSE_DISCONNECTED, VIPL_CAUSE_REPORTED, VIPL_OPTION_CARRY_IMMEDIATE};

use crate::port::{Port, Queue};
use crate::posted::{self, Outgoing, Segments};

impl Port {
    /// The oldest send that is not complete, read and checked. What breaks a rule is completed with its error
    /// (E1 to E3). `None`: nothing is left, or the connection has ended. `read_levels` are the reliability levels on
    /// which RDMA Read works.
    #[inline]
    pub fn next_send(&self, read_levels: u16) -> Option<Outgoing> {
        while self.is_connected() && self.completed(Queue::Send) != self.posted(Queue::Send) {
            let entry = self.entry(Queue::Send, self.completed(Queue::Send));
            match posted::outgoing(self, &entry, read_levels) {
                Ok(outgoing) => return Some(outgoing),
                Err(fault) => self.refuse(Queue::Send, fault.status),
            }
        }
        None
    }

    /// The segments of the receive descriptor for a message of this length. `None`: there is none, or it breaks a
    /// rule; the program is told (E6 to E8), and the message is to be dropped.
    #[inline]
    pub fn next_receive(&self, length: u32) -> Option<Segments> {
        if !self.is_connected() {
            return None;
        }
        let number = self.completed(Queue::Recv);
        if number == self.posted(Queue::Recv) {
            self.no_receive();
            return None;
        }
        let entry = self.entry(Queue::Recv, number);
        let status = match posted::incoming(self, &entry, Some(length)) {
            Ok(segments) if u64::from(length) <= segments.total() => return Some(segments),
            Ok(_) => VIP_STATUS_LENGTH_ERROR,
            Err(fault) => fault.status,
        };
        self.refuse(Queue::Recv, status | VIP_STATUS_OP_RECEIVE);
        None
    }

    /// The immediate data of a send as it travels, and the bit that the status of the receive gets.
    #[inline(always)]
    pub fn carried(&self, outgoing: &Outgoing) -> (u32, u32) {
        if outgoing.flagged {
            (outgoing.immediate, VIP_STATUS_IMMEDIATE)
        } else if self.nic().options & VIPL_OPTION_CARRY_IMMEDIATE != 0 {
            (outgoing.immediate, 0)
        } else {
            (0, 0)
        }
    }

    /// Breaks the connection because the peer has gone, in good order or not.
    #[cold]
    pub fn lose(&self, orderly: bool) {
        let lost = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as c_int;
        let cause = if orderly {
            VIPL_CAUSE_DISCONNECTED
        } else {
            lost
        };
        self.fail(cause, 0, std::ptr::null_mut());
    }

    /// E6.
    #[cold]
    fn no_receive(&self) {
        let code = VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY;
        if self.vi().reliability == VIP_SERVICE_UNRELIABLE {
            self.raise(code, VIP_STATUS_OP_RECEIVE);
        } else {
            let none = std::ptr::null_mut();
            self.fail(code as c_int, VIP_STATUS_OP_RECEIVE, none);
        }
    }

    /// Completes the oldest descriptor with an error; on the reliable levels that ends the connection.
    #[cold]
    pub fn refuse(&self, queue: Queue, status: u32) {
        let data = (queue == Queue::Recv).then_some((0, 0));
        if self.complete(queue, status, data) && self.vi().reliability != VIP_SERVICE_UNRELIABLE {
            self.fail(VIPL_CAUSE_REPORTED, 0, std::ptr::null_mut());
        }
    }

    /// Copies bytes of a message, from `offset` on, out of the program's memory. False: an address was bad, and the
    /// descriptor has been refused; `opcode` is its operation.
    ///
    /// # Safety
    /// `to` has room for `bytes`.
    #[inline]
    pub unsafe fn gather(
        &self,
        opcode: u32,
        segments: &Segments,
        offset: u32,
        to: *mut u8,
        bytes: u32,
    ) -> bool {
        let copied = segments.pieces(offset, bytes as usize, |at, program, length| {
            // SAFETY: within the room, as asked of the caller; faults are caught.
            unsafe { vipl_guard::copy(to.wrapping_add(at), program, length) }
        });
        if copied.is_err() {
            self.refuse(Queue::Send, VIP_STATUS_PROTECTION_ERROR | opcode);
        }
        copied.is_ok()
    }

    /// The same, into the program's memory, for a receive.
    ///
    /// # Safety
    /// `from` has `bytes` bytes.
    #[inline]
    pub unsafe fn scatter(
        &self,
        segments: &Segments,
        offset: u32,
        from: *const u8,
        bytes: u32,
    ) -> bool {
        let copied = segments.pieces(offset, bytes as usize, |at, program, length| {
            // SAFETY: as asked of the caller; the program's memory is registered, and faults are caught.
            unsafe { vipl_guard::copy(program, from.wrapping_add(at), length) }
        });
        if copied.is_err() {
            let status = VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RECEIVE;
            self.refuse(Queue::Recv, status);
        }
        copied.is_ok()
    }
}
