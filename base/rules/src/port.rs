//! The plug-in's view of the host's VI.

use std::cell::UnsafeCell;
use std::ffi::c_int;

use vipl_abi::*;
use vipl_plugin_abi::*;

use crate::host::Host;
use crate::refusal::Refusal;
use crate::region::Table;

mod transfer;

pub use transfer::{Room, Source};

/// One VI during one operation; the host holds its lock. It is the host's structure itself, so that a reference to it is
/// all that an operation passes on. The host changes the structure when the plug-in calls it, so the accessors return
/// values.
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
    descriptor: *mut VIP_DESCRIPTOR,
    memory: u32,
    number: u32,
}

impl Entry {
    /// A descriptor that was not taken from a queue.
    ///
    /// # Safety
    /// The application has posted it, and it is not complete.
    pub unsafe fn new(descriptor: *mut VIP_DESCRIPTOR, memory: u32, number: u32) -> Entry {
        Entry {
            descriptor,
            memory,
            number,
        }
    }

    /// The application's descriptor.
    #[inline(always)]
    pub fn descriptor(&self) -> *mut VIP_DESCRIPTOR {
        self.descriptor
    }

    /// Memory handle given at the post.
    #[inline(always)]
    pub fn memory(&self) -> u32 {
        self.memory
    }

    /// Its number on its queue: that many were posted before it, wrapping.
    #[inline(always)]
    pub fn number(&self) -> u32 {
        self.number
    }
}

/// Attributes of the VI and of its NIC.
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

    /// The NIC.
    #[inline(always)]
    fn nic(&self) -> &vipl_nic {
        // SAFETY: a VI's NIC is open, and the host does not change the structure.
        unsafe { &*(*self.0.get()).nic }
    }

    /// Number of the VI within its NIC.
    #[inline(always)]
    pub fn index(&self) -> u32 {
        // SAFETY: valid and locked during the operation, as in all accessors below.
        unsafe { (*self.0.get()).index }
    }

    /// Its protection tag, or `VIPL_PTAG_ANY`.
    #[inline(always)]
    pub fn ptag(&self) -> u32 {
        // SAFETY: as in `index`.
        unsafe { (*self.0.get()).ptag }
    }

    /// Its reliability level, one `VIP_SERVICE_*` bit.
    #[inline(always)]
    pub fn reliability(&self) -> u16 {
        // SAFETY: as in `index`.
        unsafe { (*self.0.get()).reliability }
    }

    /// Whether an error ends its connection: on each level but Unreliable.
    #[inline(always)]
    pub fn is_reliable(&self) -> bool {
        self.reliability() != VIP_SERVICE_UNRELIABLE
    }

    /// Largest message in bytes.
    #[inline(always)]
    pub fn max_transfer(&self) -> u64 {
        // SAFETY: as in `index`.
        unsafe { (*self.0.get()).max_transfer_size }
    }

    /// Whether the peer may write by RDMA.
    #[inline(always)]
    pub fn rdma_write(&self) -> bool {
        // SAFETY: as in `index`.
        unsafe { (*self.0.get()).rdma_write != 0 }
    }

    /// Whether the peer may read by RDMA.
    #[inline(always)]
    pub fn rdma_read(&self) -> bool {
        // SAFETY: as in `index`.
        unsafe { (*self.0.get()).rdma_read != 0 }
    }

    /// Segments of one descriptor.
    #[inline(always)]
    pub fn segments_max(&self) -> u32 {
        self.nic().segments_max
    }

    /// `VIPL_OPTION_*` of the NIC.
    #[inline(always)]
    pub fn options(&self) -> u32 {
        self.nic().options
    }

    /// The regions of the NIC.
    #[inline(always)]
    pub fn regions(&self) -> Table<'_> {
        let nic = self.nic();
        // SAFETY: the host's table of an open NIC, with a power of two of entries.
        unsafe { Table::new(nic.regions, nic.region_count) }
    }

    /// Whether the VI may use this range of the application's memory.
    #[inline(always)]
    pub fn is_local(&self, handle: u32, base: u64, length: u64) -> bool {
        self.regions().is_local(handle, base, length, self.ptag())
    }

    /// Whether the VI is still connected; `fail` ends that.
    #[inline(always)]
    pub fn is_connected(&self) -> bool {
        // SAFETY: as in `index`.
        unsafe { (*self.0.get()).state == VIP_VI_STATE::VIP_STATE_CONNECTED as u32 }
    }
}

