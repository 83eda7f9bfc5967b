//! The operations of the device, seen from the two sides of a connection.

mod harness;

use harness::*;
use vipl_abi::*;
use vipl_clan_proto::message::{flag, op, status};
use vipl_clan_proto::vi::{Segment, end};

const RD: u16 = VIP_SERVICE_RELIABLE_DELIVERY;
const RR: u16 = VIP_SERVICE_RELIABLE_RECEPTION;
const U: u16 = VIP_SERVICE_UNRELIABLE;
const DONE: u32 = VIP_STATUS_DONE;

/// Messages of all sizes, at each level, by whole doorbells and by tokens.
#[test]
fn messages_arrive_whole_and_in_order() {
    let agent = Agent::start();
    let sizes = [
        0u32,
        1,
        8,
        39,
        40,
        41,
        80,
        81,
        4096,
        65_472,
        65_536,
        65_541,
        300_001,
        1 << 20,
    ];
    for (number, level) in [U, RD, RR].into_iter().enumerate() {
        let mut couple = Couple::new(&agent, 100 + number as u64, level, OPEN_TO_ALL);
        let mut source = Memory::new(1 << 20);
        let target = Memory::new(1 << 20);
        source.fill(number as u8);
        let out = couple.near.register(source.base(), 1 << 20, 0);
        let into = couple.far.register(target.base(), 1 << 20, 0);
        for (step, size) in sizes.into_iter().enumerate() {
            let whole = step % 2 == number % 2;
            let receive = Descriptor::into(&[target.segment(into, 0, 1 << 20)]);
            let send = Descriptor::from(&[source.segment(out, 0, size)]);
            send.0.control |= VIP_CONTROL_IMMEDIATE;
            send.0.immediate = 77 + step as u32;
            couple.to.receive(&receive, whole);
            couple.from.send(&couple.near, &send, whole);
            assert_eq!(couple.from.sent(step as u32), VIP_STATUS_OP_SEND);
            let arrived = couple.to.received(step as u32);
            assert_eq!(arrived.status, VIP_STATUS_OP_RECEIVE | VIP_STATUS_IMMEDIATE);
            assert_eq!(
                (arrived.length, arrived.immediate),
                (size, 77 + step as u32)
            );
            let expected = source.copy(0, size as usize);
            if arrived.small.is_empty() {
                assert!(target.copy(0, size as usize) == expected, "{size} bytes");
            } else {
                assert!(level != RR, "under Reliable Reception the data is in place");
                assert_eq!(arrived.small, expected);
            }
            // This completion is not taken: the device writes it into the descriptor.
            until("the Status of a send", || {
                (send.result().0 == DONE | VIP_STATUS_OP_SEND).then_some(())
            });
        }
    }
}

/// An application that makes no calls finds everything in its memory.
#[test]
fn a_program_that_does_not_look_finds_its_data() {
    let agent = Agent::start();
    let mut couple = Couple::new(&agent, 5, RD, OPEN_TO_ALL);
    let mut source = Memory::new(4096);
    let target = Memory::new(4096);
    source.fill(9);
    let out = couple.near.register(source.base(), 4096, 0);
    let into = couple.far.register(target.base(), 4096, 0);
    for (step, size) in [8u32, 40, 41, 4000].into_iter().enumerate() {
        let receive = Descriptor::into(&[
            target.segment(into, 0, 3),
            target.segment(into, 3, 0),
            target.segment(into, 3, 4093),
        ]);
        let send = Descriptor::from(&[source.segment(out, 0, size)]);
        send.0.immediate = step as u32;
        couple.to.receive(&receive, true);
        if size <= 80 {
            let data = source.copy(0, size as usize);
            couple.from.send_inline(&couple.near, &send, &data);
        } else {
            couple.from.send(&couple.near, &send, true);
        }
        let (status, length, immediate) = until("a completed descriptor", || {
            let result = receive.result();
            (result.0 & DONE != 0).then_some(result)
        });
        assert_eq!(status, DONE | VIP_STATUS_OP_RECEIVE);
        // Without the flag and the setting, immediate data is not sent.
        assert_eq!((length, immediate), (size, 0));
        let bytes = size as usize;
        assert_eq!(target.copy(0, bytes), source.copy(0, bytes));
    }
}

