//! A VI handle and the functions of its data path.

use std::ffi::c_int;
use std::time::Duration;

use vipl_abi::*;

use crate::address::Address;
use crate::cq::Cq;
use crate::entry::ViId;
use crate::error::{Result, check};
use crate::library::milliseconds;
use crate::memory::Ptag;
use crate::options::ViOptions;
use crate::raw::{Done, Post};

/// A VI in any state, with queues of unowned descriptors.
///
/// What is posted must be valid and untouched until a done or wait function returns it: posting is `unsafe`, and
/// everything else is safe. Dropping it disconnects the VI, takes off all descriptors and destroys the VI.
#[derive(Debug)]
pub struct RawVi {
    handle: VIP_VI_HANDLE,
    post_send: Post,
    post_receive: Post,
    send_done: Done,
    receive_done: Done,
    ptag: Ptag,
    _cqs: [Option<Cq>; 2],
}

// SAFETY: the handle is a value, and the library is thread-safe: see `Nic`.
unsafe impl Send for RawVi {}
// SAFETY: as above.
unsafe impl Sync for RawVi {}

impl RawVi {
    /// Creates a VI; the completion queues are those of its send queue and of its receive queue.
    ///
    /// # Errors
    /// The library refuses: the NIC lacks the reliability level, or a limit is reached.
    pub fn new(ptag: &Ptag, options: ViOptions, cqs: [Option<&Cq>; 2]) -> Result<Self> {
        let functions = ptag.nic().functions();
        let mut attributes = options.attributes(ptag.handle());
        let mut handle = std::ptr::null_mut();
        let [send_cq, receive_cq] = cqs.map(|cq| cq.map_or(std::ptr::null_mut(), Cq::handle));
        // SAFETY: a live NIC, filled attributes, NULL or live CQs, and room for the handle.
        let code = unsafe {
            (functions.VipCreateVi)(
                ptag.nic().handle(),
                &raw mut attributes,
                send_cq,
                receive_cq,
                &raw mut handle,
            )
        };
        check("VipCreateVi", code).map_err(|error| error.context(options.to_string()))?;
        Ok(Self {
            handle,
            post_send: functions.VipPostSend,
            post_receive: functions.VipPostRecv,
            send_done: functions.VipSendDone,
            receive_done: functions.VipRecvDone,
            ptag: ptag.clone(),
            _cqs: cqs.map(Option::<&Cq>::cloned),
        })
    }

    /// The handle.
    #[inline(always)]
    #[must_use]
    pub fn handle(&self) -> VIP_VI_HANDLE {
        self.handle
    }

    /// Identifies the VI in entries of completion queues and in asynchronous errors.
    #[inline(always)]
    #[must_use]
    pub fn id(&self) -> ViId {
        ViId::new(self.handle)
    }

    /// Its protection tag.
    #[must_use]
    pub fn ptag(&self) -> &Ptag {
        &self.ptag
    }

    /// VipPostSend.
    ///
    /// # Safety
    /// The descriptor and the memory that it names stay valid, and no other code uses them, until the descriptor is
    /// returned by a done or wait function, or the VI is dropped. `memory` is the handle of the descriptor's region.
    #[inline(always)]
    pub unsafe fn post_send(
        &self,
        descriptor: *mut VIP_DESCRIPTOR,
        memory: VIP_MEM_HANDLE,
    ) -> c_int {
        // SAFETY: a live VI; the rest by contract.
        unsafe { (self.post_send)(self.handle, descriptor, memory) }
    }

    /// VipPostRecv.
    ///
    /// # Safety
    /// As for [`Self::post_send`].
    #[inline(always)]
    pub unsafe fn post_receive(
        &self,
        descriptor: *mut VIP_DESCRIPTOR,
        memory: VIP_MEM_HANDLE,
    ) -> c_int {
        // SAFETY: a live VI; the rest by contract.
        unsafe { (self.post_receive)(self.handle, descriptor, memory) }
    }

    /// VipSendDone: its code, and the descriptor or NULL.
    #[inline(always)]
    pub fn send_done(&self) -> (c_int, *mut VIP_DESCRIPTOR) {
        let mut taken = std::ptr::null_mut();
        // SAFETY: a live VI and room for the result.
        let code = unsafe { (self.send_done)(self.handle, &raw mut taken) };
        (code, taken)
    }

    /// VipRecvDone: its code, and the descriptor or NULL.
    #[inline(always)]
    pub fn receive_done(&self) -> (c_int, *mut VIP_DESCRIPTOR) {
        let mut taken = std::ptr::null_mut();
        // SAFETY: a live VI and room for the result.
        let code = unsafe { (self.receive_done)(self.handle, &raw mut taken) };
        (code, taken)
    }

    /// VipSendWait: its code, and the descriptor or NULL. Without a timeout there is no limit.
    pub fn send_wait(&self, timeout: Option<Duration>) -> (c_int, *mut VIP_DESCRIPTOR) {
        let mut taken = std::ptr::null_mut();
        let wait = self.ptag.nic().functions().VipSendWait;
        // SAFETY: a live VI and room for the result.
        let code = unsafe { wait(self.handle, milliseconds(timeout), &raw mut taken) };
        (code, taken)
    }

    /// VipRecvWait: its code, and the descriptor or NULL. Without a timeout there is no limit.
    pub fn receive_wait(&self, timeout: Option<Duration>) -> (c_int, *mut VIP_DESCRIPTOR) {
        let mut taken = std::ptr::null_mut();
        let wait = self.ptag.nic().functions().VipRecvWait;
        // SAFETY: a live VI and room for the result.
        let code = unsafe { wait(self.handle, milliseconds(timeout), &raw mut taken) };
        (code, taken)
    }

