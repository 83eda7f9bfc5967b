//! Processes that do not keep to the rules. They write what they like into every page that they share with
//! the device and send it any packet. The device must live, other processes must not notice, and memory
//! that was not given to anybody must stay as it is.

mod harness;

use std::os::fd::AsRawFd;

use harness::*;
use vipl_abi::*;
use vipl_clan_proto::channel;
use vipl_clan_proto::message::{Request, op};
use vipl_clan_proto::nic::NIC_BYTES;
use vipl_clan_proto::vi::{Segment, VI_BYTES, end};
use zerocopy::IntoBytes;

const RD: u16 = VIP_SERVICE_RELIABLE_DELIVERY;

/// A small generator, so that a seed says all.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// Two honest processes that go on talking.
struct Honest {
    couple: Couple,
    memory: Memory,
    out: u32,
    into: u32,
}

impl Honest {
    fn new(agent: &Agent) -> Honest {
        let mut couple = Couple::new(agent, 0xfeed, RD, OPEN_TO_ALL);
        let mut memory = Memory::new(1 << 17);
        memory.fill(1);
        let out = couple.near.register(memory.base(), 1 << 16, 0);
        let into = couple.far.register(memory.base() + (1 << 16), 1 << 16, 0);
        Honest {
            couple,
            memory,
            out,
            into,
        }
    }

    fn talk(&mut self, bytes: u32) {
        let number = self.couple.from.sends;
        let send = Descriptor::from(&[self.memory.segment(self.out, 0, bytes)]);
        let receive = Descriptor::into(&[self.memory.segment(self.into, 1 << 16, bytes)]);
        self.couple.to.receive(&receive, true);
        self.couple.from.send(&self.couple.near, &send, true);
        assert_eq!(self.couple.from.sent(number), VIP_STATUS_OP_SEND);
        assert_eq!(self.couple.to.received(number).length, bytes);
        // The descriptors may go only when the device does not write to them any more.
        for descriptor in [&send, &receive] {
            let limit = std::time::Instant::now() + std::time::Duration::from_millis(5);
            while descriptor.result().0 == 0 && std::time::Instant::now() < limit {
                std::thread::yield_now();
            }
        }
        std::mem::forget((send, receive));
    }
}

/// Writes values of all kinds over memory that is shared with the device.
fn scribble(chance: &mut Chance, base: *mut u8, bytes: usize, near: &[u64], count: u32) {
    for _ in 0..count {
        let value = match chance.below(5) {
            0 => 0,
            1 => chance.pick(near),
            2 => u64::MAX,
            3 => chance.below(4096) << 32 | chance.below(4096),
            _ => chance.next() | 1 << 63,
        };
        let at = match chance.below(3) {
            // Where the words are, and the first doorbells.
            0 => chance.below(64) * 8,
            1 => 4096 + chance.below(256) * 8,
            _ => chance.below(bytes as u64 / 8) * 8,
        };
        // SAFETY: inside the shared memory, which is nobody's object.
        unsafe { base.add(at as usize).cast::<u64>().write_volatile(value) };
    }
}

fn fuzz(seed: u64) {
    println!("seed {seed:#x}");
    let agent = Agent::start();
    let mut honest = Honest::new(&agent);
    // What the attacker may be made to write to, and what nobody may touch.
    let arena = Memory::new(1 << 16);
    let mut canary = Memory::new(1 << 14);
    canary.fill(2);
    let before = canary.copy(0, 1 << 14);
    let mut chance = Chance(seed);
    for burst in 0..60u64 {
        // The second one's memory is the canary, registered without any right; the first one attacks.
        let (mut nic, mut victim) = (agent.open(), agent.open());
        let (mut vi, mut target) = (nic.vi(5), victim.vi(6));
        let own = nic.register(arena.base(), 1 << 16, RIGHTS);
        let shut = victim.register(canary.base(), 1 << 14, 0);
        let level = chance.pick(&[RD, VIP_SERVICE_UNRELIABLE, VIP_SERVICE_RELIABLE_RECEPTION]);
        let key = 10 + burst;
        vi.attach(&nic, key, 0, level, OPEN_TO_ALL);
        target.attach(&victim, key, 1, level, OPEN_TO_ALL);
        let near = [
            arena.base(),
            arena.base() + (1 << 15),
            u64::from(own),
            u64::from(shut),
            0xffff,
            1 << 32,
        ];
        for _ in 0..40 {
            match chance.below(6) {
                0 => scribble(&mut chance, vi.raw(), VI_BYTES, &near, 50),
                1 => scribble(&mut chance, nic.raw(), NIC_BYTES, &near, 50),
                2 => packet(&mut chance, &nic),
                _ => ring(&mut chance, &nic, &mut vi, &arena, &canary, own, shut),
            }
            nic.kick();
        }
        honest.talk(8 + (burst as u32 % 3) * 3000);
        assert_eq!(
            canary.copy(0, 1 << 14),
            before,
            "seed {seed:#x}, burst {burst}"
        );
    }
    assert_eq!(honest.couple.from.end(), None);
    // The device goes on with whoever comes.
    let mut couple = Couple::new(&agent, 3, RD, OPEN_TO_ALL);
    let send = Descriptor::from(&[]);
    couple.from.send(&couple.near, &send, true);
    assert_eq!(couple.to.ended(), end::EMPTY);
    until("the Status of a send", || {
        (send.result().0 != 0).then_some(())
    });
}

