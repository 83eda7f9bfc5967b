//! VIs: creating, connecting, posting and taking descriptors; and an endpoint, which is a VI with its
//! descriptors and buffers.
//!
//! The calls on the data path are one indirect call and one comparison.

use std::ffi::{c_int, c_ulong};
use std::mem::MaybeUninit;
use std::rc::Rc;

use vipl_abi::*;

use crate::cq::Cq;
use crate::descriptor::{self, Descriptor};
use crate::nic::{NetAddress, Nic, Request, check};
use crate::region::{Region, Span};
use crate::{Error, Result};

type Post = unsafe extern "C" fn(VIP_VI_HANDLE, *mut VIP_DESCRIPTOR, VIP_MEM_HANDLE) -> c_int;
type Done = unsafe extern "C" fn(VIP_VI_HANDLE, *mut *mut VIP_DESCRIPTOR) -> c_int;

/// Polls give this most of the time.
const NOT_DONE: c_int = VIP_RETURN::VIP_NOT_DONE as c_int;

/// What a VI is like; both sides of a connection use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViSpec {
    /// The reliability level.
    pub level: u16,
    /// The largest message in bytes.
    pub transfer_max: u64,
}

/// A VI.
pub struct Vi {
    handle: VIP_VI_HANDLE,
    memory: VIP_MEM_HANDLE,
    post_send: Post,
    post_receive: Post,
    send_done: Done,
    receive_done: Done,
    nic: Nic,
    _region: Rc<Region>,
    _cq: Option<Cq>,
}

impl Vi {
    /// Creates a VI whose descriptors will lie in `region`; `cq` serves its receive queue.
    ///
    /// # Errors
    /// The library refuses.
    pub fn new(nic: &Nic, spec: ViSpec, region: &Rc<Region>, cq: Option<&Cq>) -> Result<Self> {
        let functions = nic.functions();
        let reads = nic.attributes().rdma_read_levels & spec.level != 0;
        let mut attributes = VIP_VI_ATTRIBUTES {
            ReliabilityLevel: spec.level,
            MaxTransferSize: spec.transfer_max as c_ulong,
            QoS: std::ptr::null_mut(),
            Ptag: nic.ptag(),
            EnableRdmaWrite: VIP_TRUE,
            EnableRdmaRead: VIP_BOOLEAN::from(reads),
        };
        let mut handle = std::ptr::null_mut();
        let receive_cq = cq.map_or(std::ptr::null_mut(), Cq::handle);
        // SAFETY: a live NIC, filled attributes, NULL or a live CQ, and room for the handle.
        let code = unsafe {
            (functions.VipCreateVi)(
                nic.handle(),
                &raw mut attributes,
                std::ptr::null_mut(),
                receive_cq,
                &raw mut handle,
            )
        };
        check("VipCreateVi", code).map_err(|error| {
            let level = crate::nic::level_names(spec.level);
            error.context(format!(
                "level {level}, MaxTransferSize {}",
                spec.transfer_max
            ))
        })?;
        Ok(Self {
            handle,
            memory: region.handle(),
            post_send: functions.VipPostSend,
            post_receive: functions.VipPostRecv,
            send_done: functions.VipSendDone,
            receive_done: functions.VipRecvDone,
            nic: nic.clone(),
            _region: Rc::clone(region),
            _cq: cq.cloned(),
        })
    }

    /// Posts to the send queue: sends and RDMA.
    ///
    /// # Errors
    /// The library refuses.
    #[inline(always)]
    pub fn post_send(&self, descriptor: Descriptor) -> Result<()> {
        // SAFETY: a live VI, a descriptor in registered memory that stays mapped.
        match unsafe { (self.post_send)(self.handle, descriptor.as_ptr(), self.memory) } {
            0 => Ok(()),
            code => Err(Error::call("VipPostSend", code)),
        }
    }

    /// Posts to the receive queue.
    ///
    /// # Errors
    /// The library refuses.
    #[inline(always)]
    pub fn post_receive(&self, descriptor: Descriptor) -> Result<()> {
        // SAFETY: a live VI, a descriptor in registered memory that stays mapped.
        match unsafe { (self.post_receive)(self.handle, descriptor.as_ptr(), self.memory) } {
            0 => Ok(()),
            code => Err(Error::call("VipPostRecv", code)),
        }
    }

    /// Takes a completed descriptor off the send queue, if its head is complete.
    ///
    /// # Errors
    /// The descriptor completed with an error, or the library refuses.
    #[inline(always)]
    pub fn send_done(&self) -> Result<Option<Descriptor>> {
        let mut taken = std::ptr::null_mut();
        // SAFETY: a live VI and room for the result.
        match unsafe { (self.send_done)(self.handle, &raw mut taken) } {
            0 => Ok(Descriptor::from_library(taken)),
            NOT_DONE => Ok(None),
            code => not_taken("VipSendDone", code, taken),
        }
    }

