//! A VI with unowned descriptors in a region; and an endpoint, which is a VI with its descriptors and buffers.
//!
//! The calls on the data path are one indirect call and one comparison.

use std::ffi::c_int;
use std::rc::Rc;
use std::time::Duration;

use vipl_abi::{VIP_DESCRIPTOR, VIP_MEM_HANDLE, VIP_RETURN};
use vipl_client::{Address, Error as VipError, RawVi, Reliability, Request, Status, ViOptions};

use crate::cq::Cq;
use crate::descriptor::{self, Descriptor};
use crate::nic::Nic;
use crate::patience::Patience;
use crate::region::{Region, Span};
use crate::{Error, Result};

/// What most polls return.
const NOT_DONE: c_int = VIP_RETURN::VIP_NOT_DONE as c_int;

/// What a VI is like; both sides of a connection use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViSpec {
    /// The reliability level.
    pub level: u16,
    /// The largest message in bytes.
    pub transfer_max: u64,
}

/// A VI whose descriptors are in one region, which stays mapped until the process ends.
pub struct Vi {
    vi: RawVi,
    memory: VIP_MEM_HANDLE,
    _region: Rc<Region>,
}

impl Vi {
    /// Creates a VI whose descriptors will lie in `region`; `cq` serves its receive queue.
    ///
    /// # Errors
    /// The library refuses.
    pub fn new(nic: &Nic, spec: ViSpec, region: &Rc<Region>, cq: Option<&Cq>) -> Result<Self> {
        let reliability = Reliability::from_bits(spec.level);
        let readable = nic.attributes().rdma_read.bits() & spec.level != 0;
        let options = ViOptions {
            reliability,
            transfer_max: spec.transfer_max,
            rdma_write: true,
            rdma_read: readable,
        };
        Ok(Self {
            vi: RawVi::new(nic.ptag(), options, [None, cq.map(Cq::queue)])?,
            memory: region.handle(),
            _region: Rc::clone(region),
        })
    }

    /// Posts to the send queue: sends and RDMA.
    ///
    /// # Errors
    /// The library refuses.
    #[inline(always)]
    pub fn post_send(&self, descriptor: Descriptor) -> Result<()> {
        // SAFETY: a descriptor in registered memory that stays mapped; no reference covers it or its buffers.
        match unsafe { self.vi.post_send(descriptor.as_ptr(), self.memory) } {
            0 => Ok(()),
            code => Err(failed("VipPostSend", code)),
        }
    }

    /// Posts to the receive queue.
    ///
    /// # Errors
    /// The library refuses.
    #[inline(always)]
    pub fn post_receive(&self, descriptor: Descriptor) -> Result<()> {
        // SAFETY: as in `post_send`.
        match unsafe { self.vi.post_receive(descriptor.as_ptr(), self.memory) } {
            0 => Ok(()),
            code => Err(failed("VipPostRecv", code)),
        }
    }

    /// Takes a completed descriptor off the send queue, if its head is complete.
    ///
    /// # Errors
    /// The descriptor completed with an error, or the library refuses.
    #[inline(always)]
    pub fn send_done(&self) -> Result<Option<Descriptor>> {
        taken("VipSendDone", self.vi.send_done())
    }

    /// Takes a completed descriptor off the receive queue, if its head is complete.
    ///
    /// # Errors
    /// The descriptor completed with an error, or the library refuses.
    #[inline(always)]
    pub fn receive_done(&self) -> Result<Option<Descriptor>> {
        taken("VipRecvDone", self.vi.receive_done())
    }

    /// Polls until the head of the receive queue is complete, and takes it.
    ///
    /// # Errors
    /// As [`Self::receive_done`], or it takes too long.
    #[inline(always)]
    pub fn next_received(&self, what: &'static str) -> Result<Descriptor> {
        let mut patience = Patience::new(what);
        loop {
            match self.receive_done()? {
                Some(descriptor) => return Ok(descriptor),
                None => patience.spend()?,
            }
        }
    }

    /// Polls until the head of the send queue is complete, and takes it.
    ///
    /// # Errors
    /// As [`Self::send_done`], or it takes too long.
    #[inline(always)]
    pub fn next_sent(&self, what: &'static str) -> Result<()> {
        let mut patience = Patience::new(what);
        while self.send_done()?.is_none() {
            patience.spend()?;
        }
        Ok(())
    }

