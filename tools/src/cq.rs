//! Completion queues.

use std::ffi::{c_int, c_ulong};
use std::rc::Rc;

use vipl_abi::*;

use crate::nic::{Nic, check};
use crate::{Error, Result};

/// A completion queue, destroyed when the last VI attached to it is gone.
#[derive(Clone)]
pub struct Cq(Rc<Inner>);

struct Inner {
    nic: Nic,
    handle: VIP_CQ_HANDLE,
    done: unsafe extern "C" fn(VIP_CQ_HANDLE, *mut VIP_VI_HANDLE, *mut VIP_BOOLEAN) -> c_int,
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
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: a live handle; every VI attached to it held it and is gone.
        let _ = unsafe { (self.nic.functions().VipDestroyCQ)(self.handle) };
    }
}
