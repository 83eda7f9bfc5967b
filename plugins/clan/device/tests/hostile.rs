//! Processes that make protocol errors. They write any values into every page that they share with the device and send
//! it any packet. The device must survive, other processes must not notice, and memory that is not registered for the
//! purpose must not change.

mod harness;

use std::os::fd::AsRawFd;

use harness::*;
use vipl_abi::*;
use vipl_clan_proto::channel;
use vipl_clan_proto::message::{Request, op};
use vipl_clan_proto::nic::NIC_BYTES;
use vipl_clan_proto::vi::{VI_BYTES, end};
use zerocopy::IntoBytes;

const RD: u16 = VIP_SERVICE_RELIABLE_DELIVERY;

/// Two correct processes that exchange messages.
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
        // The descriptors may be freed only when the device does not write to them any more.
        for descriptor in [&send, &receive] {
            let limit = std::time::Instant::now() + std::time::Duration::from_millis(5);
            while descriptor.result().0 == 0 && std::time::Instant::now() < limit {
                std::thread::yield_now();
            }
        }
    }
}

fn fuzz(seed: u64) {
    println!("seed {seed:#x}");
    let agent = Agent::start();
    let mut honest = Honest::new(&agent);
    // Memory that the device may write for the attacker, and memory that must not change.
    let arena = Memory::new(1 << 16);
    let mut canary = Memory::new(1 << 14);
    canary.fill(2);
    let before = canary.copy(0, 1 << 14);
    let mut chance = Chance(seed);
    for burst in 0..60u64 {
        // The second VI's memory is the canary, registered without any right; the first VI attacks.
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
    // The device serves new processes.
    let mut couple = Couple::new(&agent, 3, RD, OPEN_TO_ALL);
    let send = Descriptor::from(&[]);
    couple.from.send(&couple.near, &send, true);
    assert_eq!(couple.to.ended(), end::EMPTY);
    until("the Status of a send", || {
        (send.result().0 != 0).then_some(())
    });
}

#[test]
fn scribbles_hurt_the_scribbler_only() {
    for seed in [0x1234_5678, 0xdead_beef, 0x0bad_cafe_0042] {
        fuzz(seed);
    }
}

/// An RDMA Write to memory of the peer without the right.
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

/// A process that floods the device with doorbells and packets does not delay others.
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
    std::mem::forget(memory);
}