    /// Takes a descriptor off the send queue, flushed or not: whether there was a complete one. For
    /// sends that are meant to be flushed.
    #[inline(always)]
    #[must_use]
    pub fn send_done_any(&self) -> bool {
        let (_, descriptor) = self.vi.send_done();
        !descriptor.is_null()
    }

    /// Waits for the head of the send queue; None after the timeout.
    ///
    /// # Errors
    /// The descriptor completed with an error, or the library refuses.
    pub fn send_wait(&self, timeout_ms: u64) -> Result<Option<Descriptor>> {
        let timeout = Some(Duration::from_millis(timeout_ms));
        taken("VipSendWait", self.vi.send_wait(timeout))
    }

    /// Waits for the head of the receive queue; None after the timeout.
    ///
    /// # Errors
    /// The descriptor completed with an error, or the library refuses.
    pub fn receive_wait(&self, timeout_ms: u64) -> Result<Option<Descriptor>> {
        let timeout = Some(Duration::from_millis(timeout_ms));
        taken("VipRecvWait", self.vi.receive_wait(timeout))
    }

    /// Asks a server for a connection.
    ///
    /// # Errors
    /// There is none: the code has the reason.
    pub fn connect(&self, local: &Address, remote: &Address, timeout_ms: u64) -> Result<()> {
        let timeout = Some(Duration::from_millis(timeout_ms));
        self.vi.connect(local, remote, timeout)?;
        Ok(())
    }

    /// Asks for a peer-to-peer connection, and does not wait for it.
    ///
    /// # Errors
    /// The library refuses.
    pub fn connect_peer(&self, local: &Address, remote: &Address, timeout_ms: u64) -> Result<()> {
        let timeout = Some(Duration::from_millis(timeout_ms));
        Ok(self.vi.connect_peer(local, remote, timeout)?)
    }

    /// Waits for the connection that [`Vi::connect_peer`] has asked for.
    ///
    /// # Errors
    /// There is none: the code has the reason.
    pub fn peer_wait(&self) -> Result<()> {
        self.vi.peer_wait()?;
        Ok(())
    }

    /// Ends the connection.
    ///
    /// # Errors
    /// The library refuses.
    pub fn disconnect(&self) -> Result<()> {
        Ok(self.vi.disconnect()?)
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// The library refuses, or the client has exited.
    pub fn accept(&self, request: Request) -> Result<()> {
        request
            .accept_raw(&self.vi)
            .map_err(|returned| returned.error.into())
    }
}

#[cold]
fn failed(function: &'static str, code: c_int) -> Error {
    VipError::call(function, code).into()
}

/// What a done or wait function returned.
#[inline(always)]
fn taken(
    function: &'static str,
    (code, descriptor): (c_int, *mut VIP_DESCRIPTOR),
) -> Result<Option<Descriptor>> {
    match code {
        0 => Ok(Descriptor::from_library(descriptor)),
        NOT_DONE => Ok(None),
        code => not_taken(function, code, descriptor),
    }
}

#[cold]
#[inline(never)]
fn not_taken(
    function: &'static str,
    code: c_int,
    taken: *mut VIP_DESCRIPTOR,
) -> Result<Option<Descriptor>> {
    const TIMEOUT: c_int = VIP_RETURN::VIP_TIMEOUT as c_int;
    const FAILED: c_int = VIP_RETURN::VIP_DESCRIPTOR_ERROR as c_int;
    match (code, Descriptor::from_library(taken)) {
        (TIMEOUT, _) | (FAILED, None) => Ok(None),
        (FAILED, Some(descriptor)) => {
            let status = Status::from_bits(descriptor.status());
            Err(VipError::Completion { function, status }.into())
        }
        (code, _) => Err(failed(function, code)),
    }
}

/// How an endpoint's memory is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Send descriptors.
    pub sends: usize,
    /// Receive descriptors.
    pub receives: usize,
    /// Bytes of a message.
    pub bytes: usize,
    /// One buffer per descriptor, instead of one for all sends and one for all receives.
    pub separate: bool,
}

