//! One host: memory, regions, and the two queues of its VI. It checks the engine: no access outside permitted
//! regions, no descriptor completed twice or out of order, no access after the end.

use vipl_abi::*;
use vipl_wire::{Cause, Env, Incoming, MemoryFault, Operation, Outgoing, Remote, Transmit};

/// Fills the gaps between areas, which must not change.
const BETWEEN: u8 = 0xC5;
/// Initial content of a receive buffer.
pub const UNTOUCHED: u8 = 0xEE;
const GAP: usize = 24;

/// A registered piece of memory.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    pub at: usize,
    pub bytes: usize,
    pub handle: u32,
    pub rdma_write: bool,
    pub rdma_read: bool,
    pub gone: bool,
}

/// A data segment: area and range within the memory.
pub type Segment = (u32, usize, usize);

/// A posted descriptor of the send queue.
#[derive(Clone, Debug)]
pub struct Send {
    pub operation: Operation,
    pub segments: Vec<Segment>,
    pub immediate: u32,
    pub flagged: bool,
    pub fenced: bool,
    pub remote: (u64, u32),
    /// Result of the descriptor's check, if it is faulty.
    pub fault: Option<u32>,
    pub status: Option<u32>,
}

/// A posted receive descriptor.
#[derive(Clone, Debug)]
pub struct Recv {
    pub segments: Vec<Segment>,
    pub fault: Option<u32>,
    /// Its own memory is not accessible any more.
    pub gone: bool,
    pub result: Option<(u32, u32, u32)>,
}

impl Send {
    /// A message from a whole area.
    pub fn message(from: &Area) -> Send {
        Send {
            operation: Operation::Send,
            segments: vec![(from.handle, from.at, from.bytes)],
            immediate: 0,
            flagged: false,
            fenced: false,
            remote: (0, 0),
            fault: None,
            status: None,
        }
    }
}

impl Recv {
    /// Into a whole area.
    pub fn into_area(to: &Area) -> Recv {
        Recv {
            segments: vec![(to.handle, to.at, to.bytes)],
            fault: None,
            gone: false,
            result: None,
        }
    }
}

#[derive(Default)]
pub struct Host {
    pub memory: Vec<u8>,
    pub areas: Vec<Area>,
    pub sends: Vec<Send>,
    pub recvs: Vec<Recv>,
    pub sends_done: usize,
    pub recvs_done: usize,
    /// Number of the first descriptor, so that numbers wrap.
    pub base: u32,
    pub raised: Vec<(u32, u32)>,
    /// After the first piece of an RDMA Write its area permits no more of them; true: it is deregistered.
    pub revoke: Option<bool>,
    pub failed: Option<(Cause, u32)>,
    pub rdma_write: bool,
    pub rdma_read: bool,
    /// The peer obeys the protocol: rules that only such a peer can keep are checked.
    pub honest: bool,
    /// Frames sent.
    pub out: Vec<Vec<u8>>,
    /// Frames that the device takes before it is full.
    pub room: usize,
    /// Posted by the application while the engine sends a frame.
    pub meanwhile: Vec<Send>,
    /// The pages of segments vanish after the descriptor has been checked.
    pub vanishing: bool,
    /// Time that the engine reads.
    pub clock: Option<u64>,
    /// When a frame of the peer's process was last received on another connection.
    pub peer_last_received: Option<u64>,
    /// Frames must leave without the ECT codepoint.
    pub not_ect: bool,
    pub mtu: usize,
    /// Last report of the engine about the path.
    pub carries: Option<(u16, bool)>,
    /// RDMA Writes in progress: address, and which bytes have been written.
    covered: Vec<(u64, Vec<bool>)>,
}

impl Host {
    pub fn new(mtu: usize, base: u32) -> Host {
        Host {
            mtu,
            base,
            room: usize::MAX,
            clock: None,
            rdma_write: true,
            rdma_read: true,
            honest: true,
            memory: vec![BETWEEN; GAP],
            ..Host::default()
        }
    }

    /// A fresh area, filled with one byte.
    pub fn area(&mut self, bytes: usize, fill: u8) -> Area {
        let at = self.memory.len();
        self.memory.resize(at + bytes, fill);
        self.memory.resize(at + bytes + GAP, BETWEEN);
        let area = Area {
            at,
            bytes,
            handle: self.areas.len() as u32 + 1,
            rdma_write: true,
            rdma_read: true,
            gone: false,
        };
        self.areas.push(area);
        area
    }

    pub fn bytes(&self, area: &Area) -> &[u8] {
        &self.memory[area.at..area.at + area.bytes]
    }

    /// Whether all bytes of an area have this value.
    pub fn is_filled(&self, area: &Area, value: u8) -> bool {
        self.bytes(area).iter().all(|byte| *byte == value)
    }

    /// The statuses of the send queue.
    pub fn statuses(&self) -> Vec<Option<u32>> {
        self.sends.iter().map(|send| send.status).collect()
    }

