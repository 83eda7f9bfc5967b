//! Completion queues.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use vipl_abi::*;

use crate::entry::Entry;
use crate::error::{Error, Result, check};
use crate::events::{Registrations, on_entry};
use crate::library::milliseconds;
use crate::nic::Nic;

const NOT_DONE: c_int = VIP_RETURN::VIP_NOT_DONE as c_int;
const TIMEOUT: c_int = VIP_RETURN::VIP_TIMEOUT as c_int;

/// A completion queue. A counted reference: it is destroyed when the last VI attached to it is dropped.
#[derive(Clone, Debug)]
pub struct Cq(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    nic: Nic,
    handle: VIP_CQ_HANDLE,
    done: unsafe extern "C" fn(VIP_CQ_HANDLE, *mut VIP_VI_HANDLE, *mut VIP_BOOLEAN) -> c_int,
    registrations: Registrations,
}

// SAFETY: the handle is a value, and the library is thread-safe: see `Nic`.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Cq {
    /// Creates a queue with room for this many entries: as many as descriptors will be posted on its VIs.
    ///
    /// # Errors
    /// [`Code::Resource`](crate::Code::Resource): a limit is reached.
    pub fn new(nic: &Nic, entries: u64) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        let functions = nic.functions();
        // SAFETY: a live NIC and room for the handle.
        let code =
            unsafe { (functions.VipCreateCQ)(nic.handle(), entries as VIP_ULONG, &raw mut handle) };
        check("VipCreateCQ", code).map_err(|error| error.context(format!("{entries} entries")))?;
        Ok(Self(Arc::new(Inner {
            nic: nic.clone(),
            handle,
            done: functions.VipCQDone,
            registrations: Registrations::default(),
        })))
    }

    /// The handle.
    #[must_use]
    pub fn handle(&self) -> VIP_CQ_HANDLE {
        self.0.handle
    }

    /// Takes the oldest entry off, if there is one.
    ///
    /// # Errors
    /// The library refuses.
    #[inline(always)]
    pub fn done(&self) -> Result<Option<Entry>> {
        match self.done_raw() {
            (0, entry) => Ok(Some(entry)),
            (NOT_DONE, _) => Ok(None),
            (code, _) => Err(Error::call("VipCQDone", code)),
        }
    }

    /// VipCQDone: its code, and the entry if that is VIP_SUCCESS.
    #[inline(always)]
    #[must_use]
    pub fn done_raw(&self) -> (c_int, Entry) {
        let (mut vi, mut receive) = (std::ptr::null_mut(), 0);
        // SAFETY: a live handle and room for both results.
        let code = unsafe { (self.0.done)(self.0.handle, &raw mut vi, &raw mut receive) };
        (code, Entry::new(vi, receive))
    }

    /// As [`Self::done`], but waits; without a timeout there is no limit. None after the timeout.
    ///
    /// # Errors
    /// The library refuses.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Entry>> {
        let (mut vi, mut receive) = (std::ptr::null_mut(), 0);
        let wait = self.0.nic.functions().VipCQWait;
        let timeout = milliseconds(timeout);
        // SAFETY: a live handle and room for both results.
        match unsafe { wait(self.0.handle, timeout, &raw mut vi, &raw mut receive) } {
            0 => Ok(Some(Entry::new(vi, receive))),
            NOT_DONE | TIMEOUT => Ok(None),
            code => Err(Error::call("VipCQWait", code)),
        }
    }

    /// Its file descriptor, for event loops: it becomes readable when there is an entry after [`Self::arm`].
    ///
    /// # Errors
    /// [`Code::Resource`](crate::Code::Resource): there is no descriptor or thread left;
    /// [`Error::Missing`]: another VIPL than this project's.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        let function = self.0.nic.functions().vipl_cq_fd;
        let function = function.ok_or(Error::Missing("vipl_cq_fd"))?;
        let mut fd = -1;
        // SAFETY: a live handle and room for the descriptor.
        check("vipl_cq_fd", unsafe {
            function(self.0.handle, &raw mut fd)
        })?;
        // SAFETY: the library closes it with the queue, which the result borrows.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Asks for the next event at [`Self::fd`], which must have been called before: the descriptor is unreadable until there is an
    /// entry, and readable from then on until the next call. Take entries off until there are none, arm, then poll the descriptor.
    ///
    /// # Errors
    /// [`Code::InvalidParameter`](crate::Code::InvalidParameter): [`Self::fd`] was not called; [`Code::Resource`](crate::Code::Resource): the
    /// program has closed the descriptor; [`Error::Missing`]: another VIPL than this project's.
    pub fn arm(&self) -> Result<()> {
        let arm = self.0.nic.functions().vipl_cq_arm;
        let arm = arm.ok_or(Error::Missing("vipl_cq_arm"))?;
        // SAFETY: a live handle.
        check("vipl_cq_arm", unsafe { arm(self.0.handle) })
    }

    /// Changes the room for entries.
    ///
    /// # Errors
    /// [`Code::Resource`](crate::Code::Resource): a limit is reached, or the queue has more entries now.
    pub fn resize(&self, entries: u64) -> Result<()> {
        let resize = self.0.nic.functions().VipResizeCQ;
        let resize = resize.ok_or(Error::Missing("VipResizeCQ"))?;
        // SAFETY: a live handle.
        check("VipResizeCQ", unsafe {
            resize(self.0.handle, entries as VIP_ULONG)
        })
    }

    /// Calls `handler` once, in a thread of the library, with the next entry, which is taken off. It must not
    /// panic: that ends the process. Without a call it is dropped with the queue; one that holds the queue keeps it.
    ///
    /// # Errors
    /// The library refuses.
    pub fn notify(&self, handler: impl FnOnce(Entry) + Send + 'static) -> Result<()> {
        let notify = self.0.nic.functions().VipCQNotify;
        let notify = notify.ok_or(Error::Missing("VipCQNotify"))?;
        let context = self.0.registrations.add(Box::new(handler));
        // SAFETY: a live handle; the context is taken by the call, below, or after the queue is destroyed.
        let code = unsafe { notify(self.0.handle, context, Some(on_entry)) };
        if code != 0 {
            // SAFETY: the library did not accept it, and will not call it.
            drop(unsafe { Registrations::take(context) });
        }
        check("VipCQNotify", code)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: a live handle; every VI attached to it held it and is dropped.
        let code = unsafe { (self.nic.functions().VipDestroyCQ)(self.handle) };
        // No handler is running now, except one that dropped the last reference, which has been taken.
        if code == 0 {
            self.registrations.cancel();
        }
    }
}
