//! Processes and hosts that make protocol errors, with peers on other hosts. The device must survive, other connections
//! must not notice, and memory that is not registered for the purpose must not change.

mod harness;

use std::os::fd::{AsRawFd, OwnedFd};

use harness::*;
use vipl_abi::*;
use vipl_clan_proto::nic::NIC_BYTES;
use vipl_clan_proto::vi::VI_BYTES;
use vipl_plugin_abi::VIPL_DATA_ETHERTYPE as ETHERTYPE;
use vipl_wire::{Header, Kind, key_check};

const RD: u16 = VIP_SERVICE_RELIABLE_DELIVERY;

/// A frame of a stranger, or of a sender that knows the connection's key but not its state.
fn frame(chance: &mut Chance, stranger: &OwnedFd, endpoint: u16, key: u64) {
    let mut frame = vec![0u8; 14 + 200];
    frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    let body = chance.pick(&[0, 4, 12, 16, 20, 32, 100]) as usize;
    for byte in &mut frame[14 + 32..14 + 32 + body] {
        *byte = chance.pick(&[0, 1, 2, 3, 5, 64, 255]) as u8;
    }
    let kinds = [
        Kind::Data,
        Kind::Ack,
        Kind::Probe,
        Kind::Close,
        Kind::Closed,
    ];
    let header = Header {
        kind: chance.pick(&kinds),
        to_endpoint: endpoint,
        from_endpoint: endpoint + 1,
        to_vi: chance.pick(&[5, 5, 5, 6, 1024, u32::MAX]),
        check: chance.pick(&[key_check(key, 1), key_check(key, 1), 7]),
        sequence: (key >> 32) as u32 + chance.below(3) as u32,
        acknowledged: key as u32 + chance.below(3) as u32,
        window: chance.next() as u16,
        flags: chance.below(4) as u8,
        marks: 0,
    };
    let mut bytes = 14 + header.emit(&mut frame[14..], body);
    if chance.below(4) == 0 {
        let place = 14 + chance.below(bytes as u64 - 14) as usize;
        frame[place] ^= 1 << chance.below(8);
    }
    if chance.below(8) == 0 {
        bytes = 14 + chance.below(bytes as u64 - 14) as usize;
    }
    // SAFETY: a valid frame. What the kernel refuses is as good as lost.
    unsafe { libc::send(stranger.as_raw_fd(), frame.as_ptr().cast(), bytes, 0) };
}

/// A message between two correct processes.
fn talk(couple: &mut Couple, out: &Memory, into: &Memory, handles: [u32; 2], bytes: u32) {
    let number = couple.from.sends;
    let send = Descriptor::from(&[out.segment(handles[0], 0, bytes)]);
    let receive = Descriptor::into(&[into.segment(handles[1], 0, bytes)]);
    couple.to.receive(&receive, true);
    couple.from.send(&couple.near, &send, true);
    assert_eq!(couple.from.sent(number), VIP_STATUS_OP_SEND);
    assert_eq!(couple.to.received(number).length, bytes);
    assert!(into.copy(0, bytes as usize) == out.copy(0, bytes as usize));
    until("the Status", || (send.result().0 != 0).then_some(()));
}

fn fuzz(seed: u64) {
    println!("seed {seed:#x}");
    let Some(lan) = Lan::enter() else { return };
    let agent = Agent::start();
    let mut honest = Couple::remote(&agent, &lan, 1000, RD, OPEN_TO_ALL);
    let (mut out, into) = (Memory::new(1 << 14), Memory::new(1 << 14));
    out.fill(1);
    let handles = [
        honest.near.register(out.base(), 1 << 14, 0),
        honest.far.register(into.base(), 1 << 14, 0),
    ];
    // Memory that the device may write for the attacker, and memory that must not change.
    let arena = Memory::new(1 << 16);
    let mut canary = Memory::new(1 << 14);
    canary.fill(2);
    let before = canary.copy(0, 1 << 14);
    let stranger = lan.stranger();
    let mut chance = Chance(seed);
    for burst in 0..40u64 {
        let endpoint = 10 + 2 * burst as u16;
        let (mut nic, mut victim) = (
            agent.open_on(&lan, endpoint),
            agent.open_on(&lan, endpoint + 1),
        );
        let (mut vi, mut target) = (nic.vi(5), victim.vi(6));
        let own = nic.register(arena.base(), 1 << 16, RIGHTS);
        let shut = victim.register(canary.base(), 1 << 14, 0);
        let level = chance.pick(&[RD, VIP_SERVICE_UNRELIABLE, VIP_SERVICE_RELIABLE_RECEPTION]);
        let key = chance.next();
        vi.attach_remote(&nic, (key, 0), (6, endpoint + 1), level, OPEN_TO_ALL);
        target.attach_remote(&victim, (key, 1), (5, endpoint), level, OPEN_TO_ALL);
        let near = [
            arena.base(),
            u64::from(own),
            u64::from(shut),
            0xffff,
            1 << 32,
        ];
        for _ in 0..40 {
            match chance.below(8) {
                0 => scribble(&mut chance, vi.raw(), VI_BYTES, &near, 50),
                1 => scribble(&mut chance, nic.raw(), NIC_BYTES, &near, 50),
                2 => packet(&mut chance, &nic),
                3 | 4 => frame(&mut chance, &stranger, endpoint, key),
                _ => ring(&mut chance, &nic, &mut vi, &arena, &canary, own, shut),
            }
            nic.kick();
        }
        let bytes = 8 + (burst as u32 % 3) * 3000;
        talk(&mut honest, &out, &into, handles, bytes);
        assert_eq!(
            canary.copy(0, 1 << 14),
            before,
            "seed {seed:#x}, burst {burst}"
        );
    }
    assert_eq!((honest.from.end(), honest.to.end()), (None, None));
}

#[test]
fn scribbles_and_strangers_hurt_no_other_process() {
    for seed in [0x1234_5678, 0xdead_beef, 0x0bad_cafe_0042] {
        fuzz(seed);
    }
}
