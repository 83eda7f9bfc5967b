//! A VI, its work queues and its descriptors.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use vipl_abi::*;
use vipl_guard::Segment;
use vipl_plugin_abi::*;
use vipl_rules::Queue;

use super::{CONNECTED, Nic, host};
use crate::Status;

/// Places of a work queue.
const RING: u32 = 512;
/// Counters begin close below their wrap, which is to be passed.
const BEGIN: u32 = u32::MAX - 5;
/// Immediate data of all descriptors.
const IMMEDIATE: u32 = 0x1234_5678;

/// A descriptor that was posted on a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted(usize);

/// A line of a descriptor.
#[repr(C, align(64))]
#[derive(Default)]
struct Line([AtomicU64; 8]);

/// One VI. It is disconnected and destroyed when it is dropped.
pub struct Vi {
    nic: Nic,
    abi: *mut vipl_vi,
    /// A descriptor's lines are never moved.
    descriptors: Vec<Vec<Line>>,
    _rings: [Vec<vipl_entry>; 2],
}

impl Vi {
    pub(super) fn new(nic: Nic, index: u32, reliability: u16, ptag: u32) -> Vi {
        let empty = vipl_entry {
            descriptor: std::ptr::null_mut(),
            memory: 0,
            status: 0,
        };
        let mut rings = [0, 1].map(|_| vec![empty; RING as usize]);
        let mut which = 0..;
        let [send, recv] = rings.each_mut().map(|ring| vipl_queue {
            entries: ring.as_mut_ptr(),
            mask: RING - 1,
            posted: BEGIN,
            completed: BEGIN,
            taken: BEGIN,
            signal: 0,
            which: which.next().expect("two queues"),
        });
        let abi = Box::into_raw(Box::new(vipl_vi {
            context: std::ptr::null_mut(),
            nic: nic.abi(),
            send,
            recv,
            host: std::ptr::null_mut(),
            max_transfer_size: nic.info().transfer_max,
            index,
            ptag,
            state: VIP_VI_STATE::VIP_STATE_IDLE as u32,
            reliability,
            rdma_write: 1,
            rdma_read: 1,
        }));
        if let Some(create) = nic.operations().vi_create {
            // SAFETY: as the interface asks.
            Status::check(unsafe { create(abi) }).expect("a VI");
        }
        Vi {
            nic,
            abi,
            descriptors: Vec::new(),
            _rings: rings,
        }
    }
    /// Its NIC.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Its number within the NIC.
    pub fn index(&self) -> u32 {
        // SAFETY: no operation is under way, as in all accesses of the structure below.
        unsafe { (*self.abi).index }
    }

    /// Whether it is connected.
    pub fn is_connected(&self) -> bool {
        // SAFETY: as in `index`.
        unsafe { (*self.abi).state == CONNECTED }
    }

    /// The library's structure, to change what this type does not.
    pub fn abi(&self) -> *mut vipl_vi {
        self.abi
    }

    /// What its peer gets to know of it at `attach`; all else is 0 or -1.
    pub(super) fn as_peer(&self) -> vipl_connection {
        let info = self.nic.info();
        // SAFETY: plain data, and as in `index`.
        let mut connection: vipl_connection = unsafe { std::mem::zeroed() };
        connection.size = size_of::<vipl_connection>();
        connection.segment_fd = -1;
        connection.peer_pid = std::process::id();
        connection.peer_nic = self.nic.abi().expose_provenance() as u64;
        connection.peer_vi = self.index();
        connection.peer_fds = info.shared_fds;
        // SAFETY: as in `index`.
        (connection.peer_rdma_write, connection.peer_rdma_read) =
            unsafe { ((*self.abi).rdma_write, (*self.abi).rdma_read) };
        connection.data_address_len = info.data_address_len;
        connection.data_address = info.data_address;
        connection
    }

    /// Connects it in one's own terms; [`connect`](super::connect) does both sides.
    ///
    /// # Errors
    /// What `attach` returns.
    pub fn attach(&mut self, connection: &vipl_connection) -> Result<(), Status> {
        // SAFETY: as the interface asks.
        unsafe {
            let status = self.nic.operations().attach.expect("attach")(self.abi, connection);
            Status::check(status)?;
            (*self.abi).state = CONNECTED;
        }
        Ok(())
    }

    /// Disconnects it as VipDisconnect does: what is posted is flushed.
    pub fn detach(&mut self) {
        self.call(self.nic.operations().detach);
        // SAFETY: as in `index`, and the rings are this VI's.
        unsafe {
            (*self.abi).state = VIP_VI_STATE::VIP_STATE_IDLE as u32;
            host::flush(&raw mut (*self.abi).send);
            host::flush(&raw mut (*self.abi).recv);
        }
    }

    fn call(&mut self, operation: Option<unsafe extern "C" fn(*mut vipl_vi)>) {
        if let Some(operation) = operation {
            // SAFETY: as the interface asks.
            unsafe { operation(self.abi) };
        }
    }

    /// Calls `progress`, if it is connected.
    pub fn progress(&mut self) {
        if self.is_connected() {
            self.call(self.nic.operations().progress);
        }
    }

    /// The agent reports that the peer has gone.
    pub fn peer_gone(&mut self, orderly: bool) {
        match self.nic.operations().peer_gone {
            // SAFETY: as the interface asks.
            Some(peer_gone) => unsafe { peer_gone(self.abi, orderly) },
            None => self.progress(),
        }
    }

    /// Whether `ready` shall report the receive side.
    pub fn watch(&mut self, on: bool) {
        // SAFETY: as the interface asks.
        unsafe { self.nic.operations().watch.expect("watch")(self.abi, on) };
    }