    /// Takes a completed descriptor off the receive queue, if its head is complete.
    ///
    /// # Errors
    /// The descriptor completed with an error, or the library refuses.
    #[inline(always)]
    pub fn receive_done(&self) -> Result<Option<Descriptor>> {
        let mut taken = std::ptr::null_mut();
        // SAFETY: a live VI and room for the result.
        match unsafe { (self.receive_done)(self.handle, &raw mut taken) } {
            0 => Ok(Descriptor::from_library(taken)),
            NOT_DONE => Ok(None),
            code => not_taken("VipRecvDone", code, taken),
        }
    }

    /// Takes a descriptor off the send queue, flushed or not: whether there was a complete one. For
    /// sends that are meant to be flushed.
    #[inline(always)]
    #[must_use]
    pub fn send_done_any(&self) -> bool {
        let mut taken = std::ptr::null_mut();
        // SAFETY: a live VI and room for the result.
        let _ = unsafe { (self.send_done)(self.handle, &raw mut taken) };
        !taken.is_null()
    }

    /// Waits for the head of the send queue; None after the timeout.
    ///
    /// # Errors
    /// The descriptor completed with an error, or the library refuses.
    pub fn send_wait(&self, timeout_ms: u64) -> Result<Option<Descriptor>> {
        let mut taken = std::ptr::null_mut();
        let wait = self.nic.functions().VipSendWait;
        // SAFETY: a live VI and room for the result.
        match unsafe { wait(self.handle, timeout_ms as c_ulong, &raw mut taken) } {
            0 => Ok(Descriptor::from_library(taken)),
            code => not_taken("VipSendWait", code, taken),
        }
    }

    /// Waits for the head of the receive queue; None after the timeout.
    ///
    /// # Errors
    /// The descriptor completed with an error, or the library refuses.
    pub fn receive_wait(&self, timeout_ms: u64) -> Result<Option<Descriptor>> {
        let mut taken = std::ptr::null_mut();
        let wait = self.nic.functions().VipRecvWait;
        // SAFETY: a live VI and room for the result.
        match unsafe { wait(self.handle, timeout_ms as c_ulong, &raw mut taken) } {
            0 => Ok(Descriptor::from_library(taken)),
            code => not_taken("VipRecvWait", code, taken),
        }
    }

    /// Asks a server for a connection.
    ///
    /// # Errors
    /// There is none: the code tells why.
    pub fn request(&self, local: &NetAddress, remote: &NetAddress, timeout_ms: u64) -> Result<()> {
        let mut theirs = MaybeUninit::<VIP_VI_ATTRIBUTES>::zeroed();
        // SAFETY: a live VI, two addresses, and room for the attributes.
        let code = unsafe {
            (self.nic.functions().VipConnectRequest)(
                self.handle,
                local.as_ptr(),
                remote.as_ptr(),
                timeout_ms as c_ulong,
                theirs.as_mut_ptr(),
            )
        };
        check("VipConnectRequest", code)
    }

    /// Asks for a peer-to-peer connection, and does not wait for it.
    ///
    /// # Errors
    /// The library refuses.
    pub fn peer(&self, local: &NetAddress, remote: &NetAddress, timeout_ms: u64) -> Result<()> {
        // SAFETY: a live VI and two addresses.
        let code = unsafe {
            (self.nic.functions().VipConnectPeerRequest)(
                self.handle,
                local.as_ptr(),
                remote.as_ptr(),
                timeout_ms as c_ulong,
            )
        };
        check("VipConnectPeerRequest", code)
    }

    /// Waits for the connection that [`Vi::peer`] has asked for.
    ///
    /// # Errors
    /// There is none: the code tells why.
    pub fn peer_wait(&self) -> Result<()> {
        let mut theirs = MaybeUninit::<VIP_VI_ATTRIBUTES>::zeroed();
        // SAFETY: a live VI and room for the attributes.
        let code =
            unsafe { (self.nic.functions().VipConnectPeerWait)(self.handle, theirs.as_mut_ptr()) };
        check("VipConnectPeerWait", code)
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// The library refuses, or the client is gone.
    pub fn accept(&self, request: Request) -> Result<()> {
        request.accept(self.handle)
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
        (NOT_DONE | TIMEOUT, _) | (FAILED, None) => Ok(None),
        (FAILED, Some(descriptor)) => Err(Error::Descriptor {
            function,
            status: descriptor.status(),
        }),
        (code, _) => Err(Error::call(function, code)),
    }
}

impl Drop for Vi {
    fn drop(&mut self) {
        let functions = self.nic.functions();
        // SAFETY: a live VI.
        let _ = unsafe { (functions.VipDisconnect)(self.handle) };
        // A queue must be empty before its VI is destroyed. Everything is flushed by now.
        for done in [self.send_done, self.receive_done] {
            loop {
                let mut taken = std::ptr::null_mut();
                // SAFETY: a live VI and room for the result.
                let _ = unsafe { done(self.handle, &raw mut taken) };
                if taken.is_null() {
                    break;
                }
            }
        }
        // SAFETY: a live, idle VI.
        let _ = unsafe { (functions.VipDestroyVi)(self.handle) };
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

    /// Where the partner may write to or read from.
    #[must_use]
    pub fn target(&self) -> Span {
        self.region.span(self.receive_offsets[0], self.bytes)
    }
}
