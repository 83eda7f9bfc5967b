//! The protocol engine's view of a VI ([`Env`]), over an application of this process or of another one.
//!
//! An owner implements [`Application`]: the queues of a VI, and the memory of its application. A [`Call`] is one call of
//! the engine. It decides the rights of RDMA at the target, in one place for all owners.

use vipl_plugin_abi::{VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE};
use vipl_rules::descriptor::{self, Regions};
use vipl_rules::refusal::Refusal;
use vipl_rules::{Queue, Segment, posted};
use vipl_wire::{Cause, Env, Incoming, MemoryFault, Operation, Outgoing, Remote, Transmit};

use crate::peer::PeerProcess;

/// Whether memory was accessed.
pub type Moved = Result<(), MemoryFault>;

/// One VI of an application. Descriptors are identified by their number in the queue, wrapping, from `completed` to
/// `posted`.
pub trait Application {
    /// The data segments of a descriptor that has passed all checks.
    type Segments;
    /// What its frames are sent with.
    type Out: Transmit;

    /// Number after that of the last posted descriptor.
    fn posted(&self, queue: Queue) -> u32;
    /// Number of the oldest descriptor that is not complete.
    fn completed(&self, queue: Queue) -> u32;

    /// As [`Env::outgoing`].
    fn outgoing(&mut self, number: u32) -> Result<posted::Outgoing<Self::Segments>, u32>;
    /// As [`Env::incoming`].
    fn incoming(&mut self, number: u32, size: Option<u32>)
    -> Result<Incoming<Self::Segments>, u32>;

    /// As [`Env::gather`].
    fn gather(&mut self, from: &Self::Segments, offset: u32, out: &mut [u8]) -> Moved;
    /// As [`Env::scatter`].
    fn scatter(&mut self, to: &Self::Segments, offset: u32, bytes: &[u8]) -> Moved;
    /// Copies from an address of the application.
    fn read(&mut self, from: u64, out: &mut [u8]) -> Moved;
    /// Copies to an address of the application. `ends`: the application may poll the last eight bytes, which become
    /// visible after all others.
    fn write(&mut self, to: u64, bytes: &[u8], ends: bool) -> Moved;

    /// The regions of the NIC, and the tag of the VI.
    fn regions(&self) -> Regions<'_>;
    /// Whether the VI permits RDMA Write or RDMA Read by its peer.
    fn permits(&self, operation: Operation) -> bool;
    /// An address as the application uses it. A peer of 32 bits may have left anything in the upper half (spec §2.4).
    fn own_address(&self, address: u64) -> u64;

    /// Completes the oldest descriptor of a queue with a status, and a receive with its length and immediate data.
    /// False: its memory has gone, and the host has broken the connection (E16).
    fn complete(&mut self, queue: Queue, status: u32, data: Option<(u32, u32)>) -> bool;
    /// This VI refuses an RDMA operation of its peer; the engine then calls `raise`, `fail` or `complete`.
    fn refused(&mut self, refusal: &Refusal);
    /// As [`Env::raise`].
    fn raise(&mut self, code: u32, opcode: u32);
    /// As [`Env::fail`].
    fn fail(&mut self, cause: Cause, opcode: u32);

    /// Whether the process of the application has exited. From then on nothing is sent: the agent reports the end.
    #[inline(always)]
    fn has_exited(&self) -> bool {
        false
    }

    /// As [`Env::path_carries`].
    fn path_carries(&mut self, out: &mut Self::Out, bytes: u16, black_hole: bool) {
        let _ = (out, bytes, black_hole);
    }

    /// As [`Env::path_refuses_ect`].
    fn path_refuses_ect(&mut self, out: &mut Self::Out) {
        let _ = out;
    }
}

/// One call of the engine.
pub struct Call<'a, A: Application> {
    /// The VI.
    pub application: A,
    /// What its frames are sent with.
    pub out: A::Out,
    /// The peer process, on another host.
    pub peer: Option<&'a PeerProcess>,
}

impl<A: Application> Transmit for Call<'_, A> {
    type Frame = <A::Out as Transmit>::Frame;

    #[inline(always)]
    fn frame(&mut self) -> Option<Self::Frame> {
        if self.application.has_exited() {
            return None;
        }
        self.out.frame()
    }

    #[inline(always)]
    fn take_back(&mut self, frame: Self::Frame) {
        self.out.take_back(frame);
    }

    #[inline(always)]
    fn transmit(&mut self, frame: Self::Frame, bytes: usize) {
        // The application may have exited since the frame was begun.
        if !self.application.has_exited() {
            self.out.transmit(frame, bytes);
        } else {
            self.out.take_back(frame);
        }
    }

    #[inline(always)]
    fn now(&mut self) -> Option<u64> {
        self.out.now()
    }
}

