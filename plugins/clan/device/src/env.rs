//! What the protocol asks of a device, over a VI of another process.
//!
//! The engine walks a descriptor and then moves its data at once, so the segments of the one that was walked
//! last are all that is kept. The process may change everything between two walks; only its own memory is at
//! stake, and each walk checks anew.

use vipl_abi::*;
use vipl_clan_proto::message::flag;
use vipl_clan_proto::vi::{Segment, end, event};
use vipl_netio::Frame;
use vipl_netio::peer::PeerProcess;
use vipl_plugin_abi::{VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE};
use vipl_rules::descriptor;
use vipl_wire::{Cause, Env, Incoming, MemoryFault, Operation, Outgoing, Remote, Transmit};

use crate::completions::Outcome;
use crate::outbox::Line;
use crate::process::{piece, pieces};
use crate::tools::Tools;
use crate::vi::Vi;

/// Where the data of the descriptor that was walked last is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data {
    /// In [`Tools::bounce`]: it came with the doorbell.
    Inline,
    /// In the segments [`Tools::out`].
    Out,
    /// In the segments [`Tools::into`].
    Into,
}

/// A VI during one call of the engine.
pub(crate) struct Bench<'a> {
    vi: &'a mut Vi,
    tools: &'a mut Tools,
    line: Line<'a>,
    /// The peer's process.
    peer: &'a PeerProcess,
}

impl<'a> Bench<'a> {
    #[inline(always)]
    pub(crate) fn new(
        vi: &'a mut Vi,
        tools: &'a mut Tools,
        mut line: Line<'a>,
        peer: &'a PeerProcess,
    ) -> Bench<'a> {
        line.mute = vi.queues().process().is_gone();
        Bench {
            vi,
            tools,
            line,
            peer,
        }
    }
}

impl Transmit for Bench<'_> {
    type Frame = Frame;

    #[inline(always)]
    fn frame(&mut self) -> Option<Frame> {
        self.line.frame()
    }

    #[inline(always)]
    fn transmit(&mut self, frame: Frame, bytes: usize) {
        // Of a process that has ended nothing is said: the agent does that.
        if !self.line.mute {
            self.line.transmit(frame, bytes);
        }
    }
}

