//! The environment of the protocol engine: the descriptors, memory and completions of the host's VI, and the
//! connection's carrier.

use std::ffi::c_int;

use vipl_abi::*;
use vipl_netio::Frame;
use vipl_netio::peer::PeerProcess;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::descriptor::{self, Segments};
use vipl_plugin_sdk::region::{self, Table};
use vipl_plugin_sdk::{Host, Port, Queue};
use vipl_wire::{Cause, Env, Incoming, MemoryFault, Operation, Outgoing, Remote, Transmit};

use crate::READ_LEVELS;
use crate::carrier::Transmitter;
use crate::device::{Device, count};

/// A VI during one operation.
pub(crate) struct ViEnv<'a> {
    pub(crate) port: &'a Port,
    pub(crate) out: Transmitter<'a>,
    /// The peer process, on another host.
    pub(crate) peer: Option<&'a PeerProcess>,
    pub(crate) device: &'a Device,
}

impl Transmit for ViEnv<'_> {
    type Frame = Frame;

    #[inline(always)]
    fn frame(&mut self) -> Option<Frame> {
        self.out.frame()
    }

    #[inline(always)]
    fn transmit(&mut self, frame: Frame, bytes: usize) {
        self.out.transmit(frame, bytes);
    }

    #[inline(always)]
    fn now(&mut self) -> Option<u64> {
        self.out.now()
    }
}

impl Env for ViEnv<'_> {
    type Segments = Segments;

    #[inline(always)]
    fn sends_posted(&self) -> u32 {
        self.port.posted(Queue::Send)
    }

    #[inline(always)]
    fn sends_completed(&self) -> u32 {
        self.port.completed(Queue::Send)
    }

    #[inline(always)]
    fn receives_posted(&self) -> u32 {
        self.port.posted(Queue::Recv)
    }

    #[inline(always)]
    fn receives_completed(&self) -> u32 {
        self.port.completed(Queue::Recv)
    }

    #[inline(always)]
    fn outgoing(&mut self, number: u32) -> Result<Outgoing<Segments>, u32> {
        let entry = self.port.entry(Queue::Send, number);
        let found =
            descriptor::outgoing(self.port, &entry, READ_LEVELS).map_err(|fault| fault.status)?;
        Ok(Outgoing {
            operation: match found.operation {
                descriptor::Operation::Send => Operation::Send,
                descriptor::Operation::Write => Operation::Write,
                descriptor::Operation::Read => Operation::Read,
            },
            length: found.length,
            immediate: found.immediate,
            flagged: found.flagged,
            fenced: found.fenced,
            address: found.remote.address,
            handle: found.remote.handle,
            segments: found.segments,
        })
    }

    #[inline(always)]
    fn incoming(&mut self, number: u32, message: Option<u32>) -> Result<Incoming<Segments>, u32> {
        let entry = self.port.entry(Queue::Recv, number);
        let segments =
            descriptor::incoming(self.port, &entry, message).map_err(|fault| fault.status)?;
        Ok(Incoming {
            capacity: segments.total(),
            segments,
        })
    }

    #[inline(always)]
    fn gather(&mut self, from: &Segments, offset: u32, out: &mut [u8]) -> Result<(), MemoryFault> {
        let out = out.as_mut_ptr_range();
        let bytes = out.end as usize - out.start as usize;
        walk(from, offset, bytes, |address, at, length| {
            // SAFETY: `at + length` is inside `out`; faults are caught.
            unsafe { vipl_guard::copy(out.start.add(at), address, length) }
        })
    }

    #[inline(always)]
    fn scatter(&mut self, to: &Segments, offset: u32, bytes: &[u8]) -> Result<(), MemoryFault> {
        walk(to, offset, bytes.len(), |address, at, length| {
            // SAFETY: `at + length` is inside `bytes`; faults are caught.
            unsafe { vipl_guard::copy(address, bytes.as_ptr().add(at), length) }
        })
    }

    fn place(
        &mut self,
        range: &Remote,
        offset: u32,
        bytes: &[u8],
        begun: bool,
    ) -> Result<(), MemoryFault> {
        let enabled = begun || self.port.vi().rdma_write != 0;
        let flag = (!begun).then_some(VIPL_REGION_RDMA_WRITE);
        let to = self.target(range, offset, bytes.len(), enabled, flag)?;
        // Applications poll the last eight bytes of the range. The part that has them has all of them.
        let ends = u64::from(offset) + bytes.len() as u64 == u64::from(range.length);
        // SAFETY: the range was checked; faults are caught.
        let copied = unsafe {
            if ends {
                vipl_guard::copy_watched(to, bytes.as_ptr(), bytes.len())
            } else {
                vipl_guard::copy(to, bytes.as_ptr(), bytes.len())
            }
        };
        copied.map_err(|_| MemoryFault)
    }

    fn fetch(&mut self, range: &Remote, offset: u32, out: &mut [u8]) -> Result<(), MemoryFault> {
        let enabled = self.port.vi().rdma_read != 0;
        let from = self.target(
            range,
            offset,
            out.len(),
            enabled,
            Some(VIPL_REGION_RDMA_READ),
        )?;
        // SAFETY: `out` has the room; faults are caught.
        unsafe { vipl_guard::copy(out.as_mut_ptr(), from, out.len()).map_err(|_| MemoryFault) }
    }

    #[inline(always)]
    fn complete_send(&mut self, status: u32) -> bool {
        self.port.complete(Queue::Send, status, None)
    }

    #[inline(always)]
    fn complete_receive(&mut self, status: u32, length: u32, immediate: u32) -> bool {
        self.port
            .complete(Queue::Recv, status, Some((length, immediate)))
    }

    fn peer_last_received(&mut self, heard_ns: u64) -> u64 {
        self.peer.map_or(heard_ns, |peer| peer.heard(heard_ns))
    }

    #[cold]
    fn path_carries(&mut self, bytes: u16, black_hole: bool) {
        let name = &self.device.name;
        let to = match self.out.carrier.peer() {
            Some(peer) => format!("to {peer}"),
            None => "within this host".to_owned(),
        };
        if black_hole {
            count(self.device.counters.black_holes, 1);
            let text = format!("{name}: long frames {to} vanish; they have {bytes} bytes now");
            Host::get().log(VIPL_LOG_INFO, &text);
        } else {
            let text = format!("{name}: the path {to} carries frames of {bytes} bytes");
            Host::get().log(VIPL_LOG_INFO, &text);
        }
    }

    fn path_refuses_ect(&mut self) {
        self.out.carrier.refuse_ect();
    }

    fn raise(&mut self, code: u32, opcode: u32) {
        use VIP_ERROR_CODE::*;
        // All errors that leave a connection open; any other would be a bug of the engine.
        let known = [
            VIP_ERROR_RECVQ_EMPTY,
            VIP_ERROR_RDMAW_PROT,
            VIP_ERROR_RDMAW_DATA,
            VIP_ERROR_RDMAW_ABORT,
            VIP_ERROR_RDMAR_PROT,
            VIP_ERROR_RDMA_TRANSPORT,
        ];
        let found = known.into_iter().find(|known| *known as u32 == code);
        debug_assert!(found.is_some(), "asynchronous error {code}");
        if let Some(code) = found {
            self.port.raise(code, opcode);
        }
    }

    fn fail(&mut self, cause: Cause, opcode: u32) {
        let cause = match cause {
            Cause::Reported => VIPL_CAUSE_REPORTED,
            Cause::Disconnected => VIPL_CAUSE_DISCONNECTED,
            Cause::Async(code) => code as c_int,
        };
        self.port.fail(cause, opcode, std::ptr::null_mut());
    }
}

