//! VIs: endpoints with two work queues each (spec §3.4 to §3.7, §4).
//!
//! The lock of its slot, which every call takes once, guards all of a VI. The data path uses the first
//! fields.
//!
//! ```text
//!   calls (VipCreateVi ...)   post (VipPostSend ...)   wait (VipSendDone, Wait, Notify)
//!          │                        │                        │
//!          ▼                        ▼                        ▼
//!       of_nic ◀── handlers ◀── failure ──▶ complete ──▶ cq, queue (the ring and its wait queue)
//!                                              └──────▶ sample
//! ```

use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;
use vipl_sys::clock::Instant;

use kagent_proto::Attributes;
use vipl_abi::*;
use vipl_pages::layout;
use vipl_pages::record::Happened;
use vipl_plugin_abi::*;

use crate::agent::{Side, Ticket};
use crate::error::Error;
use crate::nic::Nic;
use crate::object::handle::Kind;
use crate::object::table::{Guard, Slot, Table};

mod calls;
pub(crate) mod complete;
pub(crate) mod diagnosis;
pub(crate) mod failure;
pub(crate) mod of_nic;
mod post;
mod publish;
pub(crate) mod queue;
mod sample;
pub(crate) mod state;
#[cfg(test)]
pub(crate) mod tests;
mod wait;

#[cfg(test)]
pub(crate) use calls::create_on;
pub use calls::{Query, create, destroy, query, set_attributes, set_user_data, user_data};
pub use post::{post, post_fast};
pub use queue::{Dequeued, Which};
pub use wait::{Owned, done, notify, own, wait};

use queue::WorkQueue;
use sample::Sampler;
use state::{CONNECTED, ERROR, PENDING};

pub(crate) static VIS: Table<Vi> = Table::new(Kind::Vi);

/// A pending attempt to connect a VI.
#[derive(Clone)]
pub(crate) struct Pending {
    /// Number of the call at the agent.
    pub(crate) call: u64,
    /// The ticket for its result.
    pub(crate) result: Arc<Ticket<Result<Attributes, Error>>>,
    /// The deadline.
    pub(crate) deadline: Option<Instant>,
}

impl Pending {
    /// Whether both are the same attempt, perhaps at different agents.
    pub(crate) fn is(&self, other: &Pending) -> bool {
        Arc::ptr_eq(&self.result, &other.result)
    }
}

/// One VI. Posts and polls touch four cache lines: the slot's fields for the lock's owner, and this structure
/// up to the gap.
#[repr(C)]
pub(crate) struct Vi {
    pub(crate) abi: vipl_vi,
    pub(crate) post_send: unsafe extern "C" fn(*mut vipl_vi),
    pub(crate) post_recv: unsafe extern "C" fn(*mut vipl_vi),
    progress: unsafe extern "C" fn(*mut vipl_vi),
    /// What `vipstat` sees of the data path.
    pub(crate) counts: &'static layout::Counts,
    pub(crate) handle: VIP_VI_HANDLE,
    pub(crate) send: WorkQueue,
    pub(crate) recv: WorkQueue,

    /// Its slot; set when it is made.
    slot: Option<&'static Slot<Vi>>,
    pub(crate) check_descriptor: bool,
    /// What `vipstat` sees of the rest.
    pub(crate) page: &'static layout::Vi,
    /// `None` until a descriptor has completed.
    sampler: Option<Box<Sampler>>,
    pub(crate) nic: Arc<Nic>,
    attributes: VIP_VI_ATTRIBUTES,
    user_data: VIP_PVOID,
    /// The connection; set from `attach` to `detach`.
    pub(crate) connection: Option<Side>,
    /// Whether the peer is on another host.
    pub(crate) remote: bool,
    /// The call at the agent that is to connect this VI.
    pub(crate) attempt: Option<Pending>,
    /// The peer request of this VI, until its result is taken.
    pub(crate) peer: Option<Pending>,
    /// Whether a send posted before the VI was connected has been logged.
    pub(crate) early_logged: bool,
    /// Number of connections so far, to distinguish late events from new ones.
    pub(crate) epoch: u64,
}

const _: () = assert!(Slot::<Vi>::OBJECT_AT + offset_of!(Vi, check_descriptor) <= 5 * 64);

// SAFETY: raw pointers in it are only used under the slot's lock.
unsafe impl Send for Vi {}

/// Operations of the plug-in on a locked VI.
///
/// They may call back into the host, which then creates its own `&mut Vi` from `vipl_vi.host`. Therefore none
/// of them runs while a reference to the VI exists: all pointers are derived from the slot itself, not from
/// the guard's references.
impl Guard<Vi> {
    /// The part visible to plug-ins.
    #[inline(always)]
    pub(crate) fn abi(&self) -> *mut vipl_vi {
        // The first field of the VI.
        self.as_ptr().cast()
    }

    /// Lets the plug-in process what has arrived.
    #[inline(always)]
    pub(crate) fn progress(&mut self) {
        if self.abi.state == CONNECTED {
            let progress = self.progress;
            // SAFETY: attached and locked.
            unsafe { progress(self.abi()) };
        }
    }

