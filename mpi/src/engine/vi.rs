//! The VI of an endpoint: the descriptors on its queues, and the credit that both sides grant each other.
//!
//! Sends are posted in a ring as long as the send queue; the places of the ring are those of the block's descriptors.
//! Receives are posted from the beginning, and posted again as soon as their packet has been delivered.

use std::sync::Arc;

use vipl_abi::*;

use super::block::{Block, SENDS};
use super::operation::Sent;
use crate::credit::Credit;
use crate::device::{Device, Handle};
use crate::iov::Piece;
use crate::packet::{Header, Kind, LONGEST_HEADER, SMALLEST_CHUNK};
use crate::settings::Settings;
use crate::slab::Id;

/// A packet that has arrived: its receive, its length, and the error bits of the receive's status.
#[derive(Clone, Copy)]
pub(super) struct Received {
    pub at: usize,
    pub length: usize,
    pub error: u32,
}

/// See the module.
pub(super) struct Vi {
    device: Arc<Device>,
    handle: Handle,
    block: Block,
    credit: Credit,
    /// Bytes of a receive of the peer.
    peer_chunk: usize,
    sent: [Sent; SENDS],
    /// The oldest posted send, and the place of the next one. Both wrap.
    head: usize,
    tail: usize,
    /// Posted sends whose end is reported to the program.
    reporting: usize,
}

