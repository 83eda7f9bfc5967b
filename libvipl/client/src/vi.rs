//! VIs, with their states as types.
//!
//! ```text
//!   Vi<Idle> ── connect, accept ──────────────▶ Vi<Connected> ── disconnect ──▶ Vi<Idle>
//!       └────── connect_peer ──▶ Vi<Pending> ── wait ──┘
//! ```

use std::ffi::c_int;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Duration;

use vipl_abi::*;

use crate::address::Address;
use crate::cq::Cq;
use crate::descriptor::Descriptor;
use crate::entry::ViId;
use crate::error::{Code, Error, Result, Returned};
use crate::handle::{RawVi, ViStatus};
use crate::memory::Ptag;
use crate::options::ViOptions;

const NOT_DONE: c_int = VIP_RETURN::VIP_NOT_DONE as c_int;
const TIMEOUT: c_int = VIP_RETURN::VIP_TIMEOUT as c_int;
const FAILED: c_int = VIP_RETURN::VIP_DESCRIPTOR_ERROR as c_int;

/// What a done or wait function returns. An error returns the descriptor that it is about.
pub type Taken = std::result::Result<Option<Descriptor>, Returned<Option<Descriptor>>>;

/// State of a [`Vi`]: no connection.
#[derive(Debug)]
pub struct Idle(());

/// State of a [`Vi`]: it has requested a peer-to-peer connection.
#[derive(Debug)]
pub struct Pending(());

/// State of a [`Vi`]: it was connected. The peer, or the network, may end the connection at any time: what is posted then
/// completes as flushed, and only [`Vi::disconnect`] makes the VI usable again.
#[derive(Debug)]
pub struct Connected {
    peer: ViOptions,
}

/// A VI. `S` is its state, as far as this program determines it.
///
/// Sends need a connection:
///
/// ```compile_fail,E0599
/// # use vipl_client::{Descriptor, Idle, Vi};
/// fn send(vi: &Vi<Idle>, message: Descriptor) {
///     let _ = vi.post_send(message);
/// }
/// ```
///
/// Dropping it disconnects it, drops all descriptors that are posted, and destroys the VI. If it is leaked, they stay the
/// library's, with their memory.
pub struct Vi<S> {
    queues: RawVi,
    state: S,
}

impl Vi<Idle> {
    /// Creates a VI; completions of its queues are reported to these completion queues, if any.
    ///
    /// # Errors
    /// [`Code::InvalidReliabilityLevel`] and others: the NIC lacks something, or a limit is reached.
    pub fn new(
        ptag: &Ptag,
        options: ViOptions,
        send_cq: Option<&Cq>,
        receive_cq: Option<&Cq>,
    ) -> Result<Self> {
        Ok(Self {
            queues: RawVi::new(ptag, options, [send_cq, receive_cq])?,
            state: Idle(()),
        })
    }

    /// Requests a connection of a server that waits at `remote`; without a timeout there is no limit. Receives should be
    /// posted before: the server may send at once.
    ///
    /// # Errors
    /// The VI is returned, idle, with its receives posted. [`Code::NoMatch`]: no server waits there, now;
    /// [`Code::Timeout`]; [`Code::Reject`]; [`Code::NotReachable`]; [`Code::InvalidReliabilityLevel`] or
    /// [`Code::InvalidMtu`]: the server's VI has other options.
    pub fn connect(
        self,
        local: &Address,
        remote: &Address,
        timeout: Option<Duration>,
    ) -> std::result::Result<Vi<Connected>, Returned<Self>> {
        let peer = self.queues.connect(local, remote, timeout);
        self.after(peer.map(Connected::to))
    }

    /// Begins a connection that the peer's application requests as well, from its side.
    ///
    /// # Errors
    /// The VI is returned: the library refuses.
    pub fn connect_peer(
        self,
        local: &Address,
        remote: &Address,
        timeout: Option<Duration>,
    ) -> std::result::Result<Vi<Pending>, Returned<Self>> {
        let done = self.queues.connect_peer(local, remote, timeout);
        self.after(done.map(Pending))
    }
}