#[test]
fn gather_and_scatter_over_many_segments() {
    let agent = Agent::start();
    let mut couple = Couple::new(&agent, 6, RD, OPEN_TO_ALL);
    let mut source = Memory::new(1 << 20);
    let target = Memory::new(1 << 20);
    source.fill(3);
    let out = couple.near.register(source.base(), 1 << 20, 0);
    let into = couple.far.register(target.base(), 1 << 20, 0);
    for (step, (count, near, far)) in [(5, 7, 100), (6, 9, 1000), (252, 999, 4003)]
        .into_iter()
        .enumerate()
    {
        let list = |memory: &Memory, handle, bytes: u32| -> Vec<Segment> {
            (0..count)
                .map(|n| memory.segment(handle, u64::from(n * bytes), bytes))
                .collect()
        };
        let send = Descriptor::from(&list(&source, out, near));
        let receive = Descriptor::into(&list(&target, into, far));
        couple.to.receive(&receive, true);
        couple.from.send(&couple.near, &send, true);
        let arrived = couple.to.received(step as u32);
        assert_eq!(arrived.status, VIP_STATUS_OP_RECEIVE);
        assert_eq!(arrived.length, count * near);
        let bytes = (count * near) as usize;
        let found = if arrived.small.is_empty() {
            target.copy(0, bytes)
        } else {
            arrived.small
        };
        assert!(found == source.copy(0, bytes), "{count} segments");
    }
}

#[test]
fn rdma_goes_where_the_target_permits() {
    let agent = Agent::start();
    let mut couple = Couple::new(&agent, 7, RD, OPEN_TO_ALL);
    let mut source = Memory::new(1 << 20);
    let target = Memory::new(1 << 20);
    source.fill(5);
    let out = couple.near.register(source.base(), 1 << 20, 0);
    let into = couple.far.register(target.base(), 1 << 20, RIGHTS);
    for (step, size) in [8u32, 4096, 65_543, 1 << 20].into_iter().enumerate() {
        let remote = target.segment(into, 0, 0);
        let local = source.segment(out, 0, size);
        let write = Descriptor::new(VIP_CONTROL_OP_RDMAWRITE, size, &[remote, local]);
        couple.from.send(&couple.near, &write, step % 2 == 0);
        assert_eq!(couple.from.sent(step as u32), VIP_STATUS_OP_RDMA_WRITE);
        let bytes = size as usize;
        assert!(
            target.copy(0, bytes) == source.copy(0, bytes),
            "{size} bytes"
        );
    }
    // Back again, to other addresses.
    let local = source.segment(out, 8, 100_000);
    let remote = target.segment(into, 0, 0);
    let read = Descriptor::new(VIP_CONTROL_OP_RDMAREAD, 100_000, &[remote, local]);
    couple.from.send(&couple.near, &read, true);
    assert_eq!(couple.from.sent(4), VIP_STATUS_OP_RDMA_READ);
    assert!(source.copy(8, 100_000) == target.copy(0, 100_000));
    // One byte too many: none is written.
    let before = target.copy((1 << 20) - 16, 16);
    let remote = target.segment(into, (1 << 20) - 7, 0);
    let local = source.segment(out, 64, 8);
    let beyond = Descriptor::new(VIP_CONTROL_OP_RDMAWRITE, 8, &[remote, local]);
    couple.from.send(&couple.near, &beyond, true);
    assert_eq!(couple.from.sent(5), VIP_STATUS_OP_RDMA_WRITE);
    assert_eq!(couple.from.ended(), end::LOST);
    assert_eq!(couple.to.ended(), end::WRITE_REFUSED);
    assert_eq!(target.copy((1 << 20) - 16, 16), before);
}

