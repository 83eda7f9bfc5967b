//! The server's side of connections.

use std::ffi::c_int;
use std::time::Duration;

use vipl_abi::*;

use crate::address::Address;
use crate::error::{Code, Result, Returned, check};
use crate::handle::RawVi;
use crate::library::milliseconds;
use crate::nic::Nic;
use crate::options::ViOptions;
use crate::vi::{Connected, Idle, Vi};

/// The error of [`Request::accept`], with the VI, and with the request if it can still be answered.
pub type NotAccepted = Returned<(Vi<Idle>, Option<Request>)>;

/// A received request for a connection, to be accepted or rejected; it is rejected if it is dropped.
#[must_use = "a client waits for an answer"]
#[derive(Debug)]
pub struct Request {
    nic: Nic,
    handle: VIP_CONN_HANDLE,
    client: Address,
    options: ViOptions,
}

// SAFETY: the handle is a value, and the library is thread-safe: see `Nic`.
unsafe impl Send for Request {}
// SAFETY: as above.
unsafe impl Sync for Request {}

impl Request {
    /// Waits for a request that names the discriminator of `local`; without a timeout there is no limit. None after the
    /// timeout. A request at any other time is refused by the library.
    ///
    /// # Errors
    /// The library refuses to wait.
    pub fn wait(nic: &Nic, local: &Address, timeout: Option<Duration>) -> Result<Option<Self>> {
        let attributes = nic.attributes();
        let discriminator = usize::try_from(attributes.discriminator_max).unwrap_or(0);
        let mut client = Address::room(attributes.address.len(), discriminator.max(64));
        let local = local.encode();
        let mut handle = std::ptr::null_mut();
        let mut timed_out = false;
        let wait = nic.functions().VipConnectWait;
        let wanted = ViOptions::reported("VipConnectWait", |wanted| {
            // SAFETY: a live NIC, an address, and room for all three results.
            let code = unsafe {
                wait(
                    nic.handle(),
                    local.as_ptr().cast_mut().cast(),
                    milliseconds(timeout),
                    client.as_mut_ptr().cast(),
                    wanted,
                    &raw mut handle,
                )
            };
            timed_out = code == VIP_RETURN::VIP_TIMEOUT as c_int;
            code
        });
        if timed_out {
            return Ok(None);
        }
        Ok(Some(Self {
            options: wanted?,
            nic: nic.clone(),
            handle,
            client: Address::decode(&client),
        }))
    }

    /// Where the client is.
    #[must_use]
    pub fn client(&self) -> &Address {
        &self.client
    }

    /// What the client's VI is like: level and largest message must be those of the server's VI.
    #[must_use]
    pub fn options(&self) -> ViOptions {
        self.options
    }

    /// Connects a VI with the client's. Receives should be posted on it before: the client may send at once.
    ///
    /// # Errors
    /// The VI is returned, idle. [`Code::Timeout`]: the client gave up, and the request is over. Else the request is
    /// returned as well: [`Code::InvalidReliabilityLevel`] or [`Code::InvalidMtu`] if the VI has other options.
    pub fn accept(self, vi: Vi<Idle>) -> std::result::Result<Vi<Connected>, NotAccepted> {
        let client = self.options;
        match self.accept_raw(vi.raw()) {
            Ok(()) => Ok(vi.into_state(Connected::to(client))),
            Err(Returned { error, value }) => Err(Returned {
                error,
                value: (vi, value),
            }),
        }
    }

    /// As [`Self::accept`], with a handle.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn accept_raw(mut self, vi: &RawVi) -> std::result::Result<(), Returned<Option<Request>>> {
        // SAFETY: two live handles of this library.
        let code = unsafe { (self.nic.functions().VipConnectAccept)(self.handle, vi.handle()) };
        let done = check("VipConnectAccept", code);
        if matches!(Code::from(code), Code::Success | Code::Timeout) {
            self.handle = std::ptr::null_mut();
        }
        done.map_err(|error| Returned {
            error,
            value: (!self.handle.is_null()).then_some(self),
        })
    }

    /// Refuses it: the client's call fails with [`Code::Reject`].
    ///
    /// # Errors
    /// The library refuses.
    pub fn reject(mut self) -> Result<()> {
        self.answer_no()
    }

    fn answer_no(&mut self) -> Result<()> {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        // SAFETY: a live handle of this library.
        check("VipConnectReject", unsafe {
            (self.nic.functions().VipConnectReject)(handle)
        })
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            let _ = self.answer_no();
        }
    }
}
