//! Unreliable: messages go to receive buffers of the plug-in, and are copied or dropped on arrival, so that an error of a
//! receive does not end the connection. The receiver gives credits for its buffers; without one a message is dropped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vipl_abi::*;
use vipl_plugin_sdk::{Port, Queue};

use super::request::write_inline;
use super::{FLAGGED, HEAD, Head, Link, NOTICE, own};
use crate::counters::counters;
use crate::device::QueuePair;
use crate::ibv::*;
use crate::pages::Registered;
use crate::record::Reason;
use crate::tags::Tag;

/// Receive buffers of a VI.
const BUFFERS: u32 = 8;

pub(super) struct Copies {
    buffers: Registered,
    /// Bytes of a buffer.
    room: u32,
    /// The word that the peer writes: buffers that it has freed.
    credit: Registered,
    used: u32,
    freed: u32,
    published: u32,
}

impl Copies {
    pub(super) fn new(tag: &Arc<Tag>, transfer_max: u64, pair: &QueuePair) -> io::Result<Copies> {
        let room = (transfer_max + u64::from(HEAD)).next_multiple_of(64);
        let room = u32::try_from(room).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let bytes = room as usize * BUFFERS as usize;
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let copies = Copies {
            buffers: Registered::new(tag.domain(), bytes, IBV_ACCESS_LOCAL_WRITE)?,
            room,
            credit: Registered::new(tag.domain(), size_of::<u32>(), access)?,
            used: 0,
            freed: 0,
            published: 0,
        };
        for number in 0..BUFFERS {
            copies.post(pair, number)?;
        }
        Ok(copies)
    }

    /// Address and key of the word for the peer.
    pub(super) fn credit_word(&self) -> (u64, u32) {
        (
            self.credit.pages().address(),
            self.credit.memory().remote_key(),
        )
    }

    fn post(&self, pair: &QueuePair, number: u32) -> io::Result<()> {
        let mut list = [ibv_sge {
            addr: self.buffers.pages().address() + u64::from(number) * u64::from(self.room),
            length: self.room,
            lkey: self.buffers.memory().local_key(),
        }];
        pair.post_receive(own::RECEIVE | u64::from(number), &mut list)
    }

    pub(super) fn has_credit(&self) -> bool {
        let word = self.credit.pages().base().cast::<AtomicU32>();
        // SAFETY: the first word of the pages, which the peer's device writes.
        let credit = unsafe { &*word }.load(Ordering::Acquire);
        self.used.wrapping_sub(credit) < BUFFERS
    }

    pub(super) fn use_credit(&mut self) {
        self.used = self.used.wrapping_add(1);
    }

    /// The message in a buffer.
    fn message(&self, number: u32, length: u32) -> (Head, &[u8]) {
        // SAFETY: inside the buffers; the device does not write to this one until it is posted again.
        unsafe {
            let at = self
                .buffers
                .pages()
                .base()
                .add(number as usize * self.room as usize);
            let head = at.cast::<Head>().read_volatile();
            let data = at.add(HEAD as usize);
            (
                head,
                std::slice::from_raw_parts(data, (length - HEAD) as usize),
            )
        }
    }
}

impl Link {
    /// Takes what has arrived in a buffer: into the application's receive, or not at all.
    pub(super) fn take_copy(&mut self, port: &Port, number: u32, status: u32, bytes: u32) {
        let Some(copies) = &mut self.copies else {
            return;
        };
        if status != IBV_WC_SUCCESS {
            return self.doubt();
        }
        if number >= BUFFERS || bytes < HEAD || bytes > copies.room {
            self.close(Reason::Lost);
            return port.lose(false);
        }
        let (head, data) = copies.message(number, bytes);
        let flag = if head.flags & FLAGGED != 0 {
            VIP_STATUS_IMMEDIATE
        } else {
            0
        };
        let complete = |opcode, length| {
            port.complete(Queue::Recv, opcode | flag, Some((length, head.immediate)));
        };
        if head.flags & NOTICE != 0 {
            if port.next_notice() {
                complete(VIP_STATUS_OP_REMOTE_RDMA_WRITE, head.length);
            }
        } else if let Some(segments) = port.next_receive(data.len() as u32)
            && port.scatter(&segments, 0, data)
        {
            counters().copied(data.len());
            complete(VIP_STATUS_OP_RECEIVE, data.len() as u32);
        }
        copies.freed = copies.freed.wrapping_add(1);
        if copies.post(&self.pair, number).is_err() {
            // Without the buffer its credit must not be given.
            copies.freed = copies.freed.wrapping_sub(1);
        }
        self.delivered = self.delivered.wrapping_add(1);
    }

    /// Tells the peer of freed buffers, when half of them are.
    pub(super) fn give_credits(&mut self, port: &Port) {
        let Some(copies) = &mut self.copies else {
            return;
        };
        let ready = self.up && !self.ended && port.is_connected();
        if ready
            && copies.freed.wrapping_sub(copies.published) >= BUFFERS / 2
            && write_inline(
                &self.pair,
                &copies.freed,
                self.peer.credit,
                self.peer.credit_key,
            )
        {
            copies.published = copies.freed;
        }
    }
}
