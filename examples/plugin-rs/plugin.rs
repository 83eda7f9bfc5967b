//! A VIPL plug-in in Rust: the device `example_rs` connects processes of one host through memory that they share, on
//! Reliable Delivery, without RDMA. It is `plugin.c` on top of the SDK; the first comment there explains the design.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use vipl_abi::{VIP_SERVICE_RELIABLE_DELIVERY, VIP_STATUS_FORMAT_ERROR, VIP_STATUS_IMMEDIATE};
use vipl_abi::{VIP_STATUS_OP_RECEIVE, VIP_STATUS_OP_SEND};
use vipl_plugin_sdk::abi::{vipl_connection, vipl_nic_info};
use vipl_plugin_sdk::shm::Mapping;
use vipl_plugin_sdk::{Nic, NicHandle, Port, Provider, Queue, Status, Vi, describe};

#[cfg(test)]
mod tests;

/// Longest message: the least that programs expect (spec §2.3).
const MESSAGE_MAX: usize = 32_768;
/// Messages in transit in one direction.
const SLOTS: u32 = 8;

/// What has become of the sender of a lane.
const OPEN: u32 = 0;
const LEFT: u32 = 1;
const BROKEN: u32 = 2;

/// One message. Shared memory consists of atomics, because the peer may write to it at any time.
#[repr(C)]
struct Slot {
    length: AtomicU32,
    immediate: AtomicU32,
    /// `VIP_STATUS_IMMEDIATE` if the sender has set the flag.
    flag: AtomicU32,
    data: [AtomicU8; MESSAGE_MAX],
}

/// One direction. Each word has one writer.
#[repr(C, align(64))]
struct Lane {
    /// By the sender: messages put in.
    sent: AtomicU32,
    /// By the sender: `OPEN`, `LEFT` or `BROKEN`, after its last message.
    closed: AtomicU32,
    apart: [AtomicU32; 14],
    /// By the receiver: messages taken out.
    taken: AtomicU32,
    slots: [Slot; SLOTS as usize],
}

/// Bytes of the segment: a lane for each direction.
const SEGMENT: usize = 2 * size_of::<Lane>();

/// This side of a connection.
struct Link {
    segment: Mapping,
    side: usize,
    /// Our own counts; the shared copies are for the peer.
    sent: u32,
    taken: u32,
}

impl Link {
    fn lane(&self, side: usize) -> &Lane {
        let lanes = self.segment.base().cast::<Lane>();
        // SAFETY: the mapping has two lanes, which are valid whatever is in them, and lives as long as `self`.
        unsafe { &*lanes.add(side & 1) }
    }

    fn output(&self) -> &Lane {
        self.lane(self.side)
    }

    fn input(&self) -> &Lane {
        self.lane(1 - self.side)
    }

    /// Sends posted descriptors while there are free slots; `progress` continues when the peer has freed some.
    fn send_posted(&mut self, port: &Port) {
        // A peer that lies about `taken` harms its own messages only.
        while self
            .sent
            .wrapping_sub(self.output().taken.load(Ordering::Acquire))
            < SLOTS
        {
            let Some(send) = port.next_send(0) else { break };
            let opcode = send.operation.opcode();
            if opcode != VIP_STATUS_OP_SEND {
                port.refuse(Queue::Send, VIP_STATUS_FORMAT_ERROR | opcode);
                continue;
            }
            let slot = &self.output().slots[(self.sent % SLOTS) as usize];
            if !port.gather(&send.segments, 0, &slot.data[..send.length as usize]) {
                continue;
            }
            let (immediate, flag) = port.carried(&send);
            slot.length.store(send.length, Ordering::Relaxed);
            slot.immediate.store(immediate, Ordering::Relaxed);
            slot.flag.store(flag, Ordering::Relaxed);
            self.sent = self.sent.wrapping_add(1);
            self.output().sent.store(self.sent, Ordering::Release);
            // The data has left the application's buffers.
            port.complete(Queue::Send, opcode, None);
        }
        if !port.is_connected() {
            self.output().closed.store(BROKEN, Ordering::Release);
        }
    }

