//! What the engine works on: the host's VI, and memory of this process.

use std::ffi::c_int;

use vipl_abi::*;
use vipl_netio::env::{Application, Call, Moved};
use vipl_netio::peer::PeerProcess;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::descriptor::{self, Outgoing, Segments};
use vipl_plugin_sdk::{Host, Port, Queue};
use vipl_rules::descriptor::Regions;
use vipl_rules::refusal::Refusal;
use vipl_wire::{Cause, Incoming, MemoryFault, Operation};

use crate::READ_LEVELS;
use crate::carrier::Transmitter;
use crate::device::{Device, count};

/// One call of the engine.
pub(crate) type ViCall<'a> = Call<'a, ViPort<'a>>;

/// A VI during one operation.
pub(crate) struct ViPort<'a> {
    port: &'a Port,
    pub(crate) device: &'a Device,
}

/// A call of the engine for this VI.
#[inline(always)]
pub(crate) fn call<'a>(
    port: &'a Port,
    device: &'a Device,
    out: Transmitter<'a>,
    peer: Option<&'a PeerProcess>,
) -> ViCall<'a> {
    let application = ViPort { port, device };
    Call {
        application,
        out,
        peer,
    }
}

fn fault(_: vipl_guard::Fault) -> MemoryFault {
    MemoryFault
}

impl<'a> Application for ViPort<'a> {
    type Segments = Segments;
    type Out = Transmitter<'a>;

    #[inline(always)]
    fn posted(&self, queue: Queue) -> u32 {
        self.port.posted(queue)
    }

    #[inline(always)]
    fn completed(&self, queue: Queue) -> u32 {
        self.port.completed(queue)
    }

    #[inline(always)]
    fn outgoing(&mut self, number: u32) -> Result<Outgoing, u32> {
        // SAFETY: the engine asks for sends that are posted and not complete.
        let entry = unsafe { self.port.entry(Queue::Send, number) };
        descriptor::outgoing(self.port, &entry, READ_LEVELS).map_err(|fault| fault.status)
    }

    #[inline(always)]
    fn incoming(&mut self, number: u32, message: Option<u32>) -> Result<Incoming<Segments>, u32> {
        // SAFETY: the engine asks for receives that are posted and not complete.
        let entry = unsafe { self.port.entry(Queue::Recv, number) };
        let segments =
            descriptor::incoming(self.port, &entry, message).map_err(|fault| fault.status)?;
        Ok(Incoming {
            capacity: segments.total(),
            segments,
        })
    }

    #[inline(always)]
    fn gather(&mut self, from: &Segments, offset: u32, out: &mut [u8]) -> Moved {
        let (start, bytes) = (out.as_mut_ptr(), out.len());
        from.pieces(offset, bytes, |at, address, length| {
            // SAFETY: `at + length` is inside `out`; faults are caught.
            unsafe { vipl_guard::copy(start.add(at), address, length) }
        })
        .map_err(fault)
    }

    #[inline(always)]
    fn scatter(&mut self, to: &Segments, offset: u32, bytes: &[u8]) -> Moved {
        to.pieces(offset, bytes.len(), |at, address, length| {
            // SAFETY: `at + length` is inside `bytes`; faults are caught.
            unsafe { vipl_guard::copy(address, bytes.as_ptr().add(at), length) }
        })
        .map_err(fault)
    }

    fn read(&mut self, from: u64, out: &mut [u8]) -> Moved {
        let from = std::ptr::with_exposed_provenance(from as usize);
        // SAFETY: `out` has the room; faults are caught.
        unsafe { vipl_guard::copy(out.as_mut_ptr(), from, out.len()) }.map_err(fault)
    }

    fn write(&mut self, to: u64, bytes: &[u8], ends: bool) -> Moved {
        let to = std::ptr::with_exposed_provenance_mut(to as usize);
        // SAFETY: the range was checked; faults are caught.
        let copied = unsafe {
            if ends {
                vipl_guard::copy_watched(to, bytes.as_ptr(), bytes.len())
            } else {
                vipl_guard::copy(to, bytes.as_ptr(), bytes.len())
            }
        };
        copied.map_err(fault)
    }

    fn regions(&self) -> Regions<'_> {
        descriptor::regions(self.port)
    }

    fn permits(&self, operation: Operation) -> bool {
        match operation {
            Operation::Read => self.port.rdma_read(),
            _ => self.port.rdma_write(),
        }
    }

    fn own_address(&self, address: u64) -> u64 {
        vipl_guard::own_address(address)
    }

    #[inline(always)]
    fn complete(&mut self, queue: Queue, status: u32, data: Option<(u32, u32)>) -> bool {
        self.port.complete(queue, status, data)
    }

    #[cold]
    fn refused(&mut self, refusal: &Refusal) {
        self.port.refused(refusal);
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

    #[cold]
    fn path_carries(&mut self, out: &mut Transmitter<'a>, bytes: u16, black_hole: bool) {
        let name = &self.device.name;
        let to = match out.carrier.peer() {
            Some(peer) => format!("to {peer}"),
            None => "within this host".to_owned(),
        };
        let text = if black_hole {
            count(self.device.counters.black_holes, 1);
            format!("{name}: long frames {to} vanish; they have {bytes} bytes now")
        } else {
            format!("{name}: the path {to} carries frames of {bytes} bytes")
        };
        Host::get().log(VIPL_LOG_INFO, &text);
    }

    fn path_refuses_ect(&mut self, out: &mut Transmitter<'a>) {
        out.carrier.refuse_ect();
    }
}
