//! What completion queues and event queues have in common as objects of libfabric.

use std::ffi::c_int;
use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use vipl_sys::cancel::Off;
use vipl_sys::clock::{self, Instant};

use crate::engine::{Engine, Entry, Queue};
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{code, describe};
use crate::slab::Id;

/// A queue as libfabric sees it: `F` is its public structure.
#[repr(C)]
pub(crate) struct QueueObject<F, T> {
    public: F,
    slack: Slack,
    nic: Arc<Nic>,
    id: Id,
    kind: PhantomData<T>,
}

impl<F, T: Entry> QueueObject<F, T> {
    /// Adds a queue to the engine.
    ///
    /// # Safety
    /// `out` has room for the result.
    pub(crate) unsafe fn open(nic: Arc<Nic>, queue: Queue<T>, public: F, out: *mut *mut F) {
        let id = T::queues(&mut nic.lock().shared).insert(queue);
        let object = Box::new(Self {
            public,
            slack: SLACK,
            nic,
            id,
            kind: PhantomData,
        });
        // SAFETY: the caller's promise.
        unsafe { out.write(Box::into_raw(object).cast()) };
    }

    /// # Safety
    /// `queue` is one of this kind, and open.
    pub(crate) unsafe fn of<'a>(queue: *mut fid) -> &'a Self {
        // SAFETY: the caller's promise.
        unsafe { &*queue.cast::<Self>() }
    }

    /// The queue's id in its engine.
    pub(crate) fn id(&self) -> Id {
        self.id
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        self.nic.lock()
    }

    /// The queue.
    ///
    /// # Errors
    /// EBADF: it is closed.
    #[inline]
    pub(crate) fn find<'a>(&self, engine: &'a mut Engine) -> Result<&'a mut Queue<T>, c_int> {
        T::queues(&mut engine.shared)
            .get(self.id)
            .ok_or(libc::EBADF)
    }

    /// Whether the program may sleep on the queue: there is no entry.
    pub(crate) fn may_sleep(&self) -> bool {
        let mut engine = self.lock();
        engine.progress();
        self.find(&mut engine).map_or(true, Queue::watch)
    }

    /// Calls `read` until it returns something else than EAGAIN, and sleeps before each further call; at most this many
    /// milliseconds, without limit if negative. A nudge ends the wait.
    pub(crate) fn wait(
        &self,
        timeout: c_int,
        mut read: impl FnMut() -> Result<usize, c_int>,
    ) -> Result<usize, c_int> {
        // The functions of the library below are cancellation points.
        let _off = Off::new();
        let end = u64::try_from(timeout).ok();
        let end = end.map(|timeout| Instant::now() + Duration::from_millis(timeout));
        loop {
            let result = read();
            if result != Err(libc::EAGAIN) {
                return result;
            }
            let fd = {
                let mut engine = self.lock();
                engine.arm();
                let queue = self.find(&mut engine)?;
                if queue.take_nudge() {
                    queue.lower();
                    return Err(libc::EAGAIN);
                }
                if !queue.entries.is_empty() {
                    continue;
                }
                let fd = queue.fd().ok_or(libc::EINVAL)?;
                queue.sleep();
                fd
            };
            let woken = is_readable(fd, end);
            if let Ok(queue) = self.find(&mut self.lock()) {
                queue.wake_up();
            }
            if !woken {
                return Err(libc::EAGAIN);
            }
        }
    }
}

/// Sleeps until the descriptor is readable; false: the time is over.
fn is_readable(fd: c_int, end: Option<Instant>) -> bool {
    let left = end.map(|end| end - Instant::now());
    if left.is_some_and(|left| left.is_zero()) {
        return false;
    }
    let wanted = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    clock::poll(&mut [wanted], left) != 0
}

/// `fi_control` of both kinds.
pub(crate) unsafe extern "C" fn control<F, T: Entry>(
    queue: *mut fid,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    code(|| {
        // SAFETY: libfabric's arguments, here and below.
        let queue = unsafe { QueueObject::<F, T>::of(queue) };
        let fd = queue.find(&mut queue.lock())?.fd();
        let value = match command {
            FI_GETWAIT => fd.ok_or(libc::ENODATA)?,
            FI_GETWAITOBJ => fd.map_or(FI_WAIT_NONE, |_| FI_WAIT_FD),
            _ => return Err(libc::ENOSYS),
        };
        // SAFETY: both commands fill an int.
        unsafe { argument.cast::<c_int>().write(value) };
        Ok(())
    })
}

/// `fi_close` of both kinds.
pub(crate) unsafe extern "C" fn close<F, T: Entry>(queue: *mut fid) -> c_int {
    code(|| {
        // SAFETY: made by `open`; libfabric's programs close an object once.
        let queue = unsafe { Box::from_raw(queue.cast::<QueueObject<F, T>>()) };
        T::queues(&mut queue.lock().shared).remove(queue.id);
        Ok(())
    })
}

/// `fi_cq_strerror` and `fi_eq_strerror`.
pub(crate) unsafe extern "C" fn strerror<F>(
    _: *mut F,
    error: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: libfabric's arguments.
    unsafe { describe(error, buffer, length) }
}
