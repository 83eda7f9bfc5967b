//! Completion queues and event queues: what the program has not read yet, and the descriptors that it may sleep on.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::fi::{fi_info, fid};

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
}

/// A completion queue.
pub(crate) struct Completions {
    pub entries: VecDeque<Completion>,
    pub wake: Option<Wake>,
    /// The program has just taken the last entry. `ofi_rxm` then asks once more before it hands the entry on, and is told
    /// at once that there is none.
    pub emptied: bool,
    /// Somebody who sleeps shall look again though there may be nothing: see `fi_cq_signal`.
    pub nudged: bool,
    /// Threads that sleep until there is an entry.
    pub sleepers: u32,
    /// A program may sleep on the descriptor until there is an entry: it has called fi_trywait, and read nothing since.
    pub watched: bool,
}

impl Completions {
    pub(crate) fn new(wake: Option<Wake>) -> Completions {
        Completions {
            entries: VecDeque::with_capacity(256),
            wake,
            emptied: false,
            nudged: false,
            sleepers: 0,
            watched: false,
        }
    }

    /// Whether somebody sleeps, and has not been woken yet.
    pub(super) fn is_watched(&mut self) -> bool {
        self.watched &= self.entries.is_empty() && !self.nudged;
        self.watched || self.sleepers > 0
    }

    #[inline]
    pub(crate) fn push(&mut self, completion: Completion) {
        self.entries.push_back(completion);
        if let Some(wake) = &mut self.wake {
            wake.raise();
        }
    }

    /// Wakes whoever sleeps.
    pub(crate) fn nudge(&mut self) {
        self.nudged = true;
        if let Some(wake) = &mut self.wake {
            wake.raise();
        }
    }

    /// After entries were taken, or before a sleep.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.entries.is_empty()
            && !self.nudged
            && let Some(wake) = &mut self.wake
        {
            wake.lower();
        }
    }

    /// Takes the nudge.
    pub(crate) fn take_nudge(&mut self) -> bool {
        std::mem::take(&mut self.nudged)
    }
}

/// One event.
pub(crate) struct Event {
    pub kind: u32,
    pub fid: Opaque<fid>,
    pub info: Opaque<fi_info>,
    pub data: Vec<u8>,
    pub error: i32,
}

/// An event queue.
pub(crate) struct Events {
    pub entries: VecDeque<Event>,
    pub wake: Wake,
    /// Data of the last error that was read.
    pub error_data: Vec<u8>,
    /// See [`Completions`].
    pub sleepers: u32,
    pub watched: bool,
}

impl Events {
    pub(crate) fn new(wake: Wake) -> Events {
        Events {
            entries: VecDeque::new(),
            wake,
            error_data: Vec::new(),
            sleepers: 0,
            watched: false,
        }
    }

    /// See [`Completions::is_watched`].
    pub(super) fn is_watched(&mut self) -> bool {
        self.watched &= self.entries.is_empty();
        self.watched || self.sleepers > 0
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.entries.push_back(event);
        self.wake.raise();
    }

    /// Takes the oldest event.
    pub(crate) fn take(&mut self) -> Option<Event> {
        let event = self.entries.pop_front();
        if self.entries.is_empty() {
            self.wake.lower();
        }
        event
    }

    /// Forgets the events of an object that closes.
    pub(crate) fn forget(&mut self, fid: Opaque<fid>) {
        self.entries.retain(|event| event.fid != fid);
        if self.entries.is_empty() {
            self.wake.lower();
        }
    }
}
