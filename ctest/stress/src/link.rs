//! One end of one link: a VI with its descriptors and buffers, connected again and again.
//!
//! ```text
//!   region:  descriptors │ send buffers │ receive buffers │ window │ source │ landing
//!                                                            ▲        │        ▲
//!                                  RDMA Writes of the peer┘        │        └ own RDMA Reads
//!                                                  RDMA Reads of the peer
//! ```

use std::ptr::null_mut;
use std::time::Duration;

use vipl_abi::*;

use crate::api::*;
use crate::node::{Node, Region, address, must};
use crate::report::fault;
use crate::stop::stopping;

/// Messages of each side that are under way at first; from then on each message is answered with one.
pub(crate) const TOKENS: usize = 2;
/// Receives: never more than both sides' tokens come at once.
pub(crate) const RECEIVES: usize = 2 * TOKENS;
/// Sends and RDMA operations.
pub(crate) const SENDS: usize = RECEIVES + 2;
/// Largest message.
pub(crate) const BYTES: usize = 65536;
const STRIDE: usize = 128;
/// How long one call to connect may take; then the end looks whether it shall stop.
const CONNECT_MS: VIP_ULONG = 500;
const PAUSE: Duration = Duration::from_millis(5);

/// How an end learns that something has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Wait,
    Poll,
    CqWait,
    CqPoll,
}

/// What an end is told to be.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// The same at both ends, and at no other link of the run.
    pub(crate) id: usize,
    pub(crate) server: bool,
    /// Address of the server's host; none: it is this one.
    pub(crate) at: Option<[u8; 6]>,
    pub(crate) level: u16,
    pub(crate) mode: Mode,
}

/// A descriptor that has completed.
pub(crate) struct Done {
    /// Its number among the sends or receives.
    pub(crate) index: usize,
    pub(crate) received: bool,
    pub(crate) status: u32,
    pub(crate) immediate: u32,
    pub(crate) length: usize,
}

/// What became of waiting for a completion.
pub(crate) enum Step {
    Done(Done),
    Nothing,
    /// The connection is over.
    Broken,
}

/// One end.
pub(crate) struct Link {
    pub(crate) node: &'static Node,
    pub(crate) spec: Spec,
    pub(crate) region: Region,
    pub(crate) vi: VIP_VI_HANDLE,
    cq: VIP_CQ_HANDLE,
    names: [String; 2],
}

impl Link {
    /// `run` is the same for all parties of the run.
    pub(crate) fn new(node: &'static Node, spec: Spec, run: &str) -> Link {
        let bytes = (SENDS + RECEIVES) * (STRIDE + BYTES) + 3 * BYTES;
        let mut cq = null_mut();
        if matches!(spec.mode, Mode::CqWait | Mode::CqPoll) {
            let entries = (SENDS + RECEIVES) as VIP_ULONG;
            // SAFETY: a live NIC and room for the handle.
            must("VipCreateCQ", unsafe {
                (vip().VipCreateCQ)(node.nic, entries, &raw mut cq)
            });
        }
        let names = [format!("{run} {}", spec.id), format!("{run} asks")];
        let mut link = Link {
            node,
            region: Region::new(node, bytes),
            vi: null_mut(),
            cq,
            names,
            spec,
        };
        link.create();
        link
    }

    fn create(&mut self) {
        let read = self.node.read_levels & self.spec.level != 0;
        let mut attributes = VIP_VI_ATTRIBUTES {
            ReliabilityLevel: self.spec.level,
            MaxTransferSize: self.node.transfer_max as VIP_ULONG,
            QoS: null_mut(),
            Ptag: self.node.ptag,
            EnableRdmaWrite: VIP_TRUE,
            EnableRdmaRead: VIP_BOOLEAN::from(read),
        };
        // SAFETY: live handles and room for the new one.
        must("VipCreateVi", unsafe {
            (vip().VipCreateVi)(
                self.node.nic,
                &raw mut attributes,
                self.cq,
                self.cq,
                &raw mut self.vi,
            )
        });
    }