    /// Attaches the VI to a connection; returns the plug-in's status.
    pub(crate) fn attach(&mut self, connection: &vipl_connection) -> c_int {
        let Some(attach) = self.nic.ops.attach else {
            return VIPL_E_NOT_SUPPORTED;
        };
        // On this thread the plug-in may allocate thread-local data.
        if !vipl_sys::reserve::has_memory() {
            log::error!(target: "cm", "there is no memory left for {}", "a connection");
            return VIPL_E_RESOURCE;
        }
        // SAFETY: locked and not attached.
        unsafe { attach(self.abi(), connection) }
    }

    /// Detaches the VI from its connection.
    pub(crate) fn detach(&mut self) {
        if let Some(detach) = self.nic.ops.detach {
            // SAFETY: attached and locked.
            unsafe { detach(self.abi()) };
        }
    }

    /// Notifies the plug-in that the peer has disconnected or exited, or else processes what has arrived
    /// before.
    pub(crate) fn report_peer_gone(&mut self, orderly: bool) {
        match self.nic.ops.peer_gone {
            // SAFETY: attached and locked.
            Some(peer_gone) => unsafe { peer_gone(self.abi(), orderly) },
            None => self.progress(),
        }
    }

    /// Informs the plug-in whether a CQ or a notify request on the NIC waits for completions of this VI.
    pub(crate) fn set_watch(&mut self) {
        let on = self.recv.cq.is_some()
            || self.send.cq.is_some()
            || self.send.waiters.requests() + self.recv.waiters.requests() > 0;
        if let (Some(watch), true) = (self.nic.ops.watch, self.connection.is_some()) {
            // SAFETY: attached and locked.
            unsafe { watch(self.abi(), on) };
        }
    }

    /// Whether the peer no longer uses deregistered regions. `since` is 0 in the first call, then set by the plug-in;
    /// a call with no time left is the last one.
    pub(crate) fn quiesced(&mut self, since: &mut u64, left: Duration) -> bool {
        let left_ns = left.as_nanos() as u64;
        self.nic.ops.quiesced.is_none_or(|quiesced| {
            // SAFETY: attached and locked.
            unsafe { quiesced(self.abi(), since, left_ns) }
        })
    }
}

impl Vi {
    #[inline(always)]
    pub(crate) fn queue(&mut self, which: Which) -> (&mut vipl_queue, &mut WorkQueue) {
        match which {
            Which::Send => (&mut self.abi.send, &mut self.send),
            Which::Recv => (&mut self.abi.recv, &mut self.recv),
        }
    }

    pub(crate) fn state(&self) -> VIP_VI_STATE {
        match self.abi.state {
            CONNECTED => VIP_VI_STATE::VIP_STATE_CONNECTED,
            PENDING => VIP_VI_STATE::VIP_STATE_CONNECT_PENDING,
            ERROR => VIP_VI_STATE::VIP_STATE_ERROR,
            _ => VIP_VI_STATE::VIP_STATE_IDLE,
        }
    }

    /// The attributes of this VI for its peer.
    pub(crate) fn wire_attributes(&self) -> Attributes {
        Attributes {
            max_transfer_size: self.abi.max_transfer_size,
            qos: 0,
            reliability: self.abi.reliability,
            rdma_write: self.abi.rdma_write,
            rdma_read: self.abi.rdma_read,
            reserved: 0,
        }
    }

    /// Records an event.
    #[cold]
    pub(crate) fn happened(&self, what: Happened) {
        self.page.happened(self.nic.process.pages().tick(), what);
    }

    /// Raises an asynchronous error about this VI (table of spec §11).
    pub(crate) fn raise(&self, code: VIP_ERROR_CODE, opcode: u32, descriptor: *mut VIP_DESCRIPTOR) {
        self.page.errors.add(1);
        self.happened(Happened::Error(code as u32, opcode));
        let resource = match code {
            VIP_ERROR_CODE::VIP_ERROR_POST_DESC | VIP_ERROR_CODE::VIP_ERROR_COMP_PROT => {
                VIP_RESOURCE_CODE::VIP_RESOURCE_DESCRIPTOR
            }
            VIP_ERROR_CODE::VIP_ERROR_CATASTROPHIC => VIP_RESOURCE_CODE::VIP_RESOURCE_NIC,
            _ => VIP_RESOURCE_CODE::VIP_RESOURCE_VI,
        };
        let error = VIP_ERROR_DESCRIPTOR {
            NicHandle: self.nic.handle,
            ViHandle: self.handle,
            CQHandle: std::ptr::null_mut(),
            DescriptorPtr: descriptor,
            OpCode: opcode as VIP_ULONG,
            ResourceCode: resource,
            ErrorCode: code,
        };
        self.nic.raise(error);
    }

    fn take_attributes(&mut self, attributes: &VIP_VI_ATTRIBUTES, tag: u32) {
        self.attributes = *attributes;
        self.abi.max_transfer_size = attributes.MaxTransferSize as u64;
        self.abi.ptag = tag;
        self.abi.reliability = attributes.ReliabilityLevel;
        self.abi.rdma_write = u8::from(attributes.EnableRdmaWrite != 0);
        self.abi.rdma_read = u8::from(attributes.EnableRdmaRead != 0);
    }
}

/// The VI behind a handle, locked.
#[inline(always)]
pub(crate) fn lock(handle: VIP_VI_HANDLE) -> Result<Guard<Vi>, Error> {
    VIS.lock(handle).ok_or(Error::InvalidParameter)
}
