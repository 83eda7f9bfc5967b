//! The queues to which an endpoint reports.

use super::Shared;
use super::queues::{Completion, Event, Opaque};
use super::sender::Ended;
use crate::fi::{FI_COMPLETION, FI_RECV, FI_SELECTIVE_COMPLETION, FI_TRANSMIT, fid};
use crate::slab::Id;

/// A completion queue that the endpoint is bound to.
#[derive(Clone, Default)]
pub(crate) struct Binding {
    pub queue: Option<Id>,
    /// Only operations that request it complete.
    pub selective: bool,
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Reports {
    pub sends: Binding,
    pub receives: Binding,
    pub events: Option<Id>,
    /// The object that libfabric sees, for events.
    pub fid: Opaque<fid>,
}

impl Reports {
    /// Completions go to this queue: of which operations, the flags of `fi_ep_bind` say.
    pub(crate) fn bind(&mut self, queue: Id, flags: u64) {
        for (flag, binding) in [
            (FI_TRANSMIT, &mut self.sends),
            (FI_RECV, &mut self.receives),
        ] {
            if flags & flag != 0 {
                binding.queue = Some(queue);
                binding.selective = flags & FI_SELECTIVE_COMPLETION != 0;
            }
        }
    }

    /// The end of an operation.
    #[inline]
    pub(super) fn sent(&self, ended: &Ended, shared: &mut Shared) {
        if ended.error == 0 && self.sends.selective && ended.flags & FI_COMPLETION == 0 {
            return;
        }
        let completion = Completion {
            context: ended.context,
            flags: ended.kind,
            len: 0,
            data: 0,
            error: ended.error,
            missing: 0,
            tag: 0,
        };
        shared.complete(self.sends.queue, completion);
    }

    /// The end of a receive, or data of the peer's RDMA Write.
    #[inline]
    pub(super) fn received(&self, completion: Completion, shared: &mut Shared) {
        shared.complete(self.receives.queue, completion);
    }

    /// A program whose operation was refused may try again.
    pub(super) fn nudge(&self, shared: &mut Shared) {
        shared.nudge(self.sends.queue);
    }

    /// An event of this endpoint.
    pub(super) fn event(&self, kind: u32, error: i32, data: Vec<u8>, shared: &mut Shared) {
        let event = Event {
            kind,
            fid: self.fid,
            info: Opaque::NULL,
            data,
            error,
        };
        shared.event(self.events, event);
    }

    /// Removes its events that the program has not read.
    pub(super) fn forget_events(&self, shared: &mut Shared) {
        shared.forget_events(self.events, self.fid);
    }
}