    /// Largest message here.
    pub(crate) fn bytes_max(&self) -> usize {
        BYTES.min(self.node.transfer_max)
    }

    pub(crate) fn send_buffer(&self, index: usize) -> usize {
        (SENDS + RECEIVES) * STRIDE + index * BYTES
    }

    pub(crate) fn receive_buffer(&self, index: usize) -> usize {
        self.send_buffer(SENDS + index)
    }

    pub(crate) fn window(&self) -> usize {
        self.receive_buffer(RECEIVES)
    }

    pub(crate) fn source(&self) -> usize {
        self.window() + BYTES
    }

    pub(crate) fn landing(&self) -> usize {
        self.source() + BYTES
    }

    /// Address of something in the region, for the peer.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.region.at(offset, 0) as u64
    }

    fn descriptor(&self, number: usize) -> *mut VIP_DESCRIPTOR {
        self.region.at(number * STRIDE, STRIDE).cast()
    }

    /// Writes a descriptor: local bytes in up to three pieces, and a remote place for RDMA.
    fn prepare(
        &self,
        number: usize,
        control: u16,
        immediate: u32,
        remote: Option<(u64, u32)>,
        (offset, length): (usize, usize),
        pieces: usize,
    ) {
        let descriptor = self.descriptor(number);
        // SAFETY: room for four segments behind the control segment, all in the region.
        unsafe {
            descriptor.cast::<[u8; STRIDE]>().write([0; STRIDE]);
            let segments = descriptor
                .cast::<u8>()
                .add(32)
                .cast::<VIP_DESCRIPTOR_SEGMENT>();
            let mut used = 0;
            if let Some((address, handle)) = remote {
                (*segments).Remote = VIP_ADDRESS_SEGMENT {
                    Data: VIP_PVOID64 {
                        AddressBits: address,
                    },
                    Handle: handle,
                    Reserved: 0,
                };
                used = 1;
            }
            let pieces = pieces.clamp(1, 3).min(length);
            for piece in 0..pieces {
                let from = length * piece / pieces;
                let to = length * (piece + 1) / pieces;
                (*segments.add(used)).Local = VIP_DATA_SEGMENT {
                    Data: VIP_PVOID64 {
                        AddressBits: self.address(offset + from),
                    },
                    Handle: self.region.handle,
                    Length: (to - from) as u32,
                };
                used += 1;
            }
            let head = &mut (*descriptor).CS;
            head.SegCount = used as u16;
            head.Control = control;
            head.ImmediateData = immediate;
            head.Length = length as u32;
        }
    }

    /// Posts a receive.
    pub(crate) fn post_receive(&self, index: usize) {
        let place = (self.receive_buffer(index), BYTES);
        self.prepare(SENDS + index, VIP_CONTROL_OP_SENDRECV, 0, None, place, 1);
        let descriptor = self.descriptor(SENDS + index);
        // SAFETY: a live VI and a descriptor in registered memory.
        must("VipPostRecv", unsafe {
            (vip().VipPostRecv)(self.vi, descriptor, self.region.handle)
        });
    }

    /// Posts a send of `length` bytes of its buffer.
    pub(crate) fn post_send(&self, index: usize, length: usize, immediate: u32, pieces: usize) {
        let control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
        let place = (self.send_buffer(index), length);
        self.prepare(index, control, immediate, None, place, pieces);
        self.post(index);
    }

    /// Posts an RDMA operation between local and remote bytes.
    pub(crate) fn post_rdma(
        &self,
        index: usize,
        control: u16,
        place: (usize, usize),
        remote: (u64, u32),
    ) {
        self.prepare(index, control, 0, Some(remote), place, 1);
        self.post(index);
    }

    fn post(&self, index: usize) {
        let descriptor = self.descriptor(index);
        // SAFETY: a live VI and a descriptor in registered memory.
        must("VipPostSend", unsafe {
            (vip().VipPostSend)(self.vi, descriptor, self.region.handle)
        });
    }

    /// Connects; false when the process shall end instead.
    pub(crate) fn connect(&self) -> bool {
        let mut local = address(&self.node.host, &self.names[usize::from(!self.spec.server)]);
        let at = self.spec.at.as_ref().map_or(&self.node.host[..], |at| at);
        let mut remote = address(at, &self.names[0]);
        while !stopping() {
            let code = if self.spec.server {
                self.serve(&mut local, &mut remote)
            } else {
                let mut theirs = std::mem::MaybeUninit::<VIP_VI_ATTRIBUTES>::zeroed();
                // SAFETY: a live VI, two addresses, room for the attributes.
                unsafe {
                    (vip().VipConnectRequest)(
                        self.vi,
                        local.as_mut_ptr().cast(),
                        remote.as_mut_ptr().cast(),
                        CONNECT_MS,
                        theirs.as_mut_ptr(),
                    )
                }
            };
            match code {
                SUCCESS => return true,
                // No peer, or no agent, for now.
                TIMEOUT | REJECT | NO_MATCH | NOT_REACHABLE | RESOURCE => {}
                _ => fault(&format!(
                    "link {}: connecting returned {code}",
                    self.spec.id
                )),
            }
            std::thread::sleep(PAUSE);
        }
        false
    }

    fn serve(&self, local: &mut [u8], remote: &mut [u8]) -> i32 {
        let mut theirs = std::mem::MaybeUninit::<VIP_VI_ATTRIBUTES>::zeroed();
        let mut request = null_mut();
        // SAFETY: a live NIC, an address, and room for the results.
        unsafe {
            let code = (vip().VipConnectWait)(
                self.node.nic,
                local.as_mut_ptr().cast(),
                CONNECT_MS,
                remote.as_mut_ptr().cast(),
                theirs.as_mut_ptr(),
                &raw mut request,
            );
            if code != SUCCESS {
                return code;
            }
            (vip().VipConnectAccept)(request, self.vi)
        }
    }

    pub(crate) fn state(&self) -> i32 {
        let (mut state, mut empty) = (0, [0; 2]);
        let mut attributes = std::mem::MaybeUninit::<VIP_VI_ATTRIBUTES>::zeroed();
        let [send, receive] = &mut empty;
        // SAFETY: a live VI and room for the results.
        must("VipQueryVi", unsafe {
            (vip().VipQueryVi)(
                self.vi,
                &raw mut state,
                attributes.as_mut_ptr(),
                send,
                receive,
            )
        });
        state
    }

    /// The next completion, in the way of this end.
    pub(crate) fn step(&self, patience_ms: VIP_ULONG) -> Step {
        match self.spec.mode {
            Mode::Wait | Mode::Poll => {
                let sent = self.take(false, None);
                if !matches!(sent, Step::Nothing) {
                    return sent;
                }
                let wait = (self.spec.mode == Mode::Wait).then_some(patience_ms);
                let received = self.take(true, wait);
                if matches!((&received, wait), (Step::Nothing, None)) {
                    std::thread::yield_now();
                }
                received
            }
            Mode::CqWait | Mode::CqPoll => {
                let (mut vi, mut received) = (null_mut(), 0);
                // SAFETY: a live CQ and room for the results.
                let code = unsafe {
                    match self.spec.mode {
                        Mode::CqWait => {
                            let wait = vip().VipCQWait;
                            wait(self.cq, patience_ms, &raw mut vi, &raw mut received)
                        }
                        _ => (vip().VipCQDone)(self.cq, &raw mut vi, &raw mut received),
                    }
                };
                match code {
                    SUCCESS if vi == self.vi => match self.take(received != 0, None) {
                        Step::Nothing => fault("a CQ entry without a completed descriptor"),
                        step => step,
                    },
                    SUCCESS => fault("a CQ entry of another VI"),
                    NOT_DONE | TIMEOUT => {
                        std::thread::yield_now();
                        Step::Nothing
                    }
                    _ => fault(&format!("a completion queue returned {code}")),
                }
            }
        }
    }

    /// Takes a completed descriptor off one queue.
    fn take(&self, received: bool, wait_ms: Option<VIP_ULONG>) -> Step {
        let mut found = null_mut();
        // SAFETY: a live VI and room for the result.
        let code = unsafe {
            match (received, wait_ms) {
                (true, Some(ms)) => (vip().VipRecvWait)(self.vi, ms, &raw mut found),
                (true, None) => (vip().VipRecvDone)(self.vi, &raw mut found),
                (false, _) => (vip().VipSendDone)(self.vi, &raw mut found),
            }
        };
        match code {
            NOT_DONE | TIMEOUT => Step::Nothing,
            SUCCESS => Step::Done(self.describe(received, found)),
            // An empty send queue of a connected VI is no loss; of another one the receives tell.
            DESCRIPTOR_ERROR if found.is_null() && !received => Step::Nothing,
            DESCRIPTOR_ERROR => {
                if !found.is_null() {
                    let done = self.describe(received, found);
                    let flushed = VIP_STATUS_DESC_FLUSHED_ERROR;
                    let transport = VIP_STATUS_TRANSPORT_ERROR;
                    if done.status & VIP_STATUS_ERROR_MASK & !(flushed | transport) != 0 {
                        let (id, status) = (self.spec.id, done.status);
                        fault(&format!("link {id}: a descriptor with status {status:#x}"));
                    }
                }
                Step::Broken
            }
            _ => fault(&format!("a queue returned {code}")),
        }
    }

    fn describe(&self, received: bool, found: *mut VIP_DESCRIPTOR) -> Done {
        let number = (found.addr() - self.descriptor(0).addr()) / STRIDE;
        if number >= SENDS + RECEIVES || received != (number >= SENDS) {
            fault("a descriptor that was not posted there");
        }
        // SAFETY: one of our descriptors, which the library has given back.
        let head = unsafe { (*found).CS };
        Done {
            index: if received { number - SENDS } else { number },
            received,
            status: head.Status,
            immediate: head.ImmediateData,
            length: head.Length as usize,
        }
    }

    /// What is left on the queues of a connection that is over: first everything that had arrived.
    pub(crate) fn drain(&self, mut each: impl FnMut(Done)) {
        for received in [false, true] {
            let done = if received {
                vip().VipRecvDone
            } else {
                vip().VipSendDone
            };
            loop {
                let mut found = null_mut();
                // SAFETY: a live VI and room for the result.
                let code = unsafe { done(self.vi, &raw mut found) };
                if found.is_null() {
                    break;
                }
                let taken = self.describe(received, found);
                if code == SUCCESS {
                    each(taken);
                }
            }
        }
        if !self.cq.is_null() {
            let (mut vi, mut received) = (null_mut(), 0);
            // SAFETY: a live CQ and room for the results.
            while unsafe { (vip().VipCQDone)(self.cq, &raw mut vi, &raw mut received) } == SUCCESS {
            }
        }
    }

    /// Ends the connection, whatever is left of it; `renew`: with another VI afterwards.
    pub(crate) fn disconnect(&mut self, renew: bool) {
        // SAFETY: a live VI.
        must("VipDisconnect", unsafe { (vip().VipDisconnect)(self.vi) });
        self.drain(drop);
        self.node.take_loss(self.vi);
        if renew {
            // SAFETY: a live, idle VI.
            must("VipDestroyVi", unsafe { (vip().VipDestroyVi)(self.vi) });
            self.create();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: live handles; the VI is idle and empty.
        unsafe {
            must("VipDestroyVi", (vip().VipDestroyVi)(self.vi));
            if !self.cq.is_null() {
                must("VipDestroyCQ", (vip().VipDestroyCQ)(self.cq));
            }
        }
    }
}
