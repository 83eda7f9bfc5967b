//! One end of one link: a VI with its descriptors and buffers, connected again and again.
//!
//! ```text
//!   region:  descriptors │ send buffers │ receive buffers │ window │ source │ landing
//!                                                            ▲        │        ▲
//!                                  RDMA Writes of the peer┘        │        └ own RDMA Reads
//!                                                  RDMA Reads of the peer
//! ```

use std::ffi::c_int;
use std::time::Duration;

use vipl_abi::*;
use vipl_client::raw::{descriptor_bytes, write_descriptor};
use vipl_client::{
    Access, Address, Code, Cq, RawVi, Region, Reliability, Request, ViOptions, ViState,
};

use crate::node::{Node, must};
use crate::report::fault;
use crate::stop::stopping;

const SUCCESS: c_int = VIP_RETURN::VIP_SUCCESS as c_int;
const NOT_DONE: c_int = VIP_RETURN::VIP_NOT_DONE as c_int;
const TIMEOUT: c_int = VIP_RETURN::VIP_TIMEOUT as c_int;
const DESCRIPTOR_ERROR: c_int = VIP_RETURN::VIP_DESCRIPTOR_ERROR as c_int;

/// Messages of each side that are under way at first; from then on each message is answered with one.
pub(crate) const TOKENS: usize = 2;
/// Receives: never more than both sides' tokens come at once.
pub(crate) const RECEIVES: usize = 2 * TOKENS;
/// Sends and RDMA operations.
pub(crate) const SENDS: usize = RECEIVES + 2;
/// Largest message.
pub(crate) const BYTES: usize = 65536;
const STRIDE: usize = 128;
const _: () = assert!(descriptor_bytes(4) <= STRIDE);
/// How long one call to connect may take; then the end looks whether it shall stop.
const CONNECT: Duration = Duration::from_millis(500);
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
    vi: RawVi,
    cq: Option<Cq>,
    names: [String; 2],
}

impl Link {
    /// `run` is the same for all parties of the run.
    pub(crate) fn new(node: &'static Node, spec: Spec, run: &str) -> Link {
        let bytes = (SENDS + RECEIVES) * (STRIDE + BYTES) + 3 * BYTES;
        let has_cq = matches!(spec.mode, Mode::CqWait | Mode::CqPoll);
        let cq = has_cq.then(|| must(Cq::new(&node.nic, (SENDS + RECEIVES) as u64)));
        let access = Access {
            write: true,
            read: node.read_levels != 0,
        };
        Link {
            node,
            region: must(Region::new(&node.ptag, bytes, access)),
            vi: create(node, &spec, cq.as_ref()),
            cq,
            names: [format!("{run} {}", spec.id), format!("{run} asks")],
            spec,
        }
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
        let pieces = pieces.clamp(1, 3).min(length);
        let local = (0..pieces).map(|piece| {
            let from = length * piece / pieces;
            let to = length * (piece + 1) / pieces;
            let address = self.address(offset + from);
            (address, self.region.handle(), (to - from) as u32)
        });
        // SAFETY: room for four segments, in the region; it is not posted.
        unsafe {
            write_descriptor(descriptor, control, remote, local);
            (*descriptor).CS.ImmediateData = immediate;
        }
    }

    /// Posts a receive.
    pub(crate) fn post_receive(&self, index: usize) {
        let place = (self.receive_buffer(index), BYTES);
        self.prepare(SENDS + index, VIP_CONTROL_OP_SENDRECV, 0, None, place, 1);
        let descriptor = self.descriptor(SENDS + index);
        // SAFETY: a descriptor in registered memory, which no thread touches before it is returned.
        let code = unsafe { self.vi.post_receive(descriptor, self.region.handle()) };
        posted("VipPostRecv", code);
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
        // SAFETY: as in `post_receive`.
        let code = unsafe { self.vi.post_send(descriptor, self.region.handle()) };
        posted("VipPostSend", code);
    }