    /// Whether no transfer uses a region that has left the table.
    pub fn quiesced(&mut self, since: &mut u64, left: Duration) -> bool {
        let quiesced = self.nic.operations().quiesced;
        // SAFETY: as the interface asks.
        quiesced.is_none_or(|quiesced| unsafe { quiesced(self.abi, since, left.as_nanos() as u64) })
    }

    /// Whether the plug-in shall report completions on a queue, as where a thread waits for them.
    pub fn set_signal(&mut self, queue: Queue, on: bool) {
        // SAFETY: as in `index`.
        unsafe { (*self.queue(queue)).signal = on.into() };
    }

    fn queue(&self, queue: Queue) -> *mut vipl_queue {
        // SAFETY: only addresses are made.
        unsafe {
            match queue {
                Queue::Send => &raw mut (*self.abi).send,
                Queue::Recv => &raw mut (*self.abi).recv,
            }
        }
    }

    /// Posts a send.
    pub fn send(&mut self, data: &[Segment]) -> Posted {
        self.post(Queue::Send, VIP_CONTROL_OP_SENDRECV, data)
    }

    /// Posts a receive.
    pub fn receive(&mut self, room: &[Segment]) -> Posted {
        self.post(Queue::Recv, VIP_CONTROL_OP_SENDRECV, room)
    }

    /// Posts an RDMA Write, or a Read, whose operation is in `control` with the flags.
    pub fn rdma(&mut self, control: u16, remote: Segment, data: &[Segment]) -> Posted {
        let segments: Vec<Segment> = [&[remote], data].concat();
        self.post(Queue::Send, control, &segments)
    }

    /// Posts a descriptor with these flags, and rings the doorbell. Its Length is the sum of its data segments.
    ///
    /// # Panics
    /// The queue is full.
    pub fn post(&mut self, queue: Queue, control: u16, segments: &[Segment]) -> Posted {
        let data = usize::from(control & VIP_CONTROL_OP_MASK != VIP_CONTROL_OP_SENDRECV);
        let lengths = segments.iter().skip(data).map(|segment| segment.length);
        self.post_with(queue, control, lengths.fold(0, u32::wrapping_add), segments)
    }

    /// The same with any Length.
    ///
    /// # Panics
    /// The queue is full.
    pub fn post_with(
        &mut self,
        queue: Queue,
        control: u16,
        length: u32,
        segments: &[Segment],
    ) -> Posted {
        let posted = Posted(self.descriptors.len());
        let lines = (0..(32 + 16 * segments.len()).div_ceil(64)).map(|_| Line::default());
        self.descriptors.push(lines.collect());
        self.put(posted, 12, segments.len() as u32 | u32::from(control) << 16);
        self.put(posted, 20, IMMEDIATE);
        self.put(posted, 24, length);
        for (number, segment) in segments.iter().enumerate() {
            self.set_segment(posted, number, *segment);
        }
        let descriptor = self.descriptors[posted.0].as_ptr().cast_mut();
        descriptor.expose_provenance();
        let place = self.queue(queue);
        // SAFETY: as in `index`; the entry is inside the ring.
        unsafe {
            let (number, mask) = ((*place).posted, (*place).mask);
            assert!(
                number.wrapping_sub((*place).completed) < RING,
                "a full queue"
            );
            *(*place).entries.add((number & mask) as usize) = vipl_entry {
                descriptor: descriptor.cast(),
                memory: segments.first().map_or(0, |segment| segment.handle),
                status: 0,
            };
            (*place).posted = number.wrapping_add(1);
        }
        if self.is_connected() {
            self.call(match queue {
                Queue::Send => self.nic.operations().post_send,
                Queue::Recv => self.nic.operations().post_recv,
            });
        }
        posted
    }

    /// The application changes a segment of a posted descriptor.
    pub fn set_segment(&self, posted: Posted, number: usize, segment: Segment) {
        let at = 32 + 16 * number;
        self.put(posted, at, segment.address as u32);
        self.put(posted, at + 4, (segment.address >> 32) as u32);
        self.put(posted, at + 8, segment.handle);
        self.put(posted, at + 12, segment.length);
    }

    fn word(&self, posted: Posted, at: usize) -> &AtomicU32 {
        let lines = &self.descriptors[posted.0];
        assert!(at < 64 * lines.len());
        // SAFETY: inside the lines, and aligned.
        unsafe { AtomicU32::from_ptr(lines.as_ptr().cast::<u32>().add(at / 4).cast_mut()) }
    }

    fn put(&self, posted: Posted, at: usize, value: u32) {
        self.word(posted, at).store(value, Ordering::Relaxed);
    }

    /// Status of a descriptor: 0 until it is complete.
    pub fn status(&self, posted: Posted) -> u32 {
        self.word(posted, 28).load(Ordering::Acquire)
    }

    /// Length of a descriptor.
    pub fn length(&self, posted: Posted) -> u32 {
        self.word(posted, 24).load(Ordering::Relaxed)
    }

    /// Immediate data of a descriptor.
    pub fn immediate(&self, posted: Posted) -> u32 {
        self.word(posted, 20).load(Ordering::Relaxed)
    }
}

impl Drop for Vi {
    fn drop(&mut self) {
        // SAFETY: as in `index`.
        if unsafe { (*self.abi).state } != VIP_VI_STATE::VIP_STATE_IDLE as u32 {
            self.detach();
        }
        self.call(self.nic.operations().vi_destroy);
        // SAFETY: made in `new`; no operation uses it any more.
        drop(unsafe { Box::from_raw(self.abi) });
    }
}