impl ViEnv<'_> {
    /// The address of a piece of an RDMA range, if the whole range may be accessed in this way. Without a flag it need
    /// only be registered.
    fn target(
        &self,
        range: &Remote,
        offset: u32,
        bytes: usize,
        enabled: bool,
        flag: Option<u32>,
    ) -> Result<*mut u8, MemoryFault> {
        let (nic, tag) = (self.port.nic(), self.port.vi().ptag);
        let table = Table {
            regions: nic.regions,
            count: nic.region_count,
        };
        let length = u64::from(range.length);
        let inside = u64::from(offset) + bytes as u64 <= length;
        // A peer of 32 bits may have left anything in the upper half.
        let (handle, address) = (range.handle, vipl_guard::own_address(range.address));
        let permitted = enabled
            && match flag {
                Some(flag) => region::is_remote(table, handle, address, length, tag, flag),
                None => region::is_registered(table, handle, address, length),
            };
        // A range of no bytes is not checked (spec §5.6).
        if inside && (permitted || length == 0) {
            let at = range.address as usize + offset as usize;
            Ok(std::ptr::with_exposed_provenance_mut(at))
        } else {
            Err(MemoryFault)
        }
    }
}

/// Calls `copy` for each segment's share of the `bytes` bytes from `offset` on: its address, its position among these
/// bytes, its length.
#[inline(always)]
fn walk(
    segments: &Segments,
    offset: u32,
    bytes: usize,
    mut copy: impl FnMut(*mut u8, usize, usize) -> Result<(), vipl_guard::Fault>,
) -> Result<(), MemoryFault> {
    let (mut skip, mut done) = (offset as usize, 0);
    for number in 0..segments.len() {
        if done == bytes {
            break;
        }
        // The application may have changed it since it was checked; it can harm its own memory only.
        let segment = segments.get(number).map_err(|_| MemoryFault)?;
        let length = segment.length as usize;
        if skip >= length {
            skip -= length;
            continue;
        }
        let length = (length - skip).min(bytes - done);
        let at = segment.address as usize + skip;
        copy(std::ptr::with_exposed_provenance_mut(at), done, length).map_err(|_| MemoryFault)?;
        done += length;
        skip = 0;
    }
    if done == bytes {
        Ok(())
    } else {
        Err(MemoryFault)
    }
}