/// E6 to E8 at each level.
#[test]
fn a_message_that_cannot_be_received() {
    let agent = Agent::start();
    let mut key = 1000;
    for level in [U, RD, RR] {
        for fault in 0..4 {
            key += 1;
            let mut couple = Couple::new(&agent, key, level, OPEN_TO_ALL);
            let memory = Memory::new(4096);
            let out = couple.near.register(memory.base(), 4096, 0);
            let into = couple.far.register(memory.base(), 4096, 0);
            let error = match fault {
                0 => 0,
                1 => VIP_STATUS_LENGTH_ERROR,
                2 => VIP_STATUS_PROTECTION_ERROR,
                _ => VIP_STATUS_FORMAT_ERROR,
            };
            let handle = if fault == 2 { into + 1 } else { into };
            let receive = Descriptor::into(&[memory.segment(handle, 0, 10)]);
            if fault == 3 {
                receive.0.control = VIP_CONTROL_OP_RDMAWRITE;
            }
            if fault > 0 {
                couple.to.receive(&receive, true);
            }
            let bytes = if fault == 1 { 11 } else { 10 };
            let send = Descriptor::from(&[memory.segment(out, 64, bytes)]);
            couple.from.send(&couple.near, &send, true);
            let failed = match level {
                U => 0,
                RD => VIP_STATUS_TRANSPORT_ERROR,
                _ => VIP_STATUS_REMOTE_DESC_ERROR,
            };
            assert_eq!(couple.from.sent(0), failed | VIP_STATUS_OP_SEND);
            if fault > 0 {
                let arrived = couple.to.received(0);
                assert_eq!(arrived.status, error | VIP_STATUS_OP_RECEIVE);
                assert_eq!(arrived.length, 0);
            }
            if level == U {
                let words = couple.to.pages.words();
                let empty = words.events[0].load(std::sync::atomic::Ordering::Acquire);
                assert_eq!(empty, u32::from(fault == 0));
                assert_eq!((couple.from.end(), couple.to.end()), (None, None));
            } else {
                let reason = if fault == 0 {
                    end::EMPTY
                } else {
                    end::REPORTED
                };
                assert_eq!(couple.from.ended(), end::REPORTED);
                assert_eq!(couple.to.ended(), reason);
            }
        }
    }
}

/// Memory that is registered but not mapped, on both sides.
#[test]
fn memory_that_is_not_there() {
    let agent = Agent::start();
    let memory = Memory::new(4096);
    let nowhere = 0x10_0000;
    for (key, near, far) in [(1, true, false), (2, false, true)] {
        let mut couple = Couple::new(&agent, 2000 + key, RR, OPEN_TO_ALL);
        let bad = |wrong: bool| if wrong { nowhere } else { memory.base() };
        let out = couple.near.register(bad(near), 4096, 0);
        let into = couple.far.register(bad(far), 4096, 0);
        let receive = Descriptor::into(&[Segment {
            address: bad(far),
            handle: into,
            length: 4096,
        }]);
        let send = Descriptor::from(&[Segment {
            address: bad(near),
            handle: out,
            length: 1000,
        }]);
        couple.to.receive(&receive, true);
        couple.from.send(&couple.near, &send, true);
        if near {
            let status = VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_SEND;
            assert_eq!(couple.from.sent(0), status);
            assert_eq!(couple.to.ended(), end::LOST);
        } else {
            let status = VIP_STATUS_REMOTE_DESC_ERROR | VIP_STATUS_OP_SEND;
            assert_eq!(couple.from.sent(0), status);
            let status = VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RECEIVE;
            assert_eq!(couple.to.received(0).status, status);
            assert_eq!(couple.to.ended(), end::REPORTED);
        }
        assert_eq!(couple.from.ended(), end::REPORTED);
    }
}

