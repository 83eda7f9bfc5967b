//! Transfers with the rules of the specification built in, for plug-ins that process one descriptor at a time: each
//! is read, checked, copied and completed, or completed with the error that the rules demand (spec §5.7, §6.4).

use std::ffi::c_int;
use std::sync::atomic::AtomicU8;

use vipl_abi::*;
use vipl_guard::Fault;
use vipl_plugin_abi::{VIPL_CAUSE_DISCONNECTED, VIPL_CAUSE_REPORTED, VIPL_OPTION_CARRY_IMMEDIATE};

use super::{Entry, Port, Queue};
use crate::posted::{self, Outgoing, Segments};

/// Memory of the plug-in that a message is copied into.
///
/// # Safety
/// The bytes may be written as long as the value exists, by raw pointers, and by others at the same time.
pub unsafe trait Room {
    /// The first byte, and how many there are.
    fn range(self) -> (*mut u8, usize);
}

/// Memory of the plug-in that a message is copied from.
///
/// # Safety
/// As for [`Room`], for reading.
pub unsafe trait Source {
    /// The first byte, and how many there are.
    fn range(self) -> (*const u8, usize);
}

// SAFETY: the slice is borrowed exclusively.
unsafe impl Room for &mut [u8] {
    fn range(self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

// SAFETY: atomics may be written by several at a time.
unsafe impl Room for &[AtomicU8] {
    fn range(self) -> (*mut u8, usize) {
        (self.as_ptr().cast_mut().cast(), self.len())
    }
}

// SAFETY: a shared slice is not written to.
unsafe impl Source for &[u8] {
    fn range(self) -> (*const u8, usize) {
        (self.as_ptr(), self.len())
    }
}

// SAFETY: atomics may be read while others write them.
unsafe impl Source for &[AtomicU8] {
    fn range(self) -> (*const u8, usize) {
        (self.as_ptr().cast(), self.len())
    }
}

impl Port {
    /// The oldest send that is not complete, read and checked. A descriptor that breaks a rule is completed with its
    /// error (E1 to E3). `None`: no send is left, or the connection has ended. `read_levels` are the reliability levels on
    /// which RDMA Read works.
    #[inline]
    pub fn next_send(&self, read_levels: u16) -> Option<Outgoing> {
        while self.is_connected() {
            let entry = self.oldest(Queue::Send)?;
            match posted::outgoing(self, &entry, read_levels) {
                Ok(outgoing) => return Some(outgoing),
                Err(fault) => self.refuse(Queue::Send, fault.status),
            }
        }
        None
    }

    /// The segments of the receive descriptor for a message of this length. `None`: there is none, or it breaks a
    /// rule; the error is reported (E6 to E8), and the message is to be dropped.
    #[inline]
    pub fn next_receive(&self, length: u32) -> Option<Segments> {
        self.receive(Some(length))
    }

    /// Whether there is a receive descriptor for the notice of an RDMA Write with immediate data. Nothing is placed
    /// into its buffers, so its segments are not checked (RDMA-04). False: as in [`next_receive`](Self::next_receive).
    #[inline]
    pub fn next_notice(&self) -> bool {
        self.receive(None).is_some()
    }

    #[inline]
    fn receive(&self, length: Option<u32>) -> Option<Segments> {
        if !self.is_connected() {
            return None;
        }
        let Some(entry) = self.oldest(Queue::Recv) else {
            self.no_receive();
            return None;
        };
        match self.check_receive(&entry, length) {
            Ok(segments) => Some(segments),
            Err(fault) => {
                self.refuse(Queue::Recv, fault.status | VIP_STATUS_OP_RECEIVE);
                None
            }
        }
    }

    /// Reads and checks a receive descriptor, also whether it has room for a message of this length; `None`: nothing is
    /// placed.
    #[inline]
    pub(crate) fn check_receive(
        &self,
        entry: &Entry,
        length: Option<u32>,
    ) -> Result<Segments, posted::Fault> {
        let segments = posted::incoming(self, entry, length)?;
        if u64::from(length.unwrap_or(0)) <= segments.total() {
            Ok(segments)
        } else {
            Err(VIP_STATUS_LENGTH_ERROR.into())
        }
    }

    /// The immediate data of a send as it travels, and the bit that the status of the receive gets.
    #[inline(always)]
    pub fn carried(&self, outgoing: &Outgoing) -> (u32, u32) {
        if outgoing.flagged {
            (outgoing.immediate, VIP_STATUS_IMMEDIATE)
        } else if self.options() & VIPL_OPTION_CARRY_IMMEDIATE != 0 {
            (outgoing.immediate, 0)
        } else {
            (0, 0)
        }
    }

    /// Breaks the connection because the peer has left, in good order or not.
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
        if self.is_reliable() {
            self.fail(code as c_int, VIP_STATUS_OP_RECEIVE, std::ptr::null_mut());
        } else {
            self.raise(code, VIP_STATUS_OP_RECEIVE);
        }
    }

    /// Completes the oldest descriptor with an error; on the reliable levels that ends the connection.
    #[cold]
    pub fn refuse(&self, queue: Queue, status: u32) {
        let data = (queue == Queue::Recv).then_some((0, 0));
        if self.complete(queue, status, data) && self.is_reliable() {
            self.fail(VIPL_CAUSE_REPORTED, 0, std::ptr::null_mut());
        }
    }

    /// Copies a part of a message, from `offset` on, out of the application's memory. False: an address is bad, or the
    /// descriptor is complete. No harm is done, and a descriptor that is the oldest one of its queue is refused; another
    /// one is the plug-in's to refuse when it is the oldest.
    #[inline]
    pub fn gather(&self, from: &Segments, offset: u32, to: impl Room) -> bool {
        let (to, bytes) = to.range();
        self.copy(from, offset, bytes, |at, application, length| {
            // SAFETY: within the room; faults are caught.
            unsafe { vipl_guard::copy(to.wrapping_add(at), application, length) }
        })
    }

    /// The same, into the application's memory.
    #[inline]
    pub fn scatter(&self, to: &Segments, offset: u32, from: impl Source) -> bool {
        let (from, bytes) = from.range();
        self.copy(to, offset, bytes, |at, application, length| {
            // SAFETY: within the source; the application's memory is registered, and faults are caught.
            unsafe { vipl_guard::copy(application, from.wrapping_add(at), length) }
        })
    }

    /// Calls `copy` for each piece of the application's memory that holds a part of a message: its place in the part,
    /// address, length.
    #[inline(always)]
    fn copy(
        &self,
        segments: &Segments,
        offset: u32,
        bytes: usize,
        copy: impl FnMut(usize, *mut u8, usize) -> Result<(), Fault>,
    ) -> bool {
        let queue = segments.queue();
        let entry = self.outstanding(queue, segments.number());
        if !entry.is_some_and(|entry| segments.are_of(&entry)) {
            return false;
        }
        let copied = segments.pieces(offset, bytes, copy);
        if copied.is_err() && segments.number() == self.completed(queue) {
            self.refuse(queue, VIP_STATUS_PROTECTION_ERROR | segments.opcode());
        }
        copied.is_ok()
    }
}
