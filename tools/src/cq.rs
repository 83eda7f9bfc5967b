//! Completion queues.

use std::ffi::{c_int, c_ulong};
use std::rc::Rc;

use vipl_abi::*;

use crate::descriptor::Descriptor;
use crate::nic::{Nic, check};
use crate::{Error, Result};

/// A completion queue, destroyed when the last VI attached to it is gone.
#[derive(Clone)]
pub struct Cq(Rc<Inner>);

struct Inner {
    nic: Nic,
    handle: VIP_CQ_HANDLE,
    done: unsafe extern "C" fn(VIP_CQ_HANDLE, *mut VIP_VI_HANDLE, *mut VIP_BOOLEAN) -> c_int,
    receive_done: unsafe extern "C" fn(VIP_VI_HANDLE, *mut *mut VIP_DESCRIPTOR) -> c_int,
}

impl Cq {
    /// Creates a queue with room for this many entries.
    ///
    /// # Errors
    /// The library refuses.
    pub fn new(nic: &Nic, entries: u64) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        let functions = nic.functions();
        // SAFETY: a live NIC and room for the handle.
        let code =
            unsafe { (functions.VipCreateCQ)(nic.handle(), entries as c_ulong, &raw mut handle) };
        check("VipCreateCQ", code).map_err(|error| error.context(format!("{entries} entries")))?;
        Ok(Self(Rc::new(Inner {
            nic: nic.clone(),
            handle,
            done: functions.VipCQDone,
            receive_done: functions.VipRecvDone,
        })))
    }

    pub(crate) fn handle(&self) -> VIP_CQ_HANDLE {
        self.0.handle
    }

    /// Takes one entry off: whether there was one.
    ///
    /// # Errors
    /// The library refuses.
    #[inline(always)]
    pub fn done(&self) -> Result<bool> {
        let (mut vi, mut receive) = (std::ptr::null_mut(), 0);
        // SAFETY: a live handle and room for both results.
        let code = unsafe { (self.0.done)(self.0.handle, &raw mut vi, &raw mut receive) };
        match code {
            0 => Ok(true),
            code if code == VIP_RETURN::VIP_NOT_DONE as c_int => Ok(false),
            code => Err(Error::call("VipCQDone", code)),
        }
    }

    /// Takes the next received message off the VI that its entry names, if there is one. All VIs of the queue
    /// must have it for their receives only.
    ///
    /// # Errors
    /// The library refuses, or the message completed with an error.
    #[inline(always)]
    pub fn receive_done(&self) -> Result<Option<Descriptor>> {
        let (mut vi, mut receive) = (std::ptr::null_mut(), 0);
        // SAFETY: a live handle and room for both results.
        let code = unsafe { (self.0.done)(self.0.handle, &raw mut vi, &raw mut receive) };
        self.taken("VipCQDone", code, vi)
    }

    /// As `receive_done`, but waits for the next one; None after the timeout.
    ///
    /// # Errors
    /// As `receive_done`.
    pub fn receive_wait(&self, timeout_ms: u64) -> Result<Option<Descriptor>> {
        let (mut vi, mut receive) = (std::ptr::null_mut(), 0);
        let wait = self.0.nic.functions().VipCQWait;
        let timeout = timeout_ms as c_ulong;
        // SAFETY: a live handle and room for both results.
        let code = unsafe { wait(self.0.handle, timeout, &raw mut vi, &raw mut receive) };
        self.taken("VipCQWait", code, vi)
    }

    #[inline(always)]
    fn taken(
        &self,
        function: &'static str,
        code: c_int,
        vi: VIP_VI_HANDLE,
    ) -> Result<Option<Descriptor>> {
        const NOT_DONE: c_int = VIP_RETURN::VIP_NOT_DONE as c_int;
        const TIMEOUT: c_int = VIP_RETURN::VIP_TIMEOUT as c_int;
        match code {
            0 => received(&self.0, vi),
            NOT_DONE | TIMEOUT => Ok(None),
            code => Err(Error::call(function, code)),
        }
    }
}

/// Takes the received message that an entry stands for off its VI.
#[inline(always)]
fn received(inner: &Inner, vi: VIP_VI_HANDLE) -> Result<Option<Descriptor>> {
    let mut taken = std::ptr::null_mut();
    // SAFETY: the library gave the handle for a VI of this queue, and there is room for the result.
    match unsafe { (inner.receive_done)(vi, &raw mut taken) } {
        0 => Ok(Descriptor::from_library(taken)),
        code => Err(Error::call("VipRecvDone", code)),
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: a live handle; every VI attached to it held it and is gone.
        let _ = unsafe { (self.nic.functions().VipDestroyCQ)(self.handle) };
    }
}