/// The peer may attach later; sends wait meanwhile. And a VI may be connected again.
#[test]
fn connections_come_and_go() {
    let agent = Agent::start();
    let (mut near, mut far) = (agent.open(), agent.open());
    let (mut from, mut to) = (near.vi(0), far.vi(0));
    let mut memory = Memory::new(4096);
    memory.fill(1);
    let out = near.register(memory.base(), 4096, 0);
    let into = far.register(memory.base(), 4096, 0);
    for round in 0..20u32 {
        let key = u64::from(round) + 1;
        let send = Descriptor::from(&[memory.segment(out, 0, 8)]);
        let receive = Descriptor::into(&[memory.segment(into, 2048, 8)]);
        from.attach(&near, key, round % 2, RD, flag::INLINE);
        let (sent, received) = (from.sends, to.receives);
        from.send(&near, &send, true);
        // A receive that was posted before the connection counts.
        let terms = to.terms(key, 1 - round % 2, RD, flag::INLINE);
        to.epoch += 1;
        to.receive(&receive, true);
        far.send(&terms);
        assert_eq!(from.sent(sent), VIP_STATUS_OP_SEND);
        let arrived = to.received(received);
        assert_eq!(arrived.length, 8);
        if round % 3 == 0 {
            // Doorbells of an ended connection do not count in the next one.
            to.receive(&receive, false);
        }
        near.detach(&from);
        assert_eq!(to.ended(), end::DISCONNECTED);
        far.detach(&to);
    }
}

/// The peer disconnects: what it has posted before is delivered.
#[test]
fn the_last_words_of_a_peer() {
    let agent = Agent::start();
    let mut couple = Couple::new(&agent, 9, RD, OPEN_TO_ALL);
    let memory = Memory::new(4096);
    let out = couple.near.register(memory.base(), 4096, 0);
    let into = couple.far.register(memory.base(), 4096, 0);
    let receive = Descriptor::into(&[memory.segment(into, 0, 64)]);
    let send = Descriptor::from(&[memory.segment(out, 64, 64)]);
    for _ in 0..10 {
        couple.to.receive(&receive, true);
    }
    // Both sides must have attached.
    couple.from.send(&couple.near, &send, true);
    couple.to.received(0);
    for _ in 1..10 {
        couple.from.send(&couple.near, &send, true);
    }
    couple.near.detach(&couple.from);
    assert_eq!(couple.to.ended(), end::DISCONNECTED);
    for number in 1..10 {
        assert_eq!(couple.to.received(number).length, 64);
    }
}

/// The device notices the end of a process although the agent does not report it.
#[test]
fn a_peer_that_ends_is_noticed_without_the_agent() {
    let agent = Agent::start();
    let couple = Couple::new(&agent, 71, RD, OPEN_TO_ALL);
    // The reply proves that the first side is attached: one that attached later would wait for its peer.
    assert_eq!(couple.near.ask(op::RECALL, &couple.from), status::OK);
    drop((couple.far, couple.to));
    assert_eq!(couple.from.ended(), end::LOST);
}

/// The death of a device is noticed, and a device whose agent exits, exits in good order.
#[test]
fn the_end_of_the_device() {
    let mut agent = Agent::start();
    let nic = agent.open();
    agent.device.kill().expect("kill");
    let gone = |socket: &std::os::fd::OwnedFd| {
        use std::os::fd::AsRawFd;
        let mut packet = [0; 64];
        until("the end of a socket", || {
            channel_end(socket.as_raw_fd(), &mut packet)
        });
    };
    gone(&nic.interrupts);
    gone(&nic.socket);
    // `Agent::drop` waits for another device to exit in good order.
    let other = Agent::start();
    let _nic = other.open();
}

fn channel_end(socket: std::os::fd::RawFd, packet: &mut [u8]) -> Option<()> {
    match vipl_clan_proto::channel::receive(socket, packet) {
        Ok((0, _)) => Some(()),
        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => Some(()),
        _ => None,
    }
}