impl Vi<Pending> {
    /// Waits until the peer has requested the connection, too.
    ///
    /// # Errors
    /// The VI is returned, idle: as for [`Vi::connect`].
    pub fn wait(self) -> std::result::Result<Vi<Connected>, Returned<Vi<Idle>>> {
        let peer = self.queues.peer_wait();
        self.into_state(Idle(())).after(peer.map(Connected::to))
    }

    /// Checks whether the peer has requested the connection, too; the inner error returns the pending VI.
    ///
    /// # Errors
    /// The VI is returned, idle: as for [`Vi::connect`].
    pub fn try_wait(
        self,
    ) -> std::result::Result<std::result::Result<Vi<Connected>, Self>, Returned<Vi<Idle>>> {
        match self.queues.peer_done() {
            Err(error) if error.code() == Some(Code::NotDone) => Ok(Err(self)),
            peer => {
                let vi = self.into_state(Idle(()));
                vi.after(peer.map(Connected::to)).map(Ok)
            }
        }
    }

    /// Gives the request up.
    ///
    /// # Errors
    /// The VI is returned: the library refuses.
    pub fn cancel(self) -> std::result::Result<Vi<Idle>, Returned<Self>> {
        let done = self.queues.disconnect();
        self.after(done.map(Idle))
    }
}

impl Connected {
    pub(crate) fn to(peer: ViOptions) -> Self {
        Self { peer }
    }
}

impl Vi<Connected> {
    /// What the peer's VI is like, and whether this side may use RDMA on it.
    #[must_use]
    pub fn peer(&self) -> ViOptions {
        self.state.peer
    }

    /// Posts a send or an RDMA operation.
    ///
    /// # Errors
    /// The descriptor is returned. [`Code::Resource`]: the queue is full; [`Code::InvalidParameter`]: the descriptor has
    /// another protection tag than the VI.
    #[inline(always)]
    pub fn post_send(
        &self,
        descriptor: Descriptor,
    ) -> std::result::Result<(), Returned<Descriptor>> {
        let (pointer, handle) = descriptor.into_raw();
        // SAFETY: given away until the library returns it.
        match unsafe { self.queues.post_send(pointer, handle) } {
            0 => Ok(()),
            code => Err(not_posted("VipPostSend", code, pointer)),
        }
    }

    /// Ends the connection. What was posted is complete afterwards: take it off by [`Self::send_done`] and
    /// [`Self::receive_done`] of the idle VI. The peer's VI reports the loss.
    ///
    /// # Errors
    /// The VI is returned: the library refuses.
    pub fn disconnect(self) -> std::result::Result<Vi<Idle>, Returned<Self>> {
        let done = self.queues.disconnect();
        self.after(done.map(Idle))
    }
}

impl<S> Vi<S> {
    /// Identifies the VI in entries of completion queues and in asynchronous errors.
    #[inline(always)]
    #[must_use]
    pub fn id(&self) -> ViId {
        self.queues.id()
    }

    /// The functions that work on the handle. Posting by them, which is `unsafe`, must not be mixed with posting
    /// descriptors here: a done function takes every descriptor that it gets for one of those.
    #[must_use]
    pub fn raw(&self) -> &RawVi {
        &self.queues
    }

    /// State and attributes.
    ///
    /// # Errors
    /// The library refuses.
    pub fn status(&self) -> Result<ViStatus> {
        self.queues.query()
    }

    /// Posts a receive. It may wait for a connection.
    ///
    /// # Errors
    /// The descriptor is returned: as for [`Vi::post_send`].
    #[inline(always)]
    pub fn post_receive(
        &self,
        descriptor: Descriptor,
    ) -> std::result::Result<(), Returned<Descriptor>> {
        let (pointer, handle) = descriptor.into_raw();
        // SAFETY: given away until the library returns it.
        match unsafe { self.queues.post_receive(pointer, handle) } {
            0 => Ok(()),
            code => Err(not_posted("VipPostRecv", code, pointer)),
        }
    }

