//! The services that the engine requires of its owner. A device implements [`Env`] over the host's VI (`Port` and the
//! descriptor walker of the SDK), tests over simulated memory. Descriptors are identified by their number in the
//! queue as counted by the host: wrapping, from `completed` to `posted`.

use vipl_abi::*;

/// Transmission of frames.
pub trait Transmit {
    /// Buffer of one frame, without the link's own header; often a slot of the device's ring.
    type Frame: AsMut<[u8]>;

    /// Returns a buffer for a frame of `mtu` bytes, or `None` if the device is full. The engine then stops, and
    /// continues at the next call ([`Connection::is_blocked`](crate::Connection::is_blocked)).
    fn frame(&mut self) -> Option<Self::Frame>;

    /// Sends the first `bytes` bytes of a frame from [`Transmit::frame`]. The device may collect frames and ring its
    /// doorbell once after the engine has returned.
    fn transmit(&mut self, frame: Self::Frame, bytes: usize);

    /// Takes a frame that is not to be sent after all. The frames before it may be in the same buffer.
    fn take_back(&mut self, frame: Self::Frame) {
        drop(frame);
    }

    /// Returns the time in nanoseconds. The engine calls this after each frame, so that an owner need not read the
    /// clock before a message leaves. `None`: the time passed to the engine is accurate enough.
    fn now(&mut self) -> Option<u64> {
        None
    }
}

/// A VI during one call of the engine. The owner holds its lock.
pub trait Env: Transmit {
    /// The data segments of a descriptor that has passed all checks.
    type Segments;

    /// One more than the number of the last posted send-queue descriptor.
    fn sends_posted(&self) -> u32;
    /// Number of the oldest incomplete send-queue descriptor.
    fn sends_completed(&self) -> u32;
    /// One more than the number of the last posted receive descriptor.
    fn receives_posted(&self) -> u32;
    /// Number of the oldest incomplete receive descriptor.
    fn receives_completed(&self) -> u32;

    /// Reads and checks a posted send-queue descriptor (spec §5.7). Called again for each frame of a long message and
    /// for each retransmission, so that memory deregistered meanwhile is not accessed.
    ///
    /// # Errors
    /// The status of the descriptor: one error bit and the operation bits.
    fn outgoing(&mut self, number: u32) -> Result<Outgoing<Self::Segments>, u32>;

    /// Reads and checks a posted receive descriptor, format before protection, for a message of this length. The
    /// message may exceed the capacity. `None`: the data segments are not used.
    ///
    /// # Errors
    /// One error bit without operation bits.
    fn incoming(
        &mut self,
        number: u32,
        message: Option<u32>,
    ) -> Result<Incoming<Self::Segments>, u32>;

    /// Copies from the application's segments, beginning at `offset` of their concatenation.
    ///
    /// # Errors
    /// The memory is not accessible.
    fn gather(
        &mut self,
        from: &Self::Segments,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), MemoryFault>;

    /// Copies into the application's segments, beginning at `offset` of their concatenation: for receives, and for the
    /// local side of an RDMA Read.
    ///
    /// # Errors
    /// The memory is not accessible.
    fn scatter(
        &mut self,
        to: &Self::Segments,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), MemoryFault>;

    /// RDMA Write at the target: checks that this VI permits it and that the *whole* range may be written (spec
    /// §10.2), then copies to `offset` within the range, the last eight bytes after all others. `begun`: an earlier
    /// piece of this write was placed with the rights of that time (spec §3.19), so it suffices that the range is
    /// still registered.
    ///
    /// # Errors
    /// Access is not permitted, or the memory is not accessible.
    fn place(
        &mut self,
        range: &Remote,
        offset: u32,
        bytes: &[u8],
        begun: bool,
    ) -> Result<(), MemoryFault>;

    /// RDMA Read at the target: the same for reading. If `out` is empty, the range is only checked.
    ///
    /// # Errors
    /// As for [`Env::place`].
    fn fetch(&mut self, range: &Remote, offset: u32, out: &mut [u8]) -> Result<(), MemoryFault>;

    /// Completes the oldest send-queue descriptor with `VIP_STATUS_*` bits; Length and ImmediateData keep their
    /// values. False: its memory is not accessible any more, and the host has broken the connection (E16).
    fn complete_send(&mut self, status: u32) -> bool;

    /// Completes the oldest receive descriptor. False as for [`Env::complete_send`].
    fn complete_receive(&mut self, status: u32, length: u32, immediate: u32) -> bool;

    /// Returns when a frame of the peer's process was last received on any connection; on this one it was at
    /// `received_ns`. Called every few seconds; an older time is permitted.
    fn peer_last_received(&mut self, received_ns: u64) -> u64 {
        received_ns
    }

    /// The size of frames has changed to `bytes`, which the path carries. `black_hole`: the path stopped carrying
    /// frames of the former size.
    fn path_carries(&mut self, bytes: u16, black_hole: bool) {
        let _ = (bytes, black_hole);
    }

    /// A router on the path drops frames with the ECT codepoint: frames must leave without it.
    fn path_refuses_ect(&mut self) {}

    /// Raises an asynchronous error, a `VIP_ERROR_CODE`. The VI keeps its state.
    fn raise(&mut self, code: u32, opcode: u32);

    /// Breaks the connection: the VI enters the Error state and its queues are flushed. Called at most once; no
    /// descriptor is accessed afterwards.
    fn fail(&mut self, cause: Cause, opcode: u32);
}

/// The application's memory is not accessible, or access is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFault;

/// Reliability level, agreed by both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Unreliable: no retransmission.
    Unreliable,
    /// Reliable Delivery.
    Delivery,
    /// Reliable Reception.
    Reception,
}

impl Level {
    /// The level of a `VIP_SERVICE_*` bit.
    pub fn of(reliability: u16) -> Level {
        match reliability {
            VIP_SERVICE_UNRELIABLE => Level::Unreliable,
            VIP_SERVICE_RELIABLE_RECEPTION => Level::Reception,
            _ => Level::Delivery,
        }
    }
}

/// The operation of a send-queue descriptor.
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
    /// Address of its first byte in the target's address space.
    pub address: u64,
    /// Memory handle of the target.
    pub handle: u32,
    /// Bytes of the whole range.
    pub length: u32,
}

/// A valid send-queue descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<S> {
    /// The operation.
    pub operation: Operation,
    /// Length in bytes, at most the VI's MaxTransferSize.
    pub length: u32,
    /// Immediate data of the descriptor.
    pub immediate: u32,
    /// `VIP_CONTROL_IMMEDIATE` is set.
    pub flagged: bool,
    /// `VIP_CONTROL_QFENCE` is set.
    pub fenced: bool,
    /// Remote address of RDMA.
    pub address: u64,
    /// Remote memory handle of RDMA.
    pub handle: u32,
    /// The data segments.
    pub segments: S,
}

/// A valid receive descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<S> {
    /// Total length of its segments in bytes.
    pub capacity: u64,
    /// The data segments.
    pub segments: S,
}

/// Why a connection is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A descriptor of this VI reports it; no asynchronous error (`VIPL_CAUSE_REPORTED`).
    Reported,
    /// The peer disconnected in an orderly way (`VIPL_CAUSE_DISCONNECTED`).
    Disconnected,
    /// The asynchronous error with this `VIP_ERROR_CODE`.
    Async(u32),
}

impl Cause {
    /// The connection is lost, and nothing else reports it.
    pub(crate) const LOST: Cause = Cause::Async(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as u32);
}