impl Layout {
    /// Distance of two buffers.
    fn stride(&self) -> Option<usize> {
        match self.bytes {
            0..4096 => Some(self.bytes.next_multiple_of(64).max(64)),
            large => large.checked_next_multiple_of(4096),
        }
    }

    /// Send and receive buffers.
    fn buffers(&self) -> (usize, usize) {
        if self.separate {
            (self.sends, self.receives)
        } else {
            (1, 1)
        }
    }

    /// Bytes of the descriptors.
    fn descriptors(&self) -> Option<usize> {
        let align = if self.stride()? >= 4096 { 4096 } else { 64 };
        let all = self.sends.checked_add(self.receives)?;
        all.checked_mul(descriptor::BYTES)?
            .checked_next_multiple_of(align)
    }

    /// Bytes of all of it; None above what there are numbers for.
    #[must_use]
    pub fn total(&self) -> Option<usize> {
        let (sends, receives) = self.buffers();
        let buffers = sends.checked_add(receives)?.checked_mul(self.stride()?)?;
        self.descriptors()?.checked_add(buffers)
    }
}

/// A VI with its descriptors and buffers.
pub struct Endpoint {
    /// The VI.
    pub vi: Vi,
    /// The memory: descriptors, then send buffers, then receive buffers.
    pub region: Rc<Region>,
    /// Send descriptors, set up as sends of their buffers.
    pub sends: Vec<Descriptor>,
    /// Offsets of the send buffers.
    pub send_offsets: Vec<usize>,
    /// Receive descriptors, set up for their buffers.
    pub receives: Vec<Descriptor>,
    /// Offsets of the receive buffers.
    pub receive_offsets: Vec<usize>,
    /// Bytes of a message.
    pub bytes: usize,
}

impl Endpoint {
    /// Makes a VI with its memory and posts all receives.
    ///
    /// # Errors
    /// The library refuses something.
    pub fn new(nic: &Nic, spec: ViSpec, layout: Layout, cq: Option<&Cq>) -> Result<Self> {
        let too_large = || Error::Usage("the buffers are larger than memory".to_owned());
        let (send_buffers, receive_buffers) = layout.buffers();
        let total = layout.total().ok_or_else(too_large)?;
        let stride = layout.stride().ok_or_else(too_large)?;
        let descriptors = layout.descriptors().ok_or_else(too_large)?;
        let region = Rc::new(Region::new(nic, total)?);
        let vi = Vi::new(nic, spec, &region, cq)?;
        // Small buffers end at a multiple of 8, so that a flag in their last bytes is aligned.
        let shift = if layout.bytes < 4096 {
            stride - layout.bytes.next_multiple_of(8)
        } else {
            0
        };
        let shift = if layout.bytes.is_multiple_of(8) {
            shift
        } else {
            0
        };
        let place = |index: usize, buffers: usize, first: usize| {
            descriptors + (first + index.min(buffers - 1)) * stride + shift
        };
        let at = |index: usize| Descriptor::new(&region, index * descriptor::BYTES);
        let sends: Vec<Descriptor> = (0..layout.sends).map(at).collect();
        let receives: Vec<Descriptor> = (layout.sends..layout.sends + layout.receives)
            .map(at)
            .collect();
        let send_offsets: Vec<usize> = (0..layout.sends.max(1))
            .map(|i| place(i, send_buffers, 0))
            .collect();
        let receive_offsets: Vec<usize> = (0..layout.receives.max(1))
            .map(|i| place(i, receive_buffers, send_buffers))
            .collect();
        for (descriptor, offset) in sends.iter().zip(&send_offsets) {
            descriptor.set_send(region.span(*offset, layout.bytes));
        }
        for (descriptor, offset) in receives.iter().zip(&receive_offsets) {
            descriptor.set_receive(region.span(*offset, layout.bytes));
            vi.post_receive(*descriptor)?;
        }
        let bytes = layout.bytes;
        Ok(Self {
            vi,
            region,
            sends,
            send_offsets,
            receives,
            receive_offsets,
            bytes,
        })
    }

    /// Where the peer may write to or read from.
    #[must_use]
    pub fn target(&self) -> Span {
        self.region.span(self.receive_offsets[0], self.bytes)
    }
}
