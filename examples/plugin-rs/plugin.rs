//! A VIPL plug-in in Rust: the device `example_rs` connects processes of one host through memory that they share, on
//! Reliable Delivery, without RDMA. It is `plugin.c` on top of the SDK; the first comment there explains the design.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::*};

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::{Nic, Port, Provider, Queue, Status, Vi, describe, shm::Mapping};

const MESSAGE_MAX: usize = 32_768;
const SLOTS: u32 = 8;
/// What `closed` says of the sender; 0: nothing.
const LEFT: u32 = 1;
const BROKEN: u32 = 2;

/// What is shared is atomic or behind raw pointers: the peer may write to it at any time.
#[repr(C)]
struct Slot {
    /// Length, immediate data, and the flag of the latter.
    head: [AtomicU32; 3],
    data: [AtomicU8; MESSAGE_MAX],
}

#[repr(C, align(64))]
struct Lane {
    sent: AtomicU32,
    closed: AtomicU32,
    apart: [AtomicU32; 14],
    taken: AtomicU32,
    slots: [Slot; SLOTS as usize],
}

struct Link {
    out: &'static Lane,
    input: &'static Lane,
    sent: u32,
    taken: u32,
    /// Where the lanes are; they end with it.
    _segment: Mapping,
}

impl Link {
    fn send_posted(&mut self, port: &Port) {
        while self.sent.wrapping_sub(self.out.taken.load(Acquire)) < SLOTS
            && let Some(send) = port.next_send(0)
        {
            let slot = &self.out.slots[(self.sent % SLOTS) as usize];
            let (opcode, to) = (send.operation.opcode(), slot.data.as_ptr().cast_mut());
            if opcode != VIP_STATUS_OP_SEND {
                port.refuse(Queue::Send, VIP_STATUS_FORMAT_ERROR | opcode);
            // SAFETY: a slot has room for the largest message of a VI.
            } else if unsafe { port.gather(opcode, &send.segments, 0, to.cast(), send.length) } {
                let (immediate, flag) = port.carried(&send);
                let head = slot.head.iter().zip([send.length, immediate, flag]);
                head.for_each(|(to, value)| to.store(value, Relaxed));
                self.sent = self.sent.wrapping_add(1);
                self.out.sent.store(self.sent, Release);
                port.complete(Queue::Send, opcode, None);
            }
        }
        if !port.is_connected() {
            self.out.closed.store(BROKEN, Release);
        }
    }

    fn receive_arrived(&mut self, port: &Port) {
        while port.is_connected() {
            let there = self.input.sent.load(Acquire).wrapping_sub(self.taken);
            let slot = &self.input.slots[(self.taken % SLOTS) as usize];
            let [length, immediate, flag] = slot.head.each_ref().map(|word| word.load(Relaxed));
            if there == 0 {
                return;
            } else if there > SLOTS || length as usize > MESSAGE_MAX {
                return port.lose(false);
            }
            if let Some(segments) = port.next_receive(length)
                // SAFETY: the length was checked.
                && unsafe { port.scatter(&segments, 0, slot.data.as_ptr().cast(), length) }
            {
                let status = VIP_STATUS_OP_RECEIVE | flag & VIP_STATUS_IMMEDIATE;
                port.complete(Queue::Recv, status, Some((length, immediate)));
            }
            if port.is_connected() {
                self.taken = self.taken.wrapping_add(1);
                self.input.taken.store(self.taken, Release);
            }
        }
    }
}

/// A VI, with its connection if it has one.
struct ExampleVi(Option<Link>);
struct Example;

impl Vi for ExampleVi {
    type Nic = Example;
    fn new(_: &Example, _: &Port) -> Result<Self, Status> {
        Ok(ExampleVi(None))
    }
    fn attach(&mut self, _: &Example, _: &Port, new: &vipl_connection) -> Result<(), Status> {
        let segment = Mapping::open(new.segment_fd, 2 * size_of::<Lane>(), true);
        let _segment = segment.map_err(|_| Status::Resource)?;
        let lanes = _segment.base().cast::<Lane>();
        // SAFETY: the segment has two lanes, which are valid whatever is in them, and not used after it.
        let lane = |side: u32| unsafe { &*lanes.add(side as usize & 1) };
        let (out, input, sent, taken) = (lane(new.side), lane(!new.side), 0, 0);
        self.0 = Some(Link {
            out,
            input,
            sent,
            taken,
            _segment,
        });
        Ok(())
    }
    fn detach(&mut self, _: &Example, _: &Port) {
        if let Some(link) = self.0.take() {
            let _ = link.out.closed.compare_exchange(0, LEFT, Release, Relaxed);
        }
    }
    fn post_send(&mut self, _: &Example, port: &Port) {
        self.0.iter_mut().for_each(|link| link.send_posted(port));
    }
    fn progress(&mut self, _: &Example, port: &Port) {
        let Some(link) = &mut self.0 else { return };
        let closed = link.input.closed.load(Acquire);
        link.receive_arrived(port);
        link.send_posted(port);
        if closed != 0 && port.is_connected() {
            port.lose(closed == LEFT);
        }
    }
}

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
    fn open(_: &str, _: *const vipl_nic, info: &mut vipl_nic_info) -> Result<Example, Status> {
        describe(info, "example_rs", b"\x02exmrs");
        info.reliability_support = VIP_SERVICE_RELIABLE_DELIVERY;
        (info.register_bytes_max, info.register_block_max) = (1 << 40, 1 << 40);
        (info.native_mtu, info.transfer_max) = (MESSAGE_MAX as u32, MESSAGE_MAX as u64);
        info.segment_bytes = 2 * size_of::<Lane>() as u32;
        info.poll_us = 1000;
        Ok(Example)
    }
}

vipl_plugin_sdk::plugin!(Example);
