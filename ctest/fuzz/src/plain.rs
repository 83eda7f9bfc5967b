//! A host for the engine of the protocol: receives of one size, no RDMA, and frames that go nowhere.

use vipl_wire::{Cause, Env, Incoming, MemoryFault, Outgoing, PartKind, Remote, TRAILER, Transmit};

/// Bytes of each receive.
const ROOM: usize = 2000;
/// Receives that are posted.
const POSTED: u32 = 8;

/// What has become of the receives, and of the connection.
#[derive(Debug, PartialEq)]
pub struct Plain {
    mtu: usize,
    /// Status, length and immediate data of each.
    pub done: Vec<(u32, u32, u32)>,
    /// What lies in their buffers.
    pub bytes: Vec<u8>,
    /// Asynchronous errors, and the end.
    pub raised: Vec<(u32, u32)>,
    pub failed: Option<(Cause, u32)>,
}

impl Plain {
    /// Frames to the network have at most `mtu` bytes.
    pub fn new(mtu: u16) -> Plain {
        Plain {
            mtu: usize::from(mtu),
            done: Vec::new(),
            bytes: vec![0; ROOM * POSTED as usize],
            raised: Vec::new(),
            failed: None,
        }
    }
}

impl Transmit for Plain {
    type Frame = Vec<u8>;

    fn frame(&mut self) -> Option<Vec<u8>> {
        Some(vec![0xDB; self.mtu])
    }

    fn transmit(&mut self, frame: Vec<u8>, bytes: usize) {
        assert!((PartKind::Send.header() + TRAILER..=frame.len()).contains(&bytes));
    }
}

impl Env for Plain {
    /// Number of the receive.
    type Segments = usize;

    fn sends_posted(&self) -> u32 {
        0
    }

    fn sends_completed(&self) -> u32 {
        0
    }

    fn receives_posted(&self) -> u32 {
        POSTED
    }

    fn receives_completed(&self) -> u32 {
        self.done.len() as u32
    }

    fn outgoing(&mut self, number: u32) -> Result<Outgoing<usize>, u32> {
        panic!("send {number} of none");
    }

    fn incoming(&mut self, number: u32, _message: Option<u32>) -> Result<Incoming<usize>, u32> {
        assert!((self.done.len() as u32..POSTED).contains(&number));
        Ok(Incoming {
            capacity: ROOM as u64,
            segments: number as usize,
        })
    }

    fn gather(&mut self, _: &usize, _: u32, _: &mut [u8]) -> Result<(), MemoryFault> {
        panic!("nothing is sent");
    }

    fn scatter(&mut self, to: &usize, offset: u32, bytes: &[u8]) -> Result<(), MemoryFault> {
        let offset = offset as usize;
        assert!(offset + bytes.len() <= ROOM, "beyond the buffer");
        self.bytes[to * ROOM + offset..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn place(&mut self, _: &Remote, _: u32, _: &[u8], _: bool) -> Result<(), MemoryFault> {
        Err(MemoryFault)
    }

    fn fetch(&mut self, _: &Remote, _: u32, _: &mut [u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault)
    }

    fn complete_send(&mut self, status: u32) -> bool {
        panic!("a send is complete: {status:#x}");
    }

    fn complete_receive(&mut self, status: u32, length: u32, immediate: u32) -> bool {
        assert!(length as usize <= ROOM && self.failed.is_none());
        self.done.push((status, length, immediate));
        true
    }

    fn raise(&mut self, code: u32, opcode: u32) {
        self.raised.push((code, opcode));
    }

    fn fail(&mut self, cause: Cause, opcode: u32) {
        assert!(self.failed.is_none(), "once");
        self.failed = Some((cause, opcode));
    }
}
