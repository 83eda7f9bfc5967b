//! Work requests.

use super::own;
use crate::device::QueuePair;
use crate::ibv::*;

/// A work request for a descriptor. The list has to live as long.
#[inline(always)]
pub(super) fn request(number: u32, opcode: u32, list: &mut [ibv_sge]) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: number.into(),
        sg_list: list.as_mut_ptr(),
        num_sge: list.len() as i32,
        opcode,
        ..zeroed()
    }
}

/// The request of a message of one segment behind its head. It is kept, so that a post writes only what differs.
pub(super) struct Plain {
    work: ibv_send_wr,
    list: [ibv_sge; 2],
}

// SAFETY: its pointer is written anew for each post.
unsafe impl Send for Plain {}

impl Plain {
    /// `head` is the segment of any head.
    pub(super) fn new(head: ibv_sge) -> Plain {
        let mut list = [head, zeroed()];
        let mut work = request(0, IBV_WR_SEND, &mut list);
        work.send_flags = IBV_SEND_SIGNALED;
        Plain { work, list }
    }

    /// Posts it with a head at this address. False: the device does not take it.
    #[inline(always)]
    pub(super) fn post(&mut self, pair: &QueuePair, number: u32, head: u64, data: ibv_sge) -> bool {
        self.list[0].addr = head;
        self.list[1] = data;
        self.work.wr_id = number.into();
        self.work.sg_list = self.list.as_mut_ptr();
        // SAFETY: one request, with a list that lives as long.
        unsafe { pair.post_send(&mut self.work) }.is_ok()
    }
}

/// A post of the plug-in's own, of at most eight bytes that need no key.
pub(super) fn write_inline(pair: &QueuePair, bytes: &u32, address: u64, key: u32) -> bool {
    let mut list = [ibv_sge {
        addr: std::ptr::from_ref(bytes).expose_provenance() as u64,
        length: size_of::<u32>() as u32,
        lkey: 0,
    }];
    let mut work = request(0, IBV_WR_RDMA_WRITE, &mut list);
    work.wr_id = own::OTHER;
    work.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    work.remote_addr = address;
    work.rkey = key;
    // SAFETY: one request, with a list that lives as long; the bytes are copied by the call.
    unsafe { pair.post_send(&mut work) }.is_ok()
}