    /// Takes all messages that have arrived.
    fn receive_arrived(&mut self, port: &Port) {
        while port.is_connected() {
            let input = self.input();
            let arrived = input.sent.load(Ordering::Acquire).wrapping_sub(self.taken);
            let slot = &input.slots[(self.taken % SLOTS) as usize];
            let length = slot.length.load(Ordering::Relaxed);
            if arrived == 0 {
                return;
            }
            if arrived > SLOTS || length as usize > MESSAGE_MAX {
                // No peer that follows the rules does that.
                return port.lose(false);
            }
            if let Some(segments) = port.next_receive(length)
                && port.scatter(&segments, 0, &slot.data[..length as usize])
            {
                let immediate = slot.immediate.load(Ordering::Relaxed);
                let flag = slot.flag.load(Ordering::Relaxed) & VIP_STATUS_IMMEDIATE;
                let status = VIP_STATUS_OP_RECEIVE | flag;
                port.complete(Queue::Recv, status, Some((length, immediate)));
            }
            if port.is_connected() {
                self.taken = self.taken.wrapping_add(1);
                self.input().taken.store(self.taken, Ordering::Release);
            }
        }
    }
}

/// A VI, with its connection if it has one.
struct ExampleVi(Option<Link>);

impl Vi for ExampleVi {
    type Nic = Example;

    fn new(_: &Example, _: &Port) -> Result<Self, Status> {
        Ok(ExampleVi(None))
    }

    fn attach(&mut self, _: &Example, _: &Port, new: &vipl_connection) -> Result<(), Status> {
        let segment = Mapping::open(new.segment_fd, SEGMENT, true);
        self.0 = Some(Link {
            segment: segment.map_err(|_| Status::Resource)?,
            side: new.side as usize,
            sent: 0,
            taken: 0,
        });
        Ok(())
    }

    /// No peer touches the memory of this process, so there is nothing to wait for.
    fn detach(&mut self, _: &Example, _: &Port) {
        if let Some(link) = self.0.take() {
            let closed = &link.output().closed;
            let _ = closed.compare_exchange(OPEN, LEFT, Ordering::Release, Ordering::Relaxed);
        }
    }

    fn post_send(&mut self, _: &Example, port: &Port) {
        if let Some(link) = &mut self.0 {
            link.send_posted(port);
        }
    }

    fn progress(&mut self, _: &Example, port: &Port) {
        let Some(link) = &mut self.0 else { return };
        // Before the messages that precede it are taken.
        let closed = link.input().closed.load(Ordering::Acquire);
        link.receive_arrived(port);
        link.send_posted(port);
        if closed != OPEN && port.is_connected() {
            port.lose(closed == LEFT);
        }
    }
}

/// The plug-in, and its only kind of NIC.
struct Example;

impl Nic for Example {
    type Vi = ExampleVi;
}

impl Provider for Example {
    const NAME: &'static CStr = c"example_rs";
    const VERSION: &'static CStr = c"1.0";
    type Nic = Example;

    fn devices() -> Vec<String> {
        vec!["example_rs".to_owned()]
    }

    fn open(_: &str, _: NicHandle, info: &mut vipl_nic_info) -> Result<Example, Status> {
        describe(info, "example_rs", b"\x02exmrs");
        info.reliability_support = VIP_SERVICE_RELIABLE_DELIVERY;
        info.register_bytes_max = 1 << 40;
        info.register_block_max = 1 << 40;
        info.native_mtu = MESSAGE_MAX as u32;
        info.transfer_max = MESSAGE_MAX as u64;
        info.segment_bytes = SEGMENT as u32;
        // The host calls `progress` while the application does not; a faster plug-in has a thread.
        info.poll_us = 1000;
        Ok(Example)
    }
}

vipl_plugin_sdk::plugin!(Example);
