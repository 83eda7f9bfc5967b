//! What the protocol engine works on: a VI, and the memory of its process, which is another one.
//!
//! The engine walks a descriptor and then moves its data at once, so the segments of the one that was walked last are all
//! that is kept. The process may change everything between two walks; only its own memory is at stake, and each walk
//! checks again.

use vipl_abi::*;
use vipl_clan_proto::message::flag;
use vipl_clan_proto::vi::{Segment, end, event};
use vipl_netio::env::{Application, Call};
use vipl_netio::peer::PeerProcess;
use vipl_rules::Queue;
use vipl_rules::descriptor::Regions;
use vipl_rules::refusal::Refusal;
use vipl_wire::{Cause, Incoming, MemoryFault, Operation};

use crate::completions::Outcome;
use crate::outbox::Line;
use crate::process::{piece, pieces};
use crate::queues::{Data, Outgoing};
use crate::tools::Tools;
use crate::vi::Vi;

/// One call of the engine.
pub(crate) type ViCall<'a> = Call<'a, Owner<'a>>;

/// A VI during one call of the engine.
pub(crate) struct Owner<'a> {
    vi: &'a mut Vi,
    tools: &'a mut Tools,
}

/// A call of the engine for this VI.
#[inline(always)]
pub(crate) fn call<'a>(
    vi: &'a mut Vi,
    tools: &'a mut Tools,
    out: Line<'a>,
    peer: &'a PeerProcess,
) -> ViCall<'a> {
    Call {
        application: Owner { vi, tools },
        out,
        peer: Some(peer),
    }
}

fn moved(done: bool) -> Result<(), MemoryFault> {
    if done { Ok(()) } else { Err(MemoryFault) }
}

impl Owner<'_> {
    /// Lists in [`Tools::pieces`] the memory that holds `bytes` bytes of the data, from `offset` on.
    #[inline(always)]
    fn pieces(&mut self, of: &Data, offset: u32, bytes: usize) {
        let tools = &mut *self.tools;
        let segments = match of {
            Data::Inline => &[][..],
            Data::Out => &tools.out,
            Data::Into => &tools.into,
        };
        tools.pieces.clear();
        pieces(&mut tools.pieces, segments, offset, bytes);
    }
}

impl<'a> Application for Owner<'a> {
    type Segments = Data;
    type Out = Line<'a>;

    #[inline(always)]
    fn posted(&self, queue: Queue) -> u32 {
        self.vi.posted(queue)
    }

    #[inline(always)]
    fn completed(&self, queue: Queue) -> u32 {
        match queue {
            Queue::Send => self.vi.sends(),
            Queue::Recv => self.vi.receives(),
        }
    }

    #[inline(always)]
    fn outgoing(&mut self, number: u32) -> Result<Outgoing, u32> {
        self.vi.queues().outgoing(number, self.tools)
    }

    #[inline(always)]
    fn incoming(&mut self, number: u32, message: Option<u32>) -> Result<Incoming<Data>, u32> {
        let queues = self.vi.queues();
        // A doorbell that was rung and is not any more: the process has spoiled it.
        let line = queues.pages().receive_doorbell(number);
        let line = line.ok_or(VIP_STATUS_PROTECTION_ERROR)?;
        let found = queues.incoming(&line, message, self.tools)?;
        Ok(Incoming {
            capacity: found.capacity,
            segments: Data::Into,
        })
    }

    #[inline(always)]
    fn gather(&mut self, from: &Data, offset: u32, out: &mut [u8]) -> Result<(), MemoryFault> {
        if let Data::Inline = from {
            let data = self.tools.bounce.get(offset as usize..);
            let data = data.and_then(|data| data.get(..out.len()));
            out.copy_from_slice(data.ok_or(MemoryFault)?);
            return Ok(());
        }
        self.pieces(from, offset, out.len());
        let process = self.vi.queues().process();
        moved(process.read(&self.tools.pieces, out).is_ok())
    }

    #[inline(always)]
    fn scatter(&mut self, to: &Data, offset: u32, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.pieces(to, offset, bytes.len());
        let process = self.vi.queues().process();
        moved(process.write(bytes, &self.tools.pieces) == bytes.len())
    }

    fn read(&mut self, from: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let process = self.vi.queues().process();
        moved(process.read(&[piece(from, out.len())], out).is_ok())
    }

    fn write(&mut self, to: u64, bytes: &[u8], ends: bool) -> Result<(), MemoryFault> {
        let last = if ends { bytes.len().min(8) } else { 0 };
        let first = bytes.len() - last;
        let behind = to.wrapping_add(first as u64);
        let parts = [piece(to, first), piece(behind, last)];
        let process = self.vi.queues().process();
        moved(process.write(bytes, &parts) == bytes.len())
    }

    fn regions(&self) -> Regions<'_> {
        self.vi.queues().regions()
    }

    fn permits(&self, operation: Operation) -> bool {
        self.vi.queues().terms().has(match operation {
            Operation::Read => flag::RDMA_READ,
            _ => flag::RDMA_WRITE,
        })
    }

    fn own_address(&self, address: u64) -> u64 {
        let segment = Segment {
            address,
            ..Segment::default()
        };
        self.vi.queues().process().own(segment).address
    }

    #[inline(always)]
    fn complete(&mut self, queue: Queue, status: u32, data: Option<(u32, u32)>) -> bool {
        match queue {
            Queue::Send => self.vi.complete_send(self.tools, status),
            Queue::Recv => {
                let (length, immediate) = data.unwrap_or_default();
                let outcome = Outcome {
                    status,
                    length,
                    immediate,
                };
                self.vi.complete_receive(self.tools, outcome, 0);
            }
        }
        // A descriptor whose memory is not there is found by the application's side, which breaks the connection.
        true
    }

    #[cold]
    fn refused(&mut self, refusal: &Refusal) {
        self.vi.queues().pages().words().refused.set(refusal);
    }

    fn raise(&mut self, code: u32, _opcode: u32) {
        use VIP_ERROR_CODE::*;
        // All errors that leave a connection open; any other would be a bug of the engine.
        let known = [
            (VIP_ERROR_RECVQ_EMPTY, event::EMPTY),
            (VIP_ERROR_RDMAW_PROT, event::REFUSED),
            (VIP_ERROR_RDMAW_ABORT, event::CUT),
        ];
        let found = known.into_iter().find(|(known, _)| *known as u32 == code);
        debug_assert!(found.is_some(), "asynchronous error {code}");
        if let Some((_, event)) = found {
            self.vi.raise(self.tools, event);
        }
    }

    fn fail(&mut self, cause: Cause, _opcode: u32) {
        use VIP_ERROR_CODE::*;
        let known = [
            (VIP_ERROR_RECVQ_EMPTY, end::EMPTY),
            (VIP_ERROR_RDMAW_PROT, end::WRITE_REFUSED),
            (VIP_ERROR_RDMAR_PROT, end::READ_REFUSED),
            (VIP_ERROR_RDMAW_ABORT, end::WRITE_CUT),
            (VIP_ERROR_RDMA_TRANSPORT, end::READ_CUT),
        ];
        let reason = match cause {
            Cause::Reported => end::REPORTED,
            Cause::Disconnected => end::DISCONNECTED,
            Cause::Async(code) => known
                .into_iter()
                .find(|(known, _)| *known as u32 == code)
                .map_or(end::LOST, |(_, reason)| reason),
        };
        self.vi.die(self.tools, reason);
    }

    #[inline(always)]
    fn has_exited(&self) -> bool {
        self.vi.queues().process().has_exited()
    }
}