    /// VipConnectRequest: the options of the server's VI.
    ///
    /// # Errors
    /// [`Code::NoMatch`](crate::Code::NoMatch), [`Code::Timeout`](crate::Code::Timeout),
    /// [`Code::Reject`](crate::Code::Reject) and others: there is no connection, and the VI is idle again.
    pub fn connect(
        &self,
        local: &Address,
        remote: &Address,
        timeout: Option<Duration>,
    ) -> Result<ViOptions> {
        let (local, remote) = (local.encode(), remote.encode());
        let request = self.ptag.nic().functions().VipConnectRequest;
        ViOptions::reported("VipConnectRequest", |theirs| {
            // SAFETY: a live VI, two addresses, and room for the attributes.
            unsafe {
                request(
                    self.handle,
                    local.as_ptr().cast_mut().cast(),
                    remote.as_ptr().cast_mut().cast(),
                    milliseconds(timeout),
                    theirs,
                )
            }
        })
    }

    /// VipConnectPeerRequest: begins a connection that the peer's application requests as well.
    ///
    /// # Errors
    /// The library refuses.
    pub fn connect_peer(
        &self,
        local: &Address,
        remote: &Address,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let (local, remote) = (local.encode(), remote.encode());
        // SAFETY: a live VI and two addresses.
        let code = unsafe {
            (self.ptag.nic().functions().VipConnectPeerRequest)(
                self.handle,
                local.as_ptr().cast_mut().cast(),
                remote.as_ptr().cast_mut().cast(),
                milliseconds(timeout),
            )
        };
        check("VipConnectPeerRequest", code)
    }

    /// VipConnectPeerDone: the options of the peer's VI, once it is connected.
    ///
    /// # Errors
    /// [`Code::NotDone`](crate::Code::NotDone): not yet; others: there is no connection, and the VI is idle again.
    pub fn peer_done(&self) -> Result<ViOptions> {
        let done = self.ptag.nic().functions().VipConnectPeerDone;
        // SAFETY: a live VI and room for the attributes.
        ViOptions::reported("VipConnectPeerDone", |theirs| unsafe {
            done(self.handle, theirs)
        })
    }

    /// VipConnectPeerWait: the options of the peer's VI.
    ///
    /// # Errors
    /// There is no connection, and the VI is idle again.
    pub fn peer_wait(&self) -> Result<ViOptions> {
        let wait = self.ptag.nic().functions().VipConnectPeerWait;
        // SAFETY: a live VI and room for the attributes.
        ViOptions::reported("VipConnectPeerWait", |theirs| unsafe {
            wait(self.handle, theirs)
        })
    }

    /// VipDisconnect: the VI is idle, and all descriptors are complete.
    ///
    /// # Errors
    /// The library refuses.
    pub fn disconnect(&self) -> Result<()> {
        // SAFETY: a live VI.
        check("VipDisconnect", unsafe {
            (self.ptag.nic().functions().VipDisconnect)(self.handle)
        })
    }

    /// VipQueryVi.
    ///
    /// # Errors
    /// The library refuses.
    pub fn query(&self) -> Result<ViStatus> {
        let (mut state, mut send_empty, mut receive_empty) = (0, 0, 0);
        let query = self.ptag.nic().functions().VipQueryVi;
        let options = ViOptions::reported("VipQueryVi", |own| {
            // SAFETY: a live VI and room for the results.
            unsafe {
                query(
                    self.handle,
                    &raw mut state,
                    own,
                    &raw mut send_empty,
                    &raw mut receive_empty,
                )
            }
        })?;
        Ok(ViStatus {
            state: ViState::from_code(state),
            options,
            is_send_queue_empty: send_empty != 0,
            is_receive_queue_empty: receive_empty != 0,
        })
    }

    /// VipDestroyVi, which a drop calls in silence.
    ///
    /// # Errors
    /// [`Code::InvalidState`](crate::Code::InvalidState): it is not idle; [`Code::Resource`](crate::Code::Resource):
    /// descriptors are on its queues. The VI stays then.
    pub fn destroy(mut self) -> Result<()> {
        self.destroy_handle()
    }

    fn destroy_handle(&mut self) -> Result<()> {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        // SAFETY: a live VI.
        check("VipDestroyVi", unsafe {
            (self.ptag.nic().functions().VipDestroyVi)(handle)
        })
    }

    /// Disconnects, takes off all descriptors, which `each` gets, and destroys the VI.
    pub(crate) fn close(&mut self, mut each: impl FnMut(*mut VIP_DESCRIPTOR)) {
        let _ = self.disconnect();
        // A queue must be empty before its VI is destroyed. All descriptors are complete by now.
        for done in [Self::send_done, Self::receive_done] {
            while let (_, descriptor) = done(self)
                && !descriptor.is_null()
            {
                each(descriptor);
            }
        }
        let _ = self.destroy_handle();
    }
}

impl Drop for RawVi {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            self.close(|_| ());
        }
    }
}

/// State of a VI (spec §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ViState {
    /// No connection.
    Idle,
    /// Connected.
    Connected,
    /// A connection is being made.
    ConnectPending,
    /// The connection is lost.
    Error,
    /// A state that VIPL 1.0 does not have.
    Unknown(i32),
}

impl ViState {
    fn from_code(state: c_int) -> Self {
        match state {
            0 => Self::Idle,
            1 => Self::Connected,
            2 => Self::ConnectPending,
            3 => Self::Error,
            other => Self::Unknown(other),
        }
    }
}

/// What VipQueryVi reports.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct ViStatus {
    pub state: ViState,
    pub options: ViOptions,
    pub is_send_queue_empty: bool,
    pub is_receive_queue_empty: bool,
}
