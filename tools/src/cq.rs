//! Completion queues of receives.

use std::ffi::c_int;
use std::time::Duration;

use vipl_abi::VIP_RETURN;
use vipl_client::raw::Done;
use vipl_client::{Entry, Error as VipError};

use crate::Result;
use crate::descriptor::Descriptor;
use crate::nic::Nic;

/// What most polls return.
const NOT_DONE: c_int = VIP_RETURN::VIP_NOT_DONE as c_int;

/// A completion queue whose VIs have it for their receives only.
#[derive(Clone)]
pub struct Cq {
    queue: vipl_client::Cq,
    receive_done: Done,
}

impl Cq {
    /// Creates a queue with room for this many entries.
    ///
    /// # Errors
    /// The library refuses.
    pub fn new(nic: &Nic, entries: u64) -> Result<Self> {
        Ok(Self {
            queue: vipl_client::Cq::new(nic, entries)?,
            receive_done: nic.functions().VipRecvDone,
        })
    }

    pub(crate) fn queue(&self) -> &vipl_client::Cq {
        &self.queue
    }

    /// Takes one entry off: whether there was one.
    ///
    /// # Errors
    /// The library refuses.
    #[inline(always)]
    pub fn done(&self) -> Result<bool> {
        match self.queue.done_raw() {
            (0, _) => Ok(true),
            (NOT_DONE, _) => Ok(false),
            (code, _) => Err(VipError::call("VipCQDone", code).into()),
        }
    }

    /// Takes the next received message off the VI that its entry names, if there is one.
    ///
    /// # Errors
    /// The library refuses, or the message completed with an error.
    #[inline(always)]
    pub fn receive_done(&self) -> Result<Option<Descriptor>> {
        match self.queue.done_raw() {
            (0, entry) => self.received(entry),
            (NOT_DONE, _) => Ok(None),
            (code, _) => Err(VipError::call("VipCQDone", code).into()),
        }
    }

    /// As `receive_done`, but waits for the next one; None after the timeout.
    ///
    /// # Errors
    /// As `receive_done`.
    pub fn receive_wait(&self, timeout_ms: u64) -> Result<Option<Descriptor>> {
        match self.queue.wait(Some(Duration::from_millis(timeout_ms)))? {
            Some(entry) => self.received(entry),
            None => Ok(None),
        }
    }

    #[inline(always)]
    fn received(&self, entry: Entry) -> Result<Option<Descriptor>> {
        let mut taken = std::ptr::null_mut();
        // SAFETY: the library returned the handle for a VI of this queue, and there is room for the result.
        match unsafe { (self.receive_done)(entry.vi.handle(), &raw mut taken) } {
            0 => Ok(Descriptor::from_library(taken)),
            code => Err(VipError::call("VipRecvDone", code).into()),
        }
    }
}