impl Vi {
    /// Creates the VI and posts all its receives.
    pub(super) fn new(
        device: &Arc<Device>,
        settings: &Settings,
        level: VIP_RELIABILITY_LEVEL,
    ) -> Option<Vi> {
        let block = Block::new(device, settings.window as usize, settings.chunk as usize)?;
        let mut vi = Vi {
            device: device.clone(),
            handle: device.create_vi(level)?,
            block,
            credit: Credit::new(settings.window),
            peer_chunk: SMALLEST_CHUNK as usize,
            sent: [const { Sent::Nothing }; SENDS],
            head: 0,
            tail: 0,
            reporting: 0,
        };
        for at in 0..settings.window as usize {
            if !vi.post_receive(at) {
                vi.destroy();
                return None;
            }
        }
        Some(vi)
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// Makes the library return this id for the VI.
    pub(super) fn set_id(&self, id: Id) {
        self.device.set_id(self.handle, id);
    }

    /// Bytes of a receive of ours.
    pub(super) fn chunk(&self) -> usize {
        self.block.chunk()
    }

    pub(super) fn set_peer_chunk(&mut self, bytes: usize) {
        self.peer_chunk = bytes;
    }

    /// Bytes of payload in the longest packet to the peer.
    #[inline]
    pub(super) fn payload_max(&self) -> usize {
        self.peer_chunk - LONGEST_HEADER
    }

    /// Bytes in the largest RDMA descriptor.
    #[inline]
    pub(super) fn transfer_max(&self) -> usize {
        self.device.limits.transfer
    }

    /// Whether the device reads remote memory.
    #[inline]
    pub(super) fn reads(&self) -> bool {
        self.device.limits.reads
    }

    #[inline]
    pub(super) fn credit(&mut self) -> &mut Credit {
        &mut self.credit
    }

    /// Sends that may be posted now.
    #[inline]
    pub(super) fn room(&self) -> usize {
        SENDS - self.tail.wrapping_sub(self.head)
    }

    /// Whether all posted sends are done.
    pub(super) fn is_idle(&self) -> bool {
        self.head == self.tail
    }

    /// Whether the end of a posted send is reported to the program.
    #[inline]
    pub(super) fn is_reporting(&self) -> bool {
        self.reporting > 0
    }

    /// Posts the descriptor at the ring's end.
    #[inline]
    pub(super) fn post(
        &mut self,
        control: u16,
        remote: Option<(u64, u32)>,
        pieces: impl Iterator<Item = Piece>,
        sent: Sent,
    ) {
        let at = self.tail % SENDS;
        let descriptor = self.block.prepare(at, control, remote, pieces);
        self.reporting += usize::from(matches!(sent, Sent::Operation { .. }));
        self.sent[at] = sent;
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: a descriptor of ours that is not posted. An error shows in its status, when it is done.
        unsafe {
            (self.device.functions.VipPostSend)(self.handle.raw(), descriptor, self.block.handle())
        };
    }

    /// Posts an RDMA descriptor whose data is copied first.
    #[inline]
    pub(super) fn post_copied(
        &mut self,
        control: u16,
        remote: (u64, u32),
        length: usize,
        fill: impl FnOnce(&mut [u8]),
        sent: Sent,
    ) {
        let at = self.tail % SENDS;
        fill(&mut self.block.slot(at)[..length]);
        let piece = self.block.slot_piece(at, length);
        self.post(control, Some(remote), std::iter::once(piece), sent);
    }

    /// Sends a packet whose payload is in the program's memory.
    #[inline]
    pub(super) fn send(
        &mut self,
        mut header: Header,
        payload: impl Iterator<Item = Piece>,
        sent: Sent,
    ) {
        header.posted = self.credit.send();
        let at = self.tail % SENDS;
        let begin = header.write(self.block.slot(at));
        let pieces = std::iter::once(self.block.slot_piece(at, begin)).chain(payload);
        self.post(VIP_CONTROL_OP_SENDRECV, None, pieces, sent);
    }

    /// Sends a packet whose payload is copied first.
    #[inline]
    pub(super) fn send_copied(
        &mut self,
        mut header: Header,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
        sent: Sent,
    ) {
        header.posted = self.credit.send();
        let at = self.tail % SENDS;
        let slot = self.block.slot(at);
        let begin = header.write(slot);
        fill(&mut slot[begin..begin + length]);
        let piece = self.block.slot_piece(at, begin + length);
        self.post(VIP_CONTROL_OP_SENDRECV, None, std::iter::once(piece), sent);
    }

    /// Sends a control packet.
    pub(super) fn send_control(&mut self, kind: Kind, payload: &[u8], sent: Sent) {
        let fill = |to: &mut [u8]| to.copy_from_slice(payload);
        self.send_copied(Header::new(kind), payload.len(), fill, sent);
    }

    /// Grants the peer credit in a packet of its own, if it is due.
    pub(super) fn grant(&mut self) {
        if self.credit.owes() && self.credit.for_control() && self.room() > 0 {
            self.send_control(Kind::Credit, &[], Sent::Nothing);
        }
    }

    /// The oldest send that is done, and the error bits of its status.
    #[inline]
    pub(super) fn take_sent(&mut self) -> Option<(Sent, u32)> {
        if self.head == self.tail {
            return None;
        }
        let mut descriptor = std::ptr::null_mut();
        // SAFETY: accepts any handle; room for the result.
        unsafe { (self.device.functions.VipSendDone)(self.handle.raw(), &raw mut descriptor) };
        if descriptor.is_null() {
            return None;
        }
        // SAFETY: just returned by the library.
        let outcome = unsafe { self.block.outcome(descriptor) };
        let sent = std::mem::replace(&mut self.sent[self.head % SENDS], Sent::Nothing);
        self.head = self.head.wrapping_add(1);
        self.reporting -= usize::from(matches!(sent, Sent::Operation { .. }));
        Some((sent, outcome.status & VIP_STATUS_ERROR_MASK))
    }

    /// The oldest receive that is done.
    #[inline]
    pub(super) fn take_received(&mut self) -> Option<Received> {
        let mut descriptor = std::ptr::null_mut();
        // SAFETY: accepts any handle; room for the result.
        unsafe { (self.device.functions.VipRecvDone)(self.handle.raw(), &raw mut descriptor) };
        if descriptor.is_null() {
            return None;
        }
        // SAFETY: just returned by the library.
        let outcome = unsafe { self.block.outcome(descriptor) };
        Some(Received {
            at: self.block.receive_of(descriptor)?,
            length: outcome.length,
            error: outcome.status & VIP_STATUS_ERROR_MASK,
        })
    }

    /// The bytes of a packet that has arrived.
    #[inline]
    pub(super) fn packet(&self, at: usize, length: usize) -> &[u8] {
        self.block.received(at, length)
    }

    /// Posts a receive again whose packet has been delivered.
    #[inline]
    pub(super) fn post_again(&mut self, at: usize) {
        self.post_receive(at);
        self.credit.posted_again();
    }

    #[inline]
    fn post_receive(&mut self, at: usize) -> bool {
        let descriptor = self.block.prepare_receive(at);
        // SAFETY: a descriptor of ours that is not posted.
        let code = unsafe {
            (self.device.functions.VipPostRecv)(self.handle.raw(), descriptor, self.block.handle())
        };
        code == VIP_RETURN::VIP_SUCCESS as i32
    }

    pub(super) fn disconnect(&self) {
        self.device.disconnect(self.handle);
    }

    /// Collects the descriptors of a VI that is disconnected, and destroys it.
    pub(super) fn destroy(self) {
        let functions = self.device.functions;
        // SAFETY: accepts any handle; the VI is idle, and its descriptors are collected before it is destroyed.
        unsafe {
            let mut descriptor = std::ptr::null_mut();
            while (functions.VipRecvDone)(self.handle.raw(), &raw mut descriptor)
                != VIP_RETURN::VIP_NOT_DONE as i32
                && !descriptor.is_null()
            {
                descriptor = std::ptr::null_mut();
            }
            let code = (functions.VipDestroyVi)(self.handle.raw());
            if code != VIP_RETURN::VIP_SUCCESS as i32 {
                crate::libfabric::warn(|| format!("VipDestroyVi: {code}"));
            }
        }
    }
}