    /// Connects; false when the process shall end instead.
    pub(crate) fn connect(&self) -> bool {
        let nic = &self.node.nic;
        let local = nic.address(self.names[usize::from(!self.spec.server)].as_bytes());
        let at = self.spec.at.as_ref().map(|at| at.to_vec());
        let remote = Address {
            host: at.unwrap_or_else(|| local.host.clone()),
            discriminator: self.names[0].clone().into_bytes(),
        };
        while !stopping() {
            let connected = match self.spec.server {
                true => self.serve(&local),
                false => self
                    .vi
                    .connect(&local, &remote, Some(CONNECT))
                    .map(|_| true),
            };
            match connected {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => match error.code() {
                    // No peer, or no agent, for now.
                    Some(
                        Code::Timeout
                        | Code::Reject
                        | Code::NoMatch
                        | Code::NotReachable
                        | Code::Resource,
                    ) => {}
                    _ => fault(&format!("link {}: connecting: {error}", self.spec.id)),
                },
            }
            std::thread::sleep(PAUSE);
        }
        false
    }

    /// Waits for a client and accepts it; false if none came.
    fn serve(&self, local: &Address) -> vipl_client::Result<bool> {
        match Request::wait(&self.node.nic, local, Some(CONNECT))? {
            Some(request) => Ok(request.accept_raw(&self.vi).map(|()| true)?),
            None => Ok(false),
        }
    }

    pub(crate) fn state(&self) -> ViState {
        must(self.vi.query()).state
    }

    /// Whether the loss of the connection has been reported; once.
    pub(crate) fn take_loss(&self) -> bool {
        self.node.take_loss(self.vi.id())
    }

    /// The next completion, in the way of this end.
    pub(crate) fn step(&self, patience: Duration) -> Step {
        let Some(cq) = &self.cq else {
            let sent = self.take(false, None);
            if !matches!(sent, Step::Nothing) {
                return sent;
            }
            let wait = (self.spec.mode == Mode::Wait).then_some(patience);
            let received = self.take(true, wait);
            if matches!((&received, wait), (Step::Nothing, None)) {
                std::thread::yield_now();
            }
            return received;
        };
        let entry = match self.spec.mode {
            Mode::CqWait => cq.wait(Some(patience)),
            _ => cq.done(),
        };
        match must(entry) {
            Some(entry) if entry.vi == self.vi.id() => match self.take(entry.is_receive, None) {
                Step::Nothing => fault("a CQ entry without a completed descriptor"),
                step => step,
            },
            Some(_) => fault("a CQ entry of another VI"),
            None => {
                std::thread::yield_now();
                Step::Nothing
            }
        }
    }

    /// Takes a completed descriptor off one queue.
    fn take(&self, received: bool, wait: Option<Duration>) -> Step {
        let (code, found) = match (received, wait) {
            (true, Some(_)) => self.vi.receive_wait(wait),
            (true, None) => self.vi.receive_done(),
            (false, _) => self.vi.send_done(),
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
            loop {
                let (code, found) = match received {
                    true => self.vi.receive_done(),
                    false => self.vi.send_done(),
                };
                if found.is_null() {
                    break;
                }
                let taken = self.describe(received, found);
                if code == SUCCESS {
                    each(taken);
                }
            }
        }
        if let Some(cq) = &self.cq {
            while must(cq.done()).is_some() {}
        }
    }

    /// Ends the connection, whatever is left of it; `renew`: with another VI afterwards.
    pub(crate) fn disconnect(&mut self, renew: bool) {
        must(self.vi.disconnect());
        self.drain(drop);
        self.take_loss();
        if renew {
            let next = create(self.node, &self.spec, self.cq.as_ref());
            must(std::mem::replace(&mut self.vi, next).destroy());
        }
    }

    /// Destroys all of it, which must be idle and empty.
    pub(crate) fn close(self) {
        must(self.vi.destroy());
        must(self.region.deregister());
    }
}

/// A VI for this end.
fn create(node: &Node, spec: &Spec, cq: Option<&Cq>) -> RawVi {
    let options = ViOptions {
        reliability: Reliability::from_bits(spec.level),
        transfer_max: node.transfer_max as u64,
        rdma_write: true,
        rdma_read: node.read_levels & spec.level != 0,
    };
    must(RawVi::new(&node.ptag, options, [cq, cq]))
}

fn posted(function: &str, code: c_int) {
    if code != SUCCESS {
        fault(&format!("{function} returned {}", Code::from(code).name()));
    }
}
