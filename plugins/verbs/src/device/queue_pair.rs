//! A reliable connection of the device.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Completions, Device, Domain, check, made};
use crate::ibv::*;

/// Timeout of an acknowledgement: 4.096 µs times two to this power, 537 ms. With [`RETRIES`] a peer that is silent is
/// given up after 3.2 s on rxe and 3.8 s by the specification, which lets devices take up to four times as long; a link
/// that is down for a second is survived. It must exceed [`RECEIVE_TIMER`], because rxe counts both at once.
const ACKNOWLEDGEMENT: u8 = 17;
/// How often a message is sent again. 7 would be for ever on rxe.
const RETRIES: u8 = 6;
/// How long a peer without a receive asks to wait: 10.24 ms in the table of the InfiniBand specification.
const RECEIVE_TIMER: u8 = 18;
/// How often a message is sent again for want of a receive: inside the 100 ms of spec §6.3. 7 would be for ever.
const RECEIVE_RETRIES: u8 = 6;
/// RDMA Reads in progress.
const READS: u8 = 4;
/// Routers that a packet may cross.
const HOPS: u8 = 64;

/// What one side needs to know of the other to connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Address {
    /// Number of its queue pair.
    pub(crate) queue_pair: u32,
    /// Its first packet number.
    pub(crate) packet: u32,
    /// Its GID.
    pub(crate) gid: [u64; 2],
    /// Its LID, on InfiniBand.
    pub(crate) lid: u16,
    /// Its path MTU, as `ibv_mtu` counts.
    pub(crate) mtu: u8,
}

/// A queue pair, with its completion queue: one for both directions, so that there is one to poll and to arm.
pub(crate) struct QueuePair {
    raw: NonNull<ibv_qp>,
    completions: Arc<Completions>,
    domain: Arc<Domain>,
    port: u8,
    /// Posts are system calls.
    is_software: bool,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// A queue pair that accepts receives. `access` is a set of `IBV_ACCESS_*` for the peer.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        completions: Arc<Completions>,
        cap: ibv_qp_cap,
        port: u8,
        access: u32,
    ) -> io::Result<QueuePair> {
        let mut attributes = ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: completions.raw.as_ptr(),
            recv_cq: completions.raw.as_ptr(),
            srq: std::ptr::null_mut(),
            cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: valid objects.
        let raw = unsafe {
            let create = domain.device().functions.ibv_create_qp;
            made(create(domain.raw.as_ptr(), &raw mut attributes))?
        };
        let pair = QueuePair {
            raw,
            completions,
            domain: domain.clone(),
            port,
            is_software: domain.device().is_software,
        };
        let init = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: port,
            qp_access_flags: access,
            ..zeroed()
        };
        pair.modify(init, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        Ok(pair)
    }

    fn device(&self) -> &Device {
        self.domain.device()
    }

    fn modify(&self, mut attributes: ibv_qp_attr, mask: u32) -> io::Result<()> {
        let mask = (mask | IBV_QP_STATE) as i32;
        let modify = self.device().functions.ibv_modify_qp;
        // SAFETY: a valid queue pair.
        check(unsafe { modify(self.raw.as_ptr(), &raw mut attributes, mask) })
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: valid while it exists.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// Connects it: receives arrive, and sends leave. `own` has the packet number of this side; `index` is the place of
    /// this side's GID, and `None` on a subnet of InfiniBand. May wait a second for a host that does not answer.
    pub(crate) fn connect(
        &self,
        own: &Address,
        peer: &Address,
        index: Option<u8>,
    ) -> io::Result<()> {
        let mut path = zeroed::<ibv_qp_attr>().ah_attr;
        path.port_num = self.port;
        path.dlid = peer.lid;
        if let Some(index) = index {
            path.is_global = 1;
            path.grh.dgid = peer.gid;
            path.grh.sgid_index = index;
            path.grh.hop_limit = HOPS;
        }
        let receive = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: own.mtu.min(peer.mtu).into(),
            dest_qp_num: peer.queue_pair,
            rq_psn: peer.packet,
            max_dest_rd_atomic: READS,
            min_rnr_timer: RECEIVE_TIMER,
            ah_attr: path,
            ..zeroed()
        };
        let mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        self.modify(
            receive,
            mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        )?;
        let send = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: ACKNOWLEDGEMENT,
            retry_cnt: RETRIES,
            rnr_retry: RECEIVE_RETRIES,
            sq_psn: own.packet,
            max_rd_atomic: READS,
            ..zeroed()
        };
        let mask = IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
        self.modify(send, mask | IBV_QP_MAX_QP_RD_ATOMIC)
    }

    /// Ends it: the device touches no more of the application's memory, and what is posted is flushed.
    pub(crate) fn stop(&self) {
        let error = ibv_qp_attr {
            qp_state: IBV_QPS_ERR,
            ..zeroed()
        };
        // It can only fail if the device has, which tells by an event.
        let _ = self.modify(error, 0);
    }

    /// Whether data of an RDMA Write becomes visible in order of its addresses.
    pub(crate) fn is_in_order(&self) -> bool {
        let ask = self.device().functions.ibv_query_qp_data_in_order;
        // SAFETY: a valid queue pair.
        ask.is_some_and(|ask| unsafe { ask(self.raw.as_ptr(), IBV_WR_RDMA_WRITE, 0) } == 1)
    }

    /// Takes completions of both directions, as [`Completions::poll`].
    #[inline(always)]
    pub(crate) fn poll(&self, room: &mut [ibv_wc]) -> i32 {
        self.completions.poll(room)
    }

    /// Posts a chain of sends.
    ///
    /// # Safety
    /// Its requests and segments are valid during the call.
    #[inline(always)]
    pub(crate) unsafe fn post_send(&self, work: &mut ibv_send_wr) -> io::Result<()> {
        let mut bad = std::ptr::null_mut();
        let pair = self.raw.as_ptr();
        // SAFETY: as asked of the caller; the device's function is there since the device was opened.
        let error = self.uncancelled(|| unsafe {
            let post = (*(*pair).context).post_send;
            post.unwrap_unchecked()(pair, work, &raw mut bad)
        });
        if error == 0 { Ok(()) } else { check(error) }
    }

    /// Posts a receive.
    #[inline(always)]
    pub(crate) fn post_receive(&self, number: u64, segments: &mut [ibv_sge]) -> io::Result<()> {
        let mut bad = std::ptr::null_mut();
        let mut work = ibv_recv_wr {
            wr_id: number,
            next: std::ptr::null_mut(),
            sg_list: segments.as_mut_ptr(),
            num_sge: segments.len() as i32,
        };
        let pair = self.raw.as_ptr();
        // SAFETY: the request is valid during the call; the function is there as above.
        let error = self.uncancelled(|| unsafe {
            let post = (*(*pair).context).post_recv;
            post.unwrap_unchecked()(pair, &raw mut work, &raw mut bad)
        });
        check(error)
    }

    /// Software posts by a system call that is a cancellation point: the application's thread must not end here.
    #[inline(always)]
    fn uncancelled<R>(&self, post: impl FnOnce() -> R) -> R {
        if !self.is_software {
            return post();
        }
        let before = vipl_sys::cancel::disable();
        let result = post();
        // SAFETY: threads of the asynchronous type are of the deferred one inside the library, so nothing ends here.
        unsafe { vipl_sys::cancel::restore(before) };
        result
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.device().is_open() {
            // SAFETY: made once, destroyed here.
            unsafe { (self.device().functions.ibv_destroy_qp)(self.raw.as_ptr()) };
        }
    }
}
