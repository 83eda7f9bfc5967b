//! Protocol errors from a seed: any values, packets and doorbells.

use std::os::fd::AsRawFd;

use vipl_clan_proto::channel;
use vipl_clan_proto::message::{Request, op};
use vipl_clan_proto::vi::Segment;
use zerocopy::IntoBytes;

use super::{Descriptor, Memory, Nic, Vi};

/// A small generator, so that a seed determines everything.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// Writes values of all kinds over memory that is shared with the device.
pub fn scribble(chance: &mut Chance, base: *mut u8, bytes: usize, near: &[u64], count: u32) {
    for _ in 0..count {
        let value = match chance.below(5) {
            0 => 0,
            1 => chance.pick(near),
            2 => u64::MAX,
            3 => chance.below(4096) << 32 | chance.below(4096),
            _ => chance.next() | 1 << 63,
        };
        let at = match chance.below(3) {
            // The words, and the first doorbells.
            0 => chance.below(64) * 8,
            1 => 4096 + chance.below(256) * 8,
            _ => chance.below(bytes as u64 / 8) * 8,
        };
        // SAFETY: inside the shared memory, which is no object of Rust.
        unsafe { base.add(at as usize).cast::<u64>().write_volatile(value) };
    }
}

/// A packet that may mean anything.
pub fn packet(chance: &mut Chance, nic: &Nic) {
    let mut request = Request {
        number: 0,
        op: chance.pick(&[op::DETACH, op::BREAK, op::ATTACH, op::WAKE, op::CREATE]),
        vi: chance.pick(&[5, 5, 5, 6, 1023, 1024, u32::MAX]),
        epoch: chance.below(4) as u32,
        key: chance.pick(&[0xfeed, 10, 11, 12, 13]),
        side: chance.below(3) as u32,
        max_transfer: chance.next(),
        ptag: chance.below(9) as u32,
        sends: chance.next() as u32,
        receives: chance.below(40) as u32,
        reliability: chance.pick(&[0, 1, 2, 4, 6, 0xffff]),
        flags: chance.next() as u16,
        read_levels: chance.next() as u16,
        segments_max: chance.next() as u16,
        mtu: chance.pick(&[0, 0, 1500, 17, u32::MAX]),
        peer_vi: chance.below(9) as u32,
        endpoint: chance.below(5) as u16,
        address: [0; 6],
    };
    if chance.below(8) == 0 {
        request.op = chance.next() as u32;
    }
    let cut = if chance.below(8) == 0 { 9 } else { 0 };
    let bytes = &request.as_bytes()[cut..];
    // A device that has expelled the process does not read any more.
    let _ = channel::send(nic.socket.as_raw_fd(), bytes, &[]);
}

/// A doorbell with an invalid descriptor.
pub fn ring(
    chance: &mut Chance,
    nic: &Nic,
    vi: &mut Vi,
    arena: &Memory,
    canary: &Memory,
    own: u32,
    shut: u32,
) {
    let mut segment = || Segment {
        address: match chance.below(4) {
            0 => canary.base() + chance.below(1 << 14),
            1 => chance.next() | 1 << 63,
            _ => arena.base() + chance.below(1 << 15),
        },
        handle: chance.pick(&[own, own, shut, 0, u32::MAX]),
        length: chance.pick(&[0, 1, 8, 40, 41, 4096, 65_536, u32::MAX]),
    };
    // Local data is never in the canary, which is memory of this process: it may write to its own.
    let mut list: Vec<Segment> = (0..3).map(|_| segment()).collect();
    for local in &mut list[1..] {
        local.address = arena.base() + chance.below(1 << 14);
    }
    let control = chance.pick(&[0, 1, 1, 2, 3, 4, 5, 0xffff]);
    let length = chance.pick(&[0, 8, 9, 4096, u32::MAX]);
    if control & 3 == 0 {
        list[0].address = arena.base();
    }
    let used = chance.below(4) as usize;
    let descriptor = Descriptor::new(control, length, &list[..used]);
    if chance.below(4) == 0 {
        descriptor.0.seg_count = chance.next() as u16;
    }
    if chance.below(2) == 0 {
        let sum: u64 = list
            .iter()
            .take(used)
            .skip(1)
            .map(|s| u64::from(s.length))
            .sum();
        descriptor.0.length = sum as u32;
    }
    let whole = chance.below(2) == 0;
    if chance.below(3) == 0 {
        vi.receive(&descriptor, whole);
    } else {
        vi.send(nic, &descriptor, whole);
    }
}
