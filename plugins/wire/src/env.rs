//! What the engine asks of its owner. A device implements [`Env`] over the host's VI (`Port` and the
//! descriptor walker of the SDK), tests over a simulated memory. Descriptors go by their number in the
//! queue, counted as the host counts them: wrapping, from `completed` up to `posted`.

use vipl_abi::*;

/// Where frames go.
pub trait Transmit {
    /// Room for one frame, behind the link's own header; often a slot of the device's ring. Dropped without
    /// [`Transmit::transmit`] it is as if it had not been asked for.
    type Frame: AsMut<[u8]>;

    /// Room for one frame of at least `mtu` bytes, or `None`: the device is full. The engine then stops
    /// and goes on at the next call ([`Connection::is_blocked`](crate::Connection::is_blocked)).
    fn frame(&mut self) -> Option<Self::Frame>;

    /// Sends the first `bytes` bytes of a frame that [`Transmit::frame`] gave. The device may collect frames
    /// and kick once, after the engine has returned.
    fn transmit(&mut self, frame: Self::Frame, bytes: usize);

    /// The time in nanoseconds, for an owner that posts without it: a message need not wait for the clock. The
    /// engine asks behind each frame. `None`: the time that the call came with is good enough.
    #[inline(always)]
    fn now(&mut self) -> Option<u64> {
        None
    }
}

/// One VI, during one call of the engine; the owner holds its lock.
pub trait Env: Transmit {
    /// The data segments of a descriptor that has passed the checks of its own side.
    type Segments;

    /// Number behind the last posted send-queue descriptor.
    fn sends_posted(&self) -> u32;
    /// Number of the oldest send-queue descriptor that is not complete.
    fn sends_completed(&self) -> u32;
    /// Number behind the last posted receive descriptor.
    fn receives_posted(&self) -> u32;
    /// Number of the oldest receive descriptor that is not complete.
    fn receives_completed(&self) -> u32;

    /// Reads and checks a posted send-queue descriptor (spec §5.7). The error is a status: one error bit
    /// and the operation bits. Called again for each frame of a long message and when something is sent
    /// again, so that memory which the program has taken away is not touched.
    fn outgoing(&mut self, number: u32) -> Result<Outgoing<Self::Segments>, u32>;

    /// Reads and checks a posted receive descriptor: format, then protection, for a message of this length,
    /// which may be above its capacity. `None` where its data segments do not matter. The error is one error
    /// bit without operation bits.
    fn incoming(
        &mut self,
        number: u32,
        message: Option<u32>,
    ) -> Result<Incoming<Self::Segments>, u32>;

    /// Copies from the program's segments, beginning `offset` bytes into their stream.
    fn gather(
        &mut self,
        from: &Self::Segments,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), MemoryFault>;

    /// Copies into the program's segments, beginning `offset` bytes into their stream; for receives, and
    /// for the local side of an RDMA Read.
    fn scatter(
        &mut self,
        to: &Self::Segments,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), MemoryFault>;

    /// RDMA Write at the target: checks that this VI admits it and that the *whole* range may be written
    /// (spec §10.2), then copies to `offset` within the range, the last eight bytes after all others. `begun`: a
    /// piece of this write has been placed by the rights that there were then (spec §3.19), and all that matters
    /// now is that the range is still registered.
    fn place(
        &mut self,
        range: &Remote,
        offset: u32,
        bytes: &[u8],
        begun: bool,
    ) -> Result<(), MemoryFault>;

    /// RDMA Read at the target: the same for reading. An empty `out` asks for the check alone.
    fn fetch(&mut self, range: &Remote, offset: u32, out: &mut [u8]) -> Result<(), MemoryFault>;

    /// Completes the oldest send-queue descriptor with `VIP_STATUS_*` bits; Length and ImmediateData
    /// stay as they are. False: its memory has gone, the host has broken the connection (E16).
    fn complete_send(&mut self, status: u32) -> bool;

    /// Completes the oldest receive descriptor. False as for [`Env::complete_send`].
    fn complete_receive(&mut self, status: u32, length: u32, immediate: u32) -> bool;

    /// When the partner's process was last heard, on any connection with it; it was on this one at `heard_ns`.
    /// Called every few seconds, and it need not be newer than that.
    fn partner_heard(&mut self, heard_ns: u64) -> u64 {
        heard_ns
    }

    /// Raises an asynchronous error, a `VIP_ERROR_CODE`; the VI stays as it is.
    fn raise(&mut self, code: u32, opcode: u32);

    /// Breaks the connection: the VI goes to Error, its queues are flushed. Called once at most, and no
    /// descriptor is touched afterwards.
    fn fail(&mut self, cause: Cause, opcode: u32);
}

/// Memory of the program cannot be accessed, or may not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFault;

/// Reliability level, agreed by both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Unreliable: nothing is sent again.
    Unreliable,
    /// Reliable Delivery.
    Delivery,
    /// Reliable Reception.
    Reception,
}

impl Level {
    /// That of a `VIP_SERVICE_*` bit.
    pub fn of(reliability: u16) -> Level {
        match reliability {
            VIP_SERVICE_UNRELIABLE => Level::Unreliable,
            VIP_SERVICE_RELIABLE_RECEPTION => Level::Reception,
            _ => Level::Delivery,
        }
    }
}

/// What a send-queue descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Send.
    Send,
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
}

impl Operation {
    /// The operation bits of a status.
    #[inline(always)]
    pub(crate) fn status(self) -> u32 {
        match self {
            Operation::Send => VIP_STATUS_OP_SEND,
            Operation::Write => VIP_STATUS_OP_RDMA_WRITE,
            Operation::Read => VIP_STATUS_OP_RDMA_READ,
        }
    }
}

/// The remote range of an RDMA operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Its first byte, in the target's address space.
    pub address: u64,
    /// Memory handle of the target.
    pub handle: u32,
    /// Bytes of the whole range.
    pub length: u32,
}

/// A send-queue descriptor without fault.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<S> {
    /// What it asks for.
    pub operation: Operation,
    /// Bytes; not above the VI's MaxTransferSize.
    pub length: u32,
    /// Immediate data as the program wrote it.
    pub immediate: u32,
    /// `VIP_CONTROL_IMMEDIATE` is set.
    pub flagged: bool,
    /// `VIP_CONTROL_QFENCE` is set.
    pub fenced: bool,
    /// Address and handle of RDMA.
    pub address: u64,
    /// Memory handle of the target of RDMA.
    pub handle: u32,
    /// The data segments.
    pub segments: S,
}

/// A receive descriptor without fault.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<S> {
    /// Sum of its segments in bytes.
    pub capacity: u64,
    /// The data segments.
    pub segments: S,
}

/// Why a connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A descriptor of this VI tells; no asynchronous error (`VIPL_CAUSE_TOLD`).
    Told,
    /// The partner disconnected in good order (`VIPL_CAUSE_DISCONNECTED`).
    Disconnected,
    /// The asynchronous error with this `VIP_ERROR_CODE`.
    Async(u32),
}

impl Cause {
    /// The connection is lost, and nothing else reports it.
    pub(crate) const LOST: Cause = Cause::Async(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as u32);
}