/// The work queues.
impl Port {
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

    /// The oldest descriptor that is not complete.
    #[inline(always)]
    pub fn oldest(&self, queue: Queue) -> Option<Entry> {
        let number = self.completed(queue);
        // SAFETY: posted and not complete.
        (number != self.posted(queue)).then(|| unsafe { self.entry(queue, number) })
    }

    /// The descriptor with this number, if it is posted and not complete: for several descriptors in progress.
    #[inline(always)]
    pub fn outstanding(&self, queue: Queue, number: u32) -> Option<Entry> {
        let (posted, completed) = (self.posted(queue), self.completed(queue));
        let there = number.wrapping_sub(completed) < posted.wrapping_sub(completed);
        // SAFETY: posted and not complete.
        there.then(|| unsafe { self.entry(queue, number) })
    }

    /// The same without the check.
    ///
    /// # Safety
    /// The descriptor with this number is posted and not complete.
    #[inline(always)]
    pub unsafe fn entry(&self, queue: Queue, number: u32) -> Entry {
        // SAFETY: masked, so inside the ring, which exists since something was posted. The descriptor is
        // loaded by itself: the host has just stored it so, and one wide load would have to wait.
        unsafe {
            let place = self.place(queue, number);
            Entry {
                descriptor: (&raw const (*place).descriptor).read_volatile(),
                memory: (*place).memory,
                number,
            }
        }
    }

    /// The place of a number in the ring.
    ///
    /// # Safety
    /// The ring exists: something was posted.
    #[inline(always)]
    unsafe fn place(&self, queue: Queue, number: u32) -> *mut vipl_entry {
        // SAFETY: masked, so inside the ring.
        unsafe {
            let queue = &*self.queue(queue);
            queue.entries.add((number & queue.mask) as usize)
        }
    }

    /// Whether the host is to be notified of completions on this queue.
    #[inline(always)]
    pub fn wants_signal(&self, queue: Queue) -> bool {
        // SAFETY: valid and locked during the operation.
        unsafe { (*self.queue(queue)).signal != 0 }
    }

    /// Completes the oldest descriptor that is not complete. `data` is Length and ImmediateData; with `None` the
    /// application's own values stay. False: the descriptor's memory is not accessible or not registered any more, the
    /// connection was broken (E16), and the operation must end.
    #[inline(always)]
    pub fn complete(&self, queue: Queue, status: u32, data: Option<(u32, u32)>) -> bool {
        match self.oldest(queue) {
            // SAFETY: the oldest one.
            Some(entry) => unsafe { self.complete_entry(queue, entry, status, data) },
            None => nothing_posted(),
        }
    }

    /// The same, for a caller that has the entry at hand.
    ///
    /// # Safety
    /// It is the oldest descriptor of the queue that is not complete.
    #[inline(always)]
    pub unsafe fn complete_entry(
        &self,
        queue: Queue,
        entry: Entry,
        status: u32,
        data: Option<(u32, u32)>,
    ) -> bool {
        let descriptor = entry.descriptor;
        if self.options() & VIPL_OPTION_CHECK_DESCRIPTOR != 0 && !self.covers_oldest(queue) {
            self.descriptor_gone(queue, descriptor, status);
            return false;
        }
        let at = descriptor.cast::<u8>();
        let status = status | VIP_STATUS_DONE;
        // SAFETY: a posted descriptor belongs to the provider; faults are caught.
        let written = unsafe {
            match data {
                Some((length, immediate)) => vipl_guard::complete(at, immediate, length, status),
                None => vipl_guard::store_status(at, status),
            }
        };
        if written.is_err() {
            self.descriptor_gone(queue, descriptor, status);
            return false;
        }
        self.account(queue, status);
        true
    }