impl Env for Bench<'_> {
    type Segments = Data;

    #[inline(always)]
    fn sends_posted(&self) -> u32 {
        self.vi.sends_posted()
    }

    #[inline(always)]
    fn sends_completed(&self) -> u32 {
        self.vi.sends()
    }

    #[inline(always)]
    fn receives_posted(&self) -> u32 {
        self.vi.receives_posted()
    }

    #[inline(always)]
    fn receives_completed(&self) -> u32 {
        self.vi.receives()
    }

    #[inline(always)]
    fn outgoing(&mut self, number: u32) -> Result<Outgoing<Data>, u32> {
        let found = match self.vi.queues().outgoing(number, self.tools) {
            Ok(found) => found,
            Err(status) => {
                self.look_for_life();
                return Err(status);
            }
        };
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
            segments: if found.inline {
                Data::Inline
            } else {
                Data::Out
            },
        })
    }

    #[inline(always)]
    fn incoming(&mut self, number: u32, message: Option<u32>) -> Result<Incoming<Data>, u32> {
        // A doorbell that was rung and is not any more: the process has spoiled it.
        let line = self.vi.queues().pages().receive_doorbell(number);
        let line = line.ok_or(VIP_STATUS_PROTECTION_ERROR)?;
        let found = self.vi.queues().incoming(&line, message, self.tools);
        if found.is_err() {
            self.look_for_life();
        }
        Ok(Incoming {
            capacity: found?.capacity,
            segments: Data::Into,
        })
    }

    #[inline(always)]
    fn gather(&mut self, from: &Data, offset: u32, out: &mut [u8]) -> Result<(), MemoryFault> {
        let tools = &mut *self.tools;
        let segments = match from {
            Data::Inline => {
                let data = tools.bounce.get(offset as usize..).ok_or(MemoryFault)?;
                out.copy_from_slice(data.get(..out.len()).ok_or(MemoryFault)?);
                return Ok(());
            }
            Data::Out => &tools.out,
            Data::Into => &tools.into,
        };
        tools.pieces.clear();
        pieces(&mut tools.pieces, segments, offset, out.len());
        let read = self.vi.queues().process().read(&tools.pieces, out);
        self.check(read.is_ok())
    }

    #[inline(always)]
    fn scatter(&mut self, to: &Data, offset: u32, bytes: &[u8]) -> Result<(), MemoryFault> {
        let tools = &mut *self.tools;
        let segments = match to {
            Data::Inline => return Err(MemoryFault),
            Data::Out => &tools.out,
            Data::Into => &tools.into,
        };
        tools.pieces.clear();
        pieces(&mut tools.pieces, segments, offset, bytes.len());
        let written = self.vi.queues().process().write(bytes, &tools.pieces);
        self.check(written == bytes.len())
    }

    fn place(
        &mut self,
        range: &Remote,
        offset: u32,
        bytes: &[u8],
        begun: bool,
    ) -> Result<(), MemoryFault> {
        let rights = (!begun).then_some((flag::RDMA_WRITE, VIPL_REGION_RDMA_WRITE));
        let at = self.target(range, offset, bytes.len(), rights)?;
        // Programs poll the last eight bytes of the range: they become visible last.
        let ends = u64::from(offset) + bytes.len() as u64 == u64::from(range.length);
        let last = if ends { bytes.len().min(8) } else { 0 };
        let first = bytes.len() - last;
        let behind = at.wrapping_add(first as u64);
        let parts = [piece(at, first), piece(behind, last)];
        let written = self.vi.queues().process().write(bytes, &parts);
        self.check(written == bytes.len())
    }

    fn fetch(&mut self, range: &Remote, offset: u32, out: &mut [u8]) -> Result<(), MemoryFault> {
        let rights = Some((flag::RDMA_READ, VIPL_REGION_RDMA_READ));
        let at = self.target(range, offset, out.len(), rights)?;
        let read = self
            .vi
            .queues()
            .process()
            .read(&[piece(at, out.len())], out);
        self.check(read.is_ok())
    }

    #[inline(always)]
    fn complete_send(&mut self, status: u32) -> bool {
        self.vi.complete_send(self.tools, status);
        // A descriptor that has gone is found by the program's side, which breaks the connection.
        true
    }

    #[inline(always)]
    fn complete_receive(&mut self, status: u32, length: u32, immediate: u32) -> bool {
        let outcome = Outcome {
            status,
            length,
            immediate,
        };
        self.vi.complete_receive(self.tools, outcome, 0);
        true
    }

    fn peer_last_received(&mut self, heard_ns: u64) -> u64 {
        self.peer.received(heard_ns)
    }

    fn raise(&mut self, code: u32, _opcode: u32) {
        use VIP_ERROR_CODE::*;
        // All that happen on a connection that lives on; anything else would be a bug of the engine.
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
}

impl Bench<'_> {
    /// Where a piece of an RDMA range lies, if the whole range may be used so: by a flag of the VI and one of the
    /// region. Without them: if it is registered.
    fn target(
        &self,
        range: &Remote,
        offset: u32,
        bytes: usize,
        rights: Option<(u16, u32)>,
    ) -> Result<u64, MemoryFault> {
        let queues = self.vi.queues();
        let inside = u64::from(offset) + bytes as u64 <= u64::from(range.length);
        let range = queues.process().own(Segment {
            address: range.address,
            handle: range.handle,
            length: range.length,
        });
        let permitted = match rights {
            Some((enable, flag)) => queues.permits(&range, enable, flag),
            None => queues.is_registered(&range),
        };
        if inside && permitted {
            Ok(range.address.wrapping_add(u64::from(offset)))
        } else {
            Err(MemoryFault)
        }
    }

    /// After memory was touched.
    #[inline(always)]
    fn check(&mut self, done: bool) -> Result<(), MemoryFault> {
        if done {
            return Ok(());
        }
        self.look_for_life();
        Err(MemoryFault)
    }

    /// Something went wrong: was it the end of the process?
    #[cold]
    fn look_for_life(&mut self) {
        self.line.mute |= self.vi.queues().process().is_gone();
    }
}