/// A packet that may mean anything.
fn packet(chance: &mut Chance, nic: &Nic) {
    let mut request = Request {
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
        ..Request::default()
    };
    if chance.below(8) == 0 {
        request.op = chance.next() as u32;
    }
    let cut = if chance.below(8) == 0 { 9 } else { 0 };
    let bytes = &request.as_bytes()[cut..];
    // A device that has sent it away does not read any more.
    let _ = channel::send(nic.socket.as_raw_fd(), bytes, &[]);
}

/// A doorbell with a descriptor that makes little sense.
fn ring(
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
    // Local data never lies in the canary: that is this very process's memory, which it may write to.
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
    let mut descriptor = Descriptor::new(control, length, &list[..used]);
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
    // The device may write to it whenever it likes.
    std::mem::forget(descriptor);
}

#[test]
fn scribbles_hurt_the_scribbler_only() {
    for seed in [0x1234_5678, 0xdead_beef, 0x0bad_cafe_0042] {
        fuzz(seed);
    }
}

/// An RDMA Write to memory of the partner that is not open to it.
#[test]
fn no_way_around_the_table() {
    let agent = Agent::start();
    for (key, rights, handle_off) in [(1, 0, 0), (2, RIGHTS, 1), (3, RIGHTS, 4096)] {
        let mut couple = Couple::new(&agent, key, RD, OPEN_TO_ALL);
        let memory = Memory::new(4096);
        let mut canary = Memory::new(4096);
        canary.fill(8);
        let before = canary.copy(0, 4096);
        let out = couple.near.register(memory.base(), 4096, RIGHTS);
        let shut = couple.far.register(canary.base(), 4096, rights);
        let remote = canary.segment(shut + handle_off, 0, 0);
        let list = [remote, memory.segment(out, 0, 64)];
        let write = Descriptor::new(VIP_CONTROL_OP_RDMAWRITE, 64, &list);
        couple.from.send(&couple.near, &write, true);
        assert_eq!(couple.to.ended(), end::WRITE_REFUSED);
        assert_eq!(couple.from.ended(), end::LOST);
        assert!(canary.copy(0, 4096) == before);
        until("the Status", || (write.result().0 != 0).then_some(()));
    }
}

/// A process that floods the device with doorbells and packets does not keep it from others.
#[test]
fn a_flood_does_not_starve_others() {
    let agent = Agent::start();
    let mut honest = Honest::new(&agent);
    let mut couple = Couple::new(&agent, 4, VIP_SERVICE_UNRELIABLE, OPEN_TO_ALL);
    let memory = Memory::new(1 << 16);
    let out = couple.near.register(memory.base(), 1 << 16, 0);
    let send = Descriptor::from(&[memory.segment(out, 0, 60_000)]);
    for round in 0..200 {
        for _ in 0..200 {
            couple.from.send(&couple.near, &send, true);
        }
        let request = Request {
            op: op::WAKE,
            ..Request::default()
        };
        let _ = channel::send(couple.near.socket.as_raw_fd(), request.as_bytes(), &[]);
        if round % 20 == 0 {
            honest.talk(4096);
        }
    }
    std::mem::forget((send, memory));
}
