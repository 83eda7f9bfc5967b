//! Completion queues and event queues, and the descriptors that a program may sleep on.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::Shared;
use crate::fi::{fi_info, fid};
use crate::slab::Slab;

/// A pointer of the program's, which the engine hands back and never follows.
#[derive(Debug)]
pub(crate) struct Opaque<T>(pub *mut T);

impl<T> Clone for Opaque<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Opaque<T> {}

impl<T> PartialEq for Opaque<T> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

// SAFETY: the engine does not follow it.
unsafe impl<T> Send for Opaque<T> {}

impl<T> Opaque<T> {
    pub(crate) const NULL: Opaque<T> = Opaque(std::ptr::null_mut());
}

impl<T> Default for Opaque<T> {
    fn default() -> Self {
        Self::NULL
    }
}

/// The program's pointer for one operation.
pub(crate) type Context = Opaque<c_void>;

/// A descriptor that is readable while a queue has something.
pub(crate) struct Wake {
    fd: OwnedFd,
    raised: bool,
}

impl Wake {
    pub(crate) fn new() -> Option<Wake> {
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: new, and ours.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Some(Wake { fd, raised: false })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn raise(&mut self) {
        if !self.raised {
            self.raised = true;
            let _off = vipl_sys::cancel::Off::new();
            let one = 1u64;
            // SAFETY: eight bytes; a counter of 1 cannot overflow.
            unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
        }
    }

    pub(crate) fn lower(&mut self) {
        if self.raised {
            self.raised = false;
            let _off = vipl_sys::cancel::Off::new();
            let mut count = 0u64;
            // SAFETY: room for eight bytes; the descriptor does not block.
            unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
        }
    }
}

/// One completed operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub context: Context,
    pub flags: u64,
    pub len: usize,
    pub data: u64,
    /// 0, or an error number of libfabric.
    pub error: i32,
    /// Bytes that found no room.
    pub missing: usize,
    pub tag: u64,
}

/// One event.
pub(crate) struct Event {
    pub kind: u32,
    pub fid: Opaque<fid>,
    pub info: Opaque<fi_info>,
    pub data: Vec<u8>,
    /// 0, or an error number of libfabric.
    pub error: i32,
}

/// What a queue consists of.
pub(crate) trait Entry: Sized {
    /// What a queue of this kind remembers between two reads.
    type Reading;

    /// 0, or an error number of libfabric.
    fn error(&self) -> i32;

    /// The queues of this kind.
    fn queues(shared: &mut Shared) -> &mut Slab<Queue<Self>>;
}

/// How a program reads a completion queue.
pub(crate) struct Reading {
    /// Bytes of an entry in the program's format.
    pub entry_bytes: usize,
    /// The program has just taken the last entry. `ofi_rxm` then reads once more before it hands the entry on, and the
    /// answer is that there is none.
    pub emptied: bool,
}

impl Entry for Completion {
    type Reading = Reading;

    fn error(&self) -> i32 {
        self.error
    }

    fn queues(shared: &mut Shared) -> &mut Slab<Queue<Self>> {
        &mut shared.completions
    }
}

impl Entry for Event {
    /// Data of the last error that was read.
    type Reading = Vec<u8>;

    fn error(&self) -> i32 {
        self.error
    }

    fn queues(shared: &mut Shared) -> &mut Slab<Queue<Self>> {
        &mut shared.events
    }
}

/// A completion queue or an event queue: what the program has not read yet, and who waits for more.
pub(crate) struct Queue<T: Entry> {
    pub entries: VecDeque<T>,
    pub reading: T::Reading,
    wake: Option<Wake>,
    /// A sleeping thread shall return though there may be no entry: see `fi_cq_signal`.
    nudged: bool,
    /// Threads that sleep until there is an entry.
    sleepers: u32,
    /// A program may sleep on the descriptor until there is an entry: it has called fi_trywait, and read nothing since.
    watched: bool,
}

impl<T: Entry> Queue<T> {
    pub(crate) fn new(wake: Option<Wake>, reading: T::Reading) -> Queue<T> {
        Queue {
            entries: VecDeque::with_capacity(64),
            reading,
            wake,
            nudged: false,
            sleepers: 0,
            watched: false,
        }
    }

    /// The descriptor to sleep on.
    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.wake.as_ref().map(Wake::fd)
    }

    #[inline]
    pub(crate) fn push(&mut self, entry: T) {
        self.entries.push_back(entry);
        self.raise();
    }

    /// Wakes sleeping threads.
    pub(crate) fn nudge(&mut self) {
        self.nudged = true;
        self.raise();
    }

    /// Takes the nudge.
    pub(crate) fn take_nudge(&mut self) -> bool {
        std::mem::take(&mut self.nudged)
    }

    #[inline]
    fn raise(&mut self) {
        if let Some(wake) = &mut self.wake {
            wake.raise();
        }
    }

    /// After entries were taken, or before a sleep: the descriptor is readable only while there is something.
    #[inline]
    pub(crate) fn lower(&mut self) {
        if self.entries.is_empty()
            && !self.nudged
            && let Some(wake) = &mut self.wake
        {
            wake.lower();
        }
    }

    /// Takes the oldest entry if it is an error.
    pub(crate) fn take_error(&mut self) -> Option<T> {
        if self.entries.front()?.error() == 0 {
            return None;
        }
        let failed = self.entries.pop_front();
        self.lower();
        failed
    }

    /// The program has read the queue.
    #[inline]
    pub(crate) fn was_read(&mut self) {
        self.watched = false;
    }

    /// The program may sleep on the descriptor from now on; false if there is an entry.
    pub(crate) fn watch(&mut self) -> bool {
        self.take_nudge();
        self.lower();
        self.watched = true;
        self.entries.is_empty()
    }

    /// A thread begins to sleep.
    pub(crate) fn sleep(&mut self) {
        self.sleepers += 1;
    }

    /// A thread no longer sleeps.
    pub(crate) fn wake_up(&mut self) {
        self.sleepers -= 1;
    }

    /// Whether a thread sleeps.
    #[cfg(test)]
    pub(crate) fn has_sleepers(&self) -> bool {
        self.sleepers > 0
    }

    /// Whether a thread waits for an entry, and has not been woken yet.
    pub(super) fn is_watched(&mut self) -> bool {
        self.watched &= self.entries.is_empty() && !self.nudged;
        self.watched || self.sleepers > 0
    }
}