    /// Status, length and immediate data of the receive queue.
    pub fn results(&self) -> Vec<Option<(u32, u32, u32)>> {
        self.recvs.iter().map(|recv| recv.result).collect()
    }

    /// Checks that the gaps between areas have not changed.
    pub fn check_gaps(&self) {
        let mut at = 0;
        for area in &self.areas {
            let gap = &self.memory[at..area.at];
            assert!(
                gap.iter().all(|byte| *byte == BETWEEN),
                "bytes before {area:?}"
            );
            at = area.at + area.bytes;
        }
        assert!(self.memory[at..].iter().all(|byte| *byte == BETWEEN));
    }

    fn alive(&self) {
        assert!(self.failed.is_none(), "touched after the end");
    }

    fn permitted(&self, segment: &Segment) -> bool {
        let (handle, at, bytes) = *segment;
        bytes == 0
            || self
                .areas
                .get(handle.wrapping_sub(1) as usize)
                .is_some_and(|area| {
                    !area.gone && at >= area.at && at + bytes <= area.at + area.bytes
                })
    }

    /// The target's check of a whole range.
    fn target(&self, range: &Remote, write: bool, begun: bool) -> Result<usize, MemoryFault> {
        let area = self
            .areas
            .get(range.handle.wrapping_sub(1) as usize)
            .ok_or(MemoryFault)?;
        let (first, end) = (area.at as u64, (area.at + area.bytes) as u64);
        let inside = range.address >= first
            && range.address <= end
            && u64::from(range.length) <= end - range.address;
        let admitted = if write {
            self.rdma_write && area.rdma_write
        } else {
            self.rdma_read && area.rdma_read
        };
        if inside && (admitted || begun) && !area.gone {
            Ok(range.address as usize)
        } else {
            Err(MemoryFault)
        }
    }

    /// The last eight bytes of an RDMA Write come after all others, and together.
    fn cover(&mut self, range: &Remote, offset: usize, bytes: usize) {
        let total = range.length as usize;
        let place = match self.covered.iter().position(|(at, _)| *at == range.address) {
            Some(place) => place,
            None => {
                self.covered.push((range.address, vec![false; total]));
                self.covered.len() - 1
            }
        };
        let map = &mut self.covered[place].1;
        map[offset..offset + bytes].fill(true);
        if offset + bytes + 8 > total {
            let others = &map[..total.saturating_sub(8)];
            assert!(
                others.iter().all(|done| *done),
                "the end of an RDMA Write came too early"
            );
            assert!(
                offset + bytes == total && offset <= total.saturating_sub(8),
                "bytes {offset} to {} of {total} divide the last eight",
                offset + bytes
            );
        }
    }
}

fn walk(
    segments: &[Segment],
    offset: u32,
    bytes: usize,
    mut each: impl FnMut(usize, usize, usize),
) {
    let (mut skip, mut left, mut done) = (offset as usize, bytes, 0);
    for (_, at, length) in segments {
        if skip >= *length {
            skip -= length;
            continue;
        }
        let piece = (length - skip).min(left);
        each(at + skip, done, piece);
        done += piece;
        left -= piece;
        skip = 0;
        if left == 0 {
            return;
        }
    }
    assert_eq!(left, 0, "more bytes than the segments have");
}

impl Transmit for Host {
    type Frame = Vec<u8>;

    fn frame(&mut self) -> Option<Vec<u8>> {
        // Not zeroed: the engine must not depend on the content of a buffer.
        (self.out.len() < self.room).then(|| vec![0xDB; self.mtu])
    }

    fn transmit(&mut self, mut frame: Vec<u8>, bytes: usize) {
        assert!(
            bytes <= self.mtu,
            "{bytes} bytes on a link for {}",
            self.mtu
        );
        frame.truncate(bytes);
        self.out.push(frame);
        self.sends.append(&mut self.meanwhile);
    }

    fn now(&mut self) -> Option<u64> {
        self.clock
    }
}

impl Env for Host {
    type Segments = Vec<Segment>;

    fn path_refuses_ect(&mut self) {
        self.not_ect = true;
    }

    fn peer_last_received(&mut self, received_ns: u64) -> u64 {
        self.peer_last_received.unwrap_or(0).max(received_ns)
    }

    fn sends_posted(&self) -> u32 {
        self.base.wrapping_add(self.sends.len() as u32)
    }

    fn sends_completed(&self) -> u32 {
        self.base.wrapping_add(self.sends_done as u32)
    }

    fn receives_posted(&self) -> u32 {
        self.base.wrapping_add(self.recvs.len() as u32)
    }

    fn receives_completed(&self) -> u32 {
        self.base.wrapping_add(self.recvs_done as u32)
    }