    /// The region of the oldest descriptor itself must still be there (strict mode). The entry is read again, so that
    /// callers need not keep what only this mode asks for.
    #[cold]
    fn covers_oldest(&self, queue: Queue) -> bool {
        self.oldest(queue)
            .is_some_and(|entry| self.is_local(entry.memory, entry.descriptor.addr() as u64, 32))
    }

    #[inline(always)]
    fn account(&self, queue: Queue, status: u32) {
        // SAFETY: valid and locked during the operation; the entry is inside the ring.
        unsafe {
            (*self.place(queue, self.completed(queue))).status = status;
            let queue = self.queue(queue);
            (*queue).completed = (*queue).completed.wrapping_add(1);
            if (*queue).signal != 0 {
                (Host::of_operation().table().completed)(self.0.get(), queue);
            }
        }
    }

    #[cold]
    fn descriptor_gone(&self, queue: Queue, descriptor: *mut VIP_DESCRIPTOR, status: u32) {
        let opcode = match queue {
            Queue::Recv => VIP_STATUS_OP_RECEIVE,
            Queue::Send => status & VIP_STATUS_OP_MASK,
        };
        let cause = VIP_ERROR_CODE::VIP_ERROR_COMP_PROT as c_int;
        self.fail(cause, opcode, descriptor);
    }
}

/// Errors.
impl Port {
    /// Raises an asynchronous error; the VI stays as it is.
    #[cold]
    pub fn raise(&self, code: VIP_ERROR_CODE, opcode: u32) {
        // SAFETY: within an operation.
        unsafe {
            let raise = Host::of_operation().table().raise;
            raise(self.0.get(), code as c_int, opcode, std::ptr::null_mut());
        }
    }

    /// Has the log say which RDMA operation was refused, and which check failed. Nothing else happens: before [`raise`](Self::raise),
    /// [`fail`](Self::fail) or a completion with an error, which report it to the application.
    #[cold]
    pub fn refused(&self, refusal: &Refusal) {
        // SAFETY: within an operation.
        let host = unsafe { Host::of_operation().table() };
        if host.size <= std::mem::offset_of!(vipl_host, refused) {
            return;
        }
        let (
            Refusal {
                at_target, right, ..
            },
            range,
        ) = (*refusal, &refusal.range);
        // A process of 32 bits may have left anything in the upper half (spec §2.4).
        let address = match at_target {
            true => vipl_guard::own_address(range.address),
            false => range.address,
        };
        let (handle, bytes) = (range.handle, range.length.into());
        // SAFETY: within an operation.
        unsafe { (host.refused)(self.0.get(), at_target, right, handle, address, bytes) };
    }

    /// Breaks the connection; `cause` is the number of an asynchronous error or a `VIPL_CAUSE_*`. The
    /// host passes the descriptor's address on and does not follow it.
    #[cold]
    #[allow(clippy::not_unsafe_ptr_arg_deref)]
    pub fn fail(&self, cause: c_int, opcode: u32, descriptor: *mut VIP_DESCRIPTOR) {
        // SAFETY: within an operation.
        unsafe { (Host::of_operation().table().fail)(self.0.get(), cause, opcode, descriptor) };
    }
}

/// Logs a bug of the plug-in: it completes a descriptor that was not posted.
#[cold]
fn nothing_posted() -> bool {
    Host::get().log(
        VIPL_LOG_ERROR,
        "a plug-in completes a descriptor that was not posted",
    );
    false
}
