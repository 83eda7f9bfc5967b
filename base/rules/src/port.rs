//! The plug-in's view of the host's VI.

use std::cell::UnsafeCell;
use std::ffi::c_int;

use vipl_abi::*;
use vipl_plugin_abi::*;

use crate::host::Host;
use crate::region;

mod transfer;

/// One VI during one operation; the host holds its lock. It is the host's structure itself, so that a reference to it is
/// all that an operation passes on. The host changes the structure when the plug-in calls it.
#[repr(transparent)]
pub struct Port(UnsafeCell<vipl_vi>);

/// One of the two work queues of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Send queue.
    Send,
    /// Receive queue.
    Recv,
}

/// One posted descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The program's descriptor.
    pub descriptor: *mut VIP_DESCRIPTOR,
    /// Memory handle given at the post.
    pub memory: u32,
}

impl Port {
    /// The view of a VI.
    ///
    /// # Safety
    /// `vi` is the argument of an operation, and the view is used within that operation only.
    #[inline(always)]
    pub unsafe fn new<'a>(vi: *mut vipl_vi) -> &'a Port {
        // SAFETY: valid, as asked of the caller; the layout is the same.
        unsafe { &*vi.cast() }
    }

    /// The host's structure.
    #[inline(always)]
    pub fn vi(&self) -> &vipl_vi {
        // SAFETY: valid and locked during the operation.
        unsafe { &*self.0.get() }
    }

    /// The NIC.
    #[inline(always)]
    pub fn nic(&self) -> &vipl_nic {
        // SAFETY: a VI's NIC is open.
        unsafe { &*self.vi().nic }
    }

    /// Whether the VI is still connected; `fail` ends that.
    #[inline(always)]
    pub fn is_connected(&self) -> bool {
        self.vi().state == VIP_VI_STATE::VIP_STATE_CONNECTED as u32
    }

    #[inline(always)]
    fn queue(&self, queue: Queue) -> *mut vipl_queue {
        // SAFETY: valid and locked during the operation; only addresses are made.
        unsafe {
            match queue {
                Queue::Send => &raw mut (*self.0.get()).send,
                Queue::Recv => &raw mut (*self.0.get()).recv,
            }
        }
    }

    /// Descriptors posted so far, wrapping.
    #[inline(always)]
    pub fn posted(&self, queue: Queue) -> u32 {
        // SAFETY: valid and locked during the operation.
        unsafe { (*self.queue(queue)).posted }
    }

    /// Descriptors completed so far, wrapping.
    #[inline(always)]
    pub fn completed(&self, queue: Queue) -> u32 {
        // SAFETY: valid and locked during the operation.
        unsafe { (*self.queue(queue)).completed }
    }

    /// The posted entry with this number, between `completed` and `posted`.
    #[inline(always)]
    pub fn entry(&self, queue: Queue, number: u32) -> Entry {
        // SAFETY: masked, so inside the ring, which exists since something was posted. Each field is
        // loaded by itself: the host has just stored it so, and one wide load would have to wait.
        unsafe {
            let queue = &*self.queue(queue);
            let place = queue.entries.add((number & queue.mask) as usize);
            Entry {
                descriptor: (&raw const (*place).descriptor).read_volatile(),
                memory: (&raw const (*place).memory).read_volatile(),
            }
        }
    }

    /// Whether the host wants to hear of completions on this queue.
    #[inline(always)]
    pub fn wants_signal(&self, queue: Queue) -> bool {
        // SAFETY: valid and locked during the operation.
        unsafe { (*self.queue(queue)).signal != 0 }
    }

    /// Completes the oldest descriptor that is not complete. `length` and `immediate` are `None` where
    /// the program's own values stay. False: the descriptor's memory is not accessible or not registered
    /// any more, the connection was broken (E16), and the operation must end.
    #[inline(always)]
    pub fn complete(&self, queue: Queue, status: u32, data: Option<(u32, u32)>) -> bool {
        let entry = self.entry(queue, self.completed(queue));
        self.complete_entry(queue, entry, status, data)
    }

    /// The same, for a caller that has the entry at hand.
    #[inline(always)]
    pub fn complete_entry(
        &self,
        queue: Queue,
        entry: Entry,
        status: u32,
        data: Option<(u32, u32)>,
    ) -> bool {
        if self.nic().options & VIPL_OPTION_CHECK_DESCRIPTOR != 0 && !self.covers(entry) {
            self.descriptor_gone(queue, entry, status);
            return false;
        }
        let at = entry.descriptor.cast::<u8>();
        let status = status | VIP_STATUS_DONE;
        // SAFETY: a posted descriptor belongs to the provider; faults are caught.
        let written = unsafe {
            match data {
                Some((length, immediate)) => vipl_guard::complete(at, immediate, length, status),
                None => vipl_guard::store_status(at, status),
            }
        };
        if written.is_err() {
            self.descriptor_gone(queue, entry, status);
            return false;
        }
        self.account(queue, status);
        true
    }

    /// The descriptor's own region must still be there (strict mode).
    #[cold]
    fn covers(&self, entry: Entry) -> bool {
        let base = entry.descriptor.addr() as u64;
        region::is_local(self.nic(), entry.memory, base, 32, self.vi().ptag)
    }

    #[inline(always)]
    fn account(&self, queue: Queue, status: u32) {
        let place = self.queue(queue);
        // SAFETY: valid and locked during the operation; the entry is inside the ring.
        unsafe {
            let entry = (*place)
                .entries
                .add(((*place).completed & (*place).mask) as usize);
            (*entry).status = status;
            (*place).completed = (*place).completed.wrapping_add(1);
            if (*place).signal != 0 {
                (Host::get().table().completed)(self.0.get(), place);
            }
        }
    }

    #[cold]
    fn descriptor_gone(&self, queue: Queue, entry: Entry, status: u32) {
        let opcode = if queue == Queue::Recv {
            VIP_STATUS_OP_RECEIVE
        } else {
            status & VIP_STATUS_OP_MASK
        };
        self.fail(
            VIP_ERROR_CODE::VIP_ERROR_COMP_PROT as c_int,
            opcode,
            entry.descriptor,
        );
    }

    /// Raises an asynchronous error; the VI stays as it is.
    #[cold]
    pub fn raise(&self, code: VIP_ERROR_CODE, opcode: u32) {
        // SAFETY: within an operation.
        unsafe {
            (Host::get().table().raise)(self.0.get(), code as c_int, opcode, std::ptr::null_mut())
        };
    }

    /// Breaks the connection; `cause` is the number of an asynchronous error or a `VIPL_CAUSE_*`. The
    /// host passes the descriptor's address on and does not follow it.
    #[cold]
    #[allow(clippy::not_unsafe_ptr_arg_deref)]
    pub fn fail(&self, cause: c_int, opcode: u32, descriptor: *mut VIP_DESCRIPTOR) {
        // SAFETY: within an operation.
        unsafe { (Host::get().table().fail)(self.0.get(), cause, opcode, descriptor) };
    }
}