    fn outgoing(&mut self, number: u32) -> Result<Outgoing<Vec<Segment>>, u32> {
        self.alive();
        let place = number.wrapping_sub(self.base) as usize;
        assert!(
            (self.sends_done..self.sends.len()).contains(&place),
            "send {place}"
        );
        let send = &self.sends[place];
        let opcode = match send.operation {
            Operation::Send => VIP_STATUS_OP_SEND,
            Operation::Write => VIP_STATUS_OP_RDMA_WRITE,
            Operation::Read => VIP_STATUS_OP_RDMA_READ,
        };
        if let Some(fault) = send.fault {
            return Err(fault | opcode);
        }
        if !send.segments.iter().all(|segment| self.permitted(segment)) {
            return Err(VIP_STATUS_PROTECTION_ERROR | opcode);
        }
        Ok(Outgoing {
            operation: send.operation,
            length: send
                .segments
                .iter()
                .map(|(_, _, bytes)| *bytes as u32)
                .sum(),
            immediate: send.immediate,
            flagged: send.flagged,
            fenced: send.fenced,
            address: send.remote.0,
            handle: send.remote.1,
            segments: send.segments.clone(),
        })
    }

    fn incoming(
        &mut self,
        number: u32,
        message: Option<u32>,
    ) -> Result<Incoming<Vec<Segment>>, u32> {
        self.alive();
        let place = number.wrapping_sub(self.base) as usize;
        assert!(
            (self.recvs_done..self.recvs.len()).contains(&place),
            "receive {place}"
        );
        let recv = &self.recvs[place];
        if let Some(fault) = recv.fault {
            return Err(fault);
        }
        // Checked up to the length of the message.
        let mut left = message.unwrap_or(0) as usize;
        let permitted = recv.segments.iter().all(|(handle, at, bytes)| {
            let used = left.min(*bytes);
            left -= used;
            self.permitted(&(*handle, *at, used))
        });
        if !permitted {
            return Err(VIP_STATUS_PROTECTION_ERROR);
        }
        Ok(Incoming {
            capacity: recv
                .segments
                .iter()
                .map(|(_, _, bytes)| *bytes as u64)
                .sum(),
            segments: recv.segments.clone(),
        })
    }

    fn gather(
        &mut self,
        from: &Vec<Segment>,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), MemoryFault> {
        if self.vanishing {
            return Err(MemoryFault);
        }
        let memory = &self.memory;
        walk(from, offset, out.len(), |at, done, bytes| {
            out[done..done + bytes].copy_from_slice(&memory[at..at + bytes]);
        });
        Ok(())
    }

    fn scatter(&mut self, to: &Vec<Segment>, offset: u32, data: &[u8]) -> Result<(), MemoryFault> {
        self.alive();
        if self.vanishing {
            return Err(MemoryFault);
        }
        let memory = &mut self.memory;
        walk(to, offset, data.len(), |at, done, bytes| {
            memory[at..at + bytes].copy_from_slice(&data[done..done + bytes]);
        });
        Ok(())
    }

    fn place(
        &mut self,
        range: &Remote,
        offset: u32,
        data: &[u8],
        begun: bool,
    ) -> Result<(), MemoryFault> {
        self.alive();
        let at = self.target(range, true, begun)? + offset as usize;
        assert!(u64::from(offset) + data.len() as u64 <= u64::from(range.length));
        if self.honest {
            self.cover(range, offset as usize, data.len());
        }
        self.memory[at..at + data.len()].copy_from_slice(data);
        if let Some(gone) = self.revoke.take() {
            let area = &mut self.areas[range.handle as usize - 1];
            (area.rdma_write, area.gone) = (false, gone);
        }
        Ok(())
    }

    fn fetch(&mut self, range: &Remote, offset: u32, out: &mut [u8]) -> Result<(), MemoryFault> {
        let at = self.target(range, false, false)? + offset as usize;
        assert!(u64::from(offset) + out.len() as u64 <= u64::from(range.length));
        out.copy_from_slice(&self.memory[at..at + out.len()]);
        Ok(())
    }

    fn complete_send(&mut self, status: u32) -> bool {
        self.alive();
        let send = &mut self.sends[self.sends_done];
        assert_eq!(send.status, None);
        send.status = Some(status);
        self.sends_done += 1;
        true
    }

    fn complete_receive(&mut self, status: u32, length: u32, immediate: u32) -> bool {
        self.alive();
        let recv = &mut self.recvs[self.recvs_done];
        assert_eq!(recv.result, None);
        if recv.gone {
            let code = VIP_ERROR_CODE::VIP_ERROR_COMP_PROT as u32;
            self.failed = Some((Cause::Async(code), VIP_STATUS_OP_RECEIVE));
            return false;
        }
        recv.result = Some((status, length, immediate));
        self.recvs_done += 1;
        true
    }

    fn path_carries(&mut self, bytes: u16, black_hole: bool) {
        self.carries = Some((bytes, black_hole));
    }

    fn raise(&mut self, code: u32, opcode: u32) {
        self.alive();
        self.raised.push((code, opcode));
    }

    fn fail(&mut self, cause: Cause, opcode: u32) {
        self.alive();
        self.failed = Some((cause, opcode));
    }
}