    /// Takes the oldest descriptor off the send queue, if it is complete.
    ///
    /// # Errors
    /// [`Error::Completion`], with the descriptor: it completed with an error.
    #[inline(always)]
    pub fn send_done(&self) -> Taken {
        taken("VipSendDone", self.queues.send_done())
    }

    /// Takes the oldest descriptor off the receive queue, if it is complete.
    ///
    /// # Errors
    /// [`Error::Completion`], with the descriptor: it completed with an error.
    #[inline(always)]
    pub fn receive_done(&self) -> Taken {
        taken("VipRecvDone", self.queues.receive_done())
    }

    /// As [`Self::send_done`], but waits; without a timeout there is no limit. None after the timeout, and at once if
    /// nothing is posted. Only without a completion queue.
    ///
    /// # Errors
    /// As [`Self::send_done`].
    pub fn send_wait(&self, timeout: Option<Duration>) -> Taken {
        taken("VipSendWait", self.queues.send_wait(timeout))
    }

    /// As [`Self::receive_done`], but waits; without a timeout there is no limit. None after the timeout, and at once if
    /// nothing is posted. Only without a completion queue.
    ///
    /// # Errors
    /// As [`Self::receive_done`].
    pub fn receive_wait(&self, timeout: Option<Duration>) -> Taken {
        taken("VipRecvWait", self.queues.receive_wait(timeout))
    }

    pub(crate) fn into_state<T>(self, state: T) -> Vi<T> {
        let this = ManuallyDrop::new(self);
        // SAFETY: moved out of a value that is not dropped, and whose states have nothing to drop.
        let queues = unsafe { std::ptr::read(&raw const this.queues) };
        Vi { queues, state }
    }

    /// The next state if a call was successful, else the same one.
    fn after<T>(self, next: Result<T>) -> std::result::Result<Vi<T>, Returned<Self>> {
        match next {
            Ok(state) => Ok(self.into_state(state)),
            Err(error) => Err(Returned { error, value: self }),
        }
    }
}

impl<S> Drop for Vi<S> {
    fn drop(&mut self) {
        self.queues.close(|descriptor| {
            if let Some(descriptor) = NonNull::new(descriptor) {
                // SAFETY: the library returns what was posted here, once.
                drop(unsafe { Descriptor::from_raw(descriptor) });
            }
        });
    }
}

impl<S> fmt::Debug for Vi<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queues.fmt(f)
    }
}

/// What a done or wait function returned.
#[inline(always)]
fn taken(function: &'static str, (code, descriptor): (c_int, *mut VIP_DESCRIPTOR)) -> Taken {
    match NonNull::new(descriptor) {
        // SAFETY: the library returns what was posted here, once.
        Some(descriptor) if code == 0 => Ok(Some(unsafe { Descriptor::from_raw(descriptor) })),
        None if code == NOT_DONE => Ok(None),
        descriptor => other(function, code, descriptor),
    }
}

#[cold]
#[inline(never)]
fn other(
    function: &'static str,
    code: c_int,
    descriptor: Option<NonNull<VIP_DESCRIPTOR>>,
) -> Taken {
    // SAFETY: as in `taken`.
    let descriptor = descriptor.map(|descriptor| unsafe { Descriptor::from_raw(descriptor) });
    match (code, descriptor) {
        (0 | NOT_DONE | TIMEOUT | FAILED, None) => Ok(None),
        (FAILED, Some(descriptor)) => {
            let status = descriptor.status();
            Err(Returned {
                error: Error::Completion { function, status },
                value: Some(descriptor),
            })
        }
        (code, value) => Err(Returned {
            error: Error::call(function, code),
            value,
        }),
    }
}

#[cold]
#[inline(never)]
fn not_posted(
    function: &'static str,
    code: c_int,
    pointer: *mut VIP_DESCRIPTOR,
) -> Returned<Descriptor> {
    let Some(pointer) = NonNull::new(pointer) else {
        unreachable!("a descriptor is not at NULL")
    };
    Returned {
        error: Error::call(function, code),
        // SAFETY: given away just now, and not accepted.
        value: unsafe { Descriptor::from_raw(pointer) },
    }
}