impl<A: Application> Env for Call<'_, A> {
    type Segments = A::Segments;

    #[inline(always)]
    fn sends_posted(&self) -> u32 {
        self.application.posted(Queue::Send)
    }

    #[inline(always)]
    fn sends_completed(&self) -> u32 {
        self.application.completed(Queue::Send)
    }

    #[inline(always)]
    fn receives_posted(&self) -> u32 {
        self.application.posted(Queue::Recv)
    }

    #[inline(always)]
    fn receives_completed(&self) -> u32 {
        self.application.completed(Queue::Recv)
    }

    #[inline(always)]
    fn outgoing(&mut self, number: u32) -> Result<Outgoing<A::Segments>, u32> {
        let found = self.application.outgoing(number)?;
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
    fn incoming(
        &mut self,
        number: u32,
        message: Option<u32>,
    ) -> Result<Incoming<A::Segments>, u32> {
        self.application.incoming(number, message)
    }

    #[inline(always)]
    fn gather(&mut self, from: &A::Segments, offset: u32, out: &mut [u8]) -> Moved {
        self.application.gather(from, offset, out)
    }

    #[inline(always)]
    fn scatter(&mut self, to: &A::Segments, offset: u32, bytes: &[u8]) -> Moved {
        self.application.scatter(to, offset, bytes)
    }

    fn place(&mut self, range: &Remote, offset: u32, bytes: &[u8], begun: bool) -> Moved {
        let rights = (!begun).then_some((Operation::Write, VIPL_REGION_RDMA_WRITE));
        // The part that has the last eight bytes of the range has all of them.
        let ends = u64::from(offset) + bytes.len() as u64 == u64::from(range.length);
        target(&self.application, range, offset, bytes.len(), rights)
            .and_then(|to| self.application.write(to, bytes, ends))
            .inspect_err(|_| self.refused(range, VIPL_REGION_RDMA_WRITE))
    }

    fn fetch(&mut self, range: &Remote, offset: u32, out: &mut [u8]) -> Moved {
        let rights = Some((Operation::Read, VIPL_REGION_RDMA_READ));
        target(&self.application, range, offset, out.len(), rights)
            .and_then(|from| self.application.read(from, out))
            .inspect_err(|_| self.refused(range, VIPL_REGION_RDMA_READ))
    }

    #[inline(always)]
    fn complete_send(&mut self, status: u32) -> bool {
        self.application.complete(Queue::Send, status, None)
    }

    #[inline(always)]
    fn complete_receive(&mut self, status: u32, length: u32, immediate: u32) -> bool {
        let data = Some((length, immediate));
        self.application.complete(Queue::Recv, status, data)
    }

    fn peer_last_received(&mut self, received_ns: u64) -> u64 {
        self.peer
            .map_or(received_ns, |peer| peer.received(received_ns))
    }

    fn path_carries(&mut self, bytes: u16, black_hole: bool) {
        self.application
            .path_carries(&mut self.out, bytes, black_hole);
    }

    fn path_refuses_ect(&mut self) {
        self.application.path_refuses_ect(&mut self.out);
    }

    fn raise(&mut self, code: u32, opcode: u32) {
        self.application.raise(code, opcode);
    }

    fn fail(&mut self, cause: Cause, opcode: u32) {
        self.application.fail(cause, opcode);
    }
}

impl<A: Application> Call<'_, A> {
    #[cold]
    fn refused(&mut self, range: &Remote, right: u32) {
        self.application.refused(&Refusal {
            at_target: true,
            right,
            range: Segment {
                address: range.address,
                handle: range.handle,
                length: range.length,
            },
        });
    }
}

/// The address of a piece of an RDMA range, if the *whole* range may be accessed so: the VI permits the operation, and
/// the region has its flag (spec §10.2). Without `rights` it need only be registered.
///
/// # Errors
/// [`MemoryFault`]: it may not.
fn target<A: Application>(
    application: &A,
    range: &Remote,
    offset: u32,
    bytes: usize,
    rights: Option<(Operation, u32)>,
) -> Result<u64, MemoryFault> {
    let Regions { table, tag } = application.regions();
    let (handle, length) = (range.handle, u64::from(range.length));
    let address = application.own_address(range.address);
    let inside = u64::from(offset) + bytes as u64 <= length;
    let permitted = match rights {
        Some((operation, flag)) => {
            application.permits(operation) && table.is_remote(handle, address, length, tag, flag)
        }
        None => table.is_registered(handle, address, length),
    };
    // A range of no bytes is not checked (spec §5.6).
    if inside && (permitted || length == 0) {
        Ok(address.wrapping_add(u64::from(offset)))
    } else {
        Err(MemoryFault)
    }
}
