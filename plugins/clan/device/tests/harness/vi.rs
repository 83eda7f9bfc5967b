//! A VI as a plug-in drives it.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use vipl_abi::*;
use vipl_clan_proto::claim;
use vipl_clan_proto::message::{Request, op};
use vipl_clan_proto::vi::{HEAD, ReceiveLine, Segment, SendLine, ViPages, end, form};
use vipl_sys::shm::Mapping;

use super::{Descriptor, MTU, Nic, TAG, until};

/// A VI, with its own doorbell counts.
pub struct Vi {
    pub pages: ViPages,
    pub number: u32,
    pub sends: u32,
    pub receives: u32,
    pub epoch: u32,
    pub memory: Mapping,
}

/// A completed receive, as a plug-in takes it.
#[derive(Debug)]
pub struct Arrived {
    pub status: u32,
    pub length: u32,
    pub immediate: u32,
    /// The data, if it came with the completion.
    pub small: Vec<u8>,
}

impl Vi {
    pub fn raw(&self) -> *mut u8 {
        self.memory.base()
    }

    pub fn terms(&self, key: u64, side: u32, level: u16, flags: u16) -> Request {
        Request {
            op: op::ATTACH,
            vi: self.number,
            epoch: self.epoch + 1,
            key,
            side,
            max_transfer: 1 << 30,
            ptag: TAG,
            sends: self.sends,
            receives: self.receives,
            reliability: level,
            flags,
            read_levels: VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION,
            segments_max: 252,
            ..Request::default()
        }
    }

    pub fn attach(&mut self, nic: &Nic, key: u64, side: u32, level: u16, flags: u16) {
        let request = self.terms(key, side, level, flags);
        self.epoch += 1;
        nic.send(&request);
    }

    /// Attaches to the VI with this number at this endpoint of the same network; `side` is a key and a side of it.
    pub fn attach_remote(
        &mut self,
        nic: &Nic,
        side: (u64, u32),
        peer: (u32, u16),
        level: u16,
        flags: u16,
    ) {
        let request = Request {
            mtu: MTU,
            peer_vi: peer.0,
            endpoint: peer.1,
            ..self.terms(side.0, side.1, level, flags)
        };
        self.epoch += 1;
        nic.send(&request);
    }

    /// Rings for a send; `whole` says whether the doorbell carries the descriptor.
    pub fn send(&mut self, nic: &Nic, descriptor: &Descriptor, whole: bool) {
        let fields = &descriptor.0;
        let mut line = SendLine {
            descriptor: descriptor.address(),
            form: form::TOKEN,
            ..SendLine::default()
        };
        let count = usize::from(fields.seg_count);
        if whole && count <= 5 {
            line.form = form::WHOLE;
            line.seg_count = fields.seg_count;
            line.control = fields.control;
            line.immediate = fields.immediate;
            line.length = fields.length;
            line.first = fields.segments[0];
            let rest = self.pages.send_rest(self.sends).cast::<Segment>();
            for place in 1..count {
                // SAFETY: the second line has room for four segments.
                unsafe { rest.add(place - 1).write(fields.segments[place]) };
            }
        }
        self.pages.ring_send(self.sends, &line);
        self.sends = self.sends.wrapping_add(1);
        nic.kick();
    }

    /// Rings for a send of one segment whose data goes with the doorbell.
    pub fn send_inline(&mut self, nic: &Nic, descriptor: &Descriptor, data: &[u8]) {
        let fields = &descriptor.0;
        let line = SendLine {
            descriptor: descriptor.address(),
            form: form::INLINE,
            seg_count: 1,
            control: fields.control,
            immediate: fields.immediate,
            length: data.len() as u32,
            first: fields.segments[0],
            ..SendLine::default()
        };
        let first = data.len().min(HEAD);
        // SAFETY: both lines together have room for the data of a small message.
        unsafe {
            let (head, rest) = (
                self.pages.send_head(self.sends),
                self.pages.send_rest(self.sends),
            );
            std::ptr::copy_nonoverlapping(data.as_ptr(), head, first);
            std::ptr::copy_nonoverlapping(data[first..].as_ptr(), rest, data.len() - first);
        }
        self.pages.ring_send(self.sends, &line);
        self.sends = self.sends.wrapping_add(1);
        nic.kick();
    }

    pub fn receive(&mut self, descriptor: &Descriptor, whole: bool) {
        let fields = &descriptor.0;
        let mut line = ReceiveLine {
            descriptor: descriptor.address(),
            form: form::TOKEN,
            ..ReceiveLine::default()
        };
        if whole && fields.seg_count <= 2 {
            line.form = form::WHOLE;
            line.seg_count = fields.seg_count;
            line.control = fields.control;
            line.segments = [fields.segments[0], fields.segments[1]];
        }
        self.pages.ring_receive(self.receives, &line);
        self.receives = self.receives.wrapping_add(1);
    }

    /// Waits for the completion of a send.
    pub fn sent(&self, number: u32) -> u32 {
        let slot = self.pages.sent(number);
        until("a completed send", || {
            let there = slot.sequence.load(Acquire) == number.wrapping_add(1);
            there.then(|| slot.status.load(Relaxed))
        })
    }

    /// Waits for the completion of a receive and takes it from the device.
    pub fn received(&self, number: u32) -> Arrived {
        let slot = self.pages.received(number);
        until("a completed receive", || {
            if slot.sequence.load(Acquire) != number.wrapping_add(1) {
                return None;
            }
            let taken = slot.claim.take_for_application();
            if taken == Err(claim::DEVICE) {
                return None;
            }
            let small = taken.map_or(0, |()| slot.small.load(Relaxed) as usize);
            let words = slot.data.iter().flat_map(|w| w.load(Relaxed).to_ne_bytes());
            Some(Arrived {
                status: slot.status.load(Relaxed),
                length: slot.length.load(Relaxed),
                immediate: slot.immediate.load(Relaxed),
                small: words.take(small).collect(),
            })
        })
    }

    /// Why the connection has ended.
    pub fn ended(&self) -> u32 {
        until("the end of a connection", || self.end())
    }

    /// The same, if it has ended.
    pub fn end(&self) -> Option<u32> {
        let word = self.pages.words().end.load(Acquire);
        let here = (word >> 32) as u32 == self.epoch && word as u32 != end::NONE;
        here.then_some(word as u32)
    }
}
