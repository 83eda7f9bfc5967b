//! Peers on other hosts: two NIC handles that know only each other's endpoint. One device serves both, and thus
//! communicates with itself.

mod harness;

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use harness::*;
use vipl_abi::*;
use vipl_clan_proto::channel;
use vipl_clan_proto::message::{Request, flag, op, status};
use vipl_clan_proto::vi::{INLINE_MAX, end};
use zerocopy::IntoBytes;

const RD: u16 = VIP_SERVICE_RELIABLE_DELIVERY;
const RR: u16 = VIP_SERVICE_RELIABLE_RECEPTION;
const U: u16 = VIP_SERVICE_UNRELIABLE;

/// The descriptors may be freed only when the device does not write to them any more.
fn settled(descriptors: &[&Descriptor]) {
    for descriptor in descriptors {
        until("the Status", || (descriptor.result().0 != 0).then_some(()));
    }
}

/// Messages of all sizes, at each level, by doorbells with data, whole ones and tokens.
#[test]
fn messages_arrive_whole_and_in_order() {
    let Some(lan) = Lan::enter() else { return };
    let agent = Agent::start();
    let sizes = [0u32, 1, 40, 80, 81, 1400, 1500, 4096, 65_472, 300_001];
    for (number, level) in [U, RD, RR].into_iter().enumerate() {
        let mut couple = Couple::remote(&agent, &lan, 10 + 2 * number as u16, level, OPEN_TO_ALL);
        let (mut source, target) = (Memory::new(1 << 19), Memory::new(1 << 19));
        source.fill(number as u8);
        let out = couple.near.register(source.base(), 1 << 19, 0);
        let into = couple.far.register(target.base(), 1 << 19, 0);
        for (step, size) in sizes.into_iter().enumerate() {
            let receive = Descriptor::into(&[target.segment(into, 0, 1 << 19)]);
            let send = Descriptor::from(&[source.segment(out, 0, size)]);
            send.0.control |= VIP_CONTROL_IMMEDIATE;
            send.0.immediate = 77 + step as u32;
            couple.to.receive(&receive, step % 2 == 0);
            let expected = source.copy(0, size as usize);
            if size > 0 && size <= INLINE_MAX as u32 {
                couple.from.send_inline(&couple.near, &send, &expected);
            } else {
                couple
                    .from
                    .send(&couple.near, &send, step % 2 == number % 2);
            }
            assert_eq!(couple.from.sent(step as u32), VIP_STATUS_OP_SEND);
            let arrived = couple.to.received(step as u32);
            assert_eq!(arrived.status, VIP_STATUS_OP_RECEIVE | VIP_STATUS_IMMEDIATE);
            assert_eq!(
                (arrived.length, arrived.immediate),
                (size, 77 + step as u32)
            );
            assert!(target.copy(0, size as usize) == expected, "{size} bytes");
            settled(&[&send]);
        }
        assert_eq!((couple.from.end(), couple.to.end()), (None, None));
    }
}

/// Messages may be received before the device has read that their VI is connected, and on this level they are not
/// repeated.
#[test]
fn first_messages_are_not_lost() {
    let Some(lan) = Lan::enter() else { return };
    let agent = Agent::start();
    let (near, far) = (agent.open_on(&lan, 10), agent.open_on(&lan, 11));
    let (mut from, mut to) = (near.vi(3), far.vi(900));
    for step in 0..20 {
        let key = 0x1_0000_0000 | u64::from(step);
        let others: Vec<Vi> = (0..100).map(|number| far.vi(number)).collect();
        let numbers = 5 * step..5 * step + 5;
        let sends: Vec<_> = numbers
            .clone()
            .map(|number| {
                let send = Descriptor::from(&[]);
                send.0.control |= VIP_CONTROL_IMMEDIATE;
                send.0.immediate = number;
                send
            })
            .collect();
        let receives: Vec<_> = sends.iter().map(|_| Descriptor::into(&[])).collect();
        from.attach_remote(&near, (key, 0), (900, 11), U, OPEN_TO_ALL);
        // The reply proves that the request before it has been read.
        near.ask(op::RECALL, &from);
        // Requests that take the device some time, followed by the one that counts.
        for vi in &others {
            far.send(&Request {
                op: op::DESTROY,
                vi: vi.number,
                ..Request::default()
            });
        }
        to.attach_remote(&far, (key, 1), (3, 10), U, OPEN_TO_ALL);
        for receive in &receives {
            to.receive(receive, true);
        }
        for send in &sends {
            from.send(&near, send, true);
        }
        for number in numbers {
            assert_eq!(to.received(number).immediate, number);
        }
        near.detach(&from);
        far.detach(&to);
        settled(&sends.iter().collect::<Vec<_>>());
    }
}

#[test]
fn rdma_goes_both_ways() {
    let Some(lan) = Lan::enter() else { return };
    let agent = Agent::start();
    let mut couple = Couple::remote(&agent, &lan, 10, RR, OPEN_TO_ALL);
    let (mut here, mut there) = (Memory::new(1 << 17), Memory::new(1 << 17));
    here.fill(1);
    there.fill(2);
    let own = couple.near.register(here.base(), 1 << 17, 0);
    let remote = couple.far.register(there.base(), 1 << 17, RIGHTS);
    let half = 1 << 16;
    let write = Descriptor::new(
        VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE,
        half,
        &[there.segment(remote, 0, 0), here.segment(own, 0, half)],
    );
    write.0.immediate = 5;
    let read = Descriptor::new(
        VIP_CONTROL_OP_RDMAREAD,
        half,
        &[
            there.segment(remote, u64::from(half), 0),
            here.segment(own, u64::from(half), half),
        ],
    );
    let receive = Descriptor::into(&[]);
    couple.to.receive(&receive, true);
    couple.from.send(&couple.near, &write, true);
    couple.from.send(&couple.near, &read, false);
    assert_eq!(couple.from.sent(0), VIP_STATUS_OP_RDMA_WRITE);
    assert_eq!(couple.from.sent(1), VIP_STATUS_OP_RDMA_READ);
    let arrived = couple.to.received(0);
    let expected = VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE;
    assert_eq!((arrived.status, arrived.immediate), (expected, 5));
    let half = half as usize;
    assert!(there.copy(0, half) == here.copy(0, half), "written");
    assert!(there.copy(half, half) == here.copy(half, half), "read");
    settled(&[&write, &read]);
    // A region without the right: the error is reported to the target and to the sender.
    let shut = couple.far.register(there.base(), 4096, 0);
    let list = [there.segment(shut, 0, 0), here.segment(own, 0, 64)];
    let before = there.copy(0, 64);
    let bad = Descriptor::new(VIP_CONTROL_OP_RDMAWRITE, 64, &list);
    couple.from.send(&couple.near, &bad, true);
    assert_eq!(
        couple.from.sent(2),
        VIP_STATUS_OP_RDMA_WRITE | VIP_STATUS_RDMA_PROT_ERROR
    );
    assert_eq!(couple.to.ended(), end::WRITE_REFUSED);
    assert_eq!(couple.from.ended(), end::REPORTED);
    assert!(there.copy(0, 64) == before);
    settled(&[&bad]);
}

/// E6: the sender's descriptor reports the error, and the receiver gets the reason.
#[test]
fn nothing_is_posted() {
    let Some(lan) = Lan::enter() else { return };
    let agent = Agent::start();
    for (endpoint, level, error) in [
        (10, RD, VIP_STATUS_TRANSPORT_ERROR),
        (20, RR, VIP_STATUS_REMOTE_DESC_ERROR),
    ] {
        let mut couple = Couple::remote(&agent, &lan, endpoint, level, OPEN_TO_ALL);
        let send = Descriptor::from(&[]);
        couple.from.send(&couple.near, &send, true);
        assert_eq!(couple.from.sent(0), VIP_STATUS_OP_SEND | error);
        assert_eq!(couple.to.ended(), end::EMPTY);
        assert_eq!(couple.from.ended(), end::REPORTED);
        settled(&[&send]);
    }
}

/// A peer that never sends anything is dead after some time, whether or not anything is in flight. If its process is
/// alive on another connection, it is not, even if its connection is older.
#[test]
fn silence_is_reported() {
    let Some(lan) = Lan::enter() else { return };
    let agent = Agent::start();
    let couple = Couple::remote(&agent, &lan, 30, RD, OPEN_TO_ALL);
    let mut alone = couple.near.vi(4);
    alone.attach_remote(&couple.near, (7, 0), (901, 31), RD, 0);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let (near, far) = (agent.open_on(&lan, 10), agent.open_on(&lan, 20));
    let (mut busy, mut idle) = (near.vi(0), far.vi(0));
    busy.attach_remote(&near, (1, 0), (7, 11), RD, 0);
    idle.attach_remote(&far, (2, 0), (7, 11), RD, 0);
    let send = Descriptor::from(&[]);
    busy.send(&near, &send, true);
    let lost = VIP_STATUS_OP_SEND | VIP_STATUS_TRANSPORT_ERROR;
    assert_eq!(busy.sent(0), lost);
    assert_eq!(busy.ended(), end::REPORTED);
    assert_eq!(idle.ended(), end::LOST);
    assert_eq!((alone.end(), couple.from.end()), (None, None));
    settled(&[&send]);
}

/// With a silent peer the window closes, and later descriptors must wait, while the device sleeps.
#[test]
fn a_closed_window_lets_the_device_sleep() {
    let Some(lan) = Lan::enter() else { return };
    let agent = Agent::start();
    let mut near = agent.open_on(&lan, 10);
    let source = Memory::new(4096);
    let region = near.register(source.base(), 4096, 0);
    let mut busy = near.vi(0);
    busy.attach_remote(&near, (1, 0), (7, 11), RD, 0);
    // Each fills a frame, and no connection has so many in flight.
    let sends: Vec<_> = (0..600)
        .map(|_| Descriptor::from(&[source.segment(region, 0, 1400)]))
        .collect();
    for send in &sends {
        busy.send(&near, send, true);
    }
    let asleep = || near.page().asleep.load(Ordering::SeqCst);
    let before = asleep();
    until("sleep", || {
        let now = asleep();
        (now & 1 != 0 && now != before).then_some(())
    });
    assert_eq!(busy.end(), None);
    assert_eq!(busy.ended(), end::REPORTED);
    settled(&sends.iter().collect::<Vec<_>>()[..1]);
    // The application's side flushes the later ones; the device does not access them any more.
}

/// The peer learns of a side that disconnects and closes its NIC at once; and the agent's report on a peer ends the
/// connection before the reply.
#[test]
fn ends_are_reported() {
    let Some(lan) = Lan::enter() else { return };
    let agent = Agent::start();
    let Couple {
        near,
        far: _far,
        from,
        to,
    } = Couple::remote(&agent, &lan, 10, RD, OPEN_TO_ALL);
    let detach = Request {
        op: op::DETACH,
        number: 9,
        vi: from.number,
        ..Request::default()
    };
    assert_eq!(near.call(&detach).0.status, status::OK);
    drop((near, from));
    assert_eq!(to.ended(), end::DISCONNECTED);
    for (endpoint, flags, reason) in [(20, flag::ORDERLY, end::DISCONNECTED), (30, 0, end::LOST)] {
        let couple = Couple::remote(&agent, &lan, endpoint, RD, OPEN_TO_ALL);
        let gone = Request {
            op: op::PEER_GONE,
            number: 10,
            vi: couple.from.number,
            epoch: couple.from.epoch,
            flags,
            ..Request::default()
        };
        assert_eq!(couple.near.call(&gone).0.status, status::OK);
        assert_eq!(couple.from.ended(), reason);
    }
}

/// A socket that is no data socket, or has too small frames, is refused, and a VI without an interface reaches no peer.
/// Others do not notice.
#[test]
fn what_is_no_interface() {
    let Some(lan) = Lan::enter() else { return };
    let agent = Agent::start();
    let file = std::fs::File::open("/dev/null").expect("a file");
    let (pipe, _other) = channel::pair().expect("sockets");
    let data = lan.data_socket(10);
    let (file, pipe, data) = (file.as_raw_fd(), pipe.as_raw_fd(), data.as_raw_fd());
    // Without a ring, or with one of another shape.
    let bare = lan.stranger();
    for (mtu, fds) in [
        (MTU, vec![bare.as_raw_fd()]),
        (4000, vec![data]),
        (MTU, vec![file]),
        (MTU, vec![pipe]),
        (MTU, vec![]),
        (255, vec![data]),
    ] {
        let socket = agent.introduce(std::process::id());
        let request = Request {
            mtu,
            endpoint: 10,
            ..open_request()
        };
        channel::send(socket.as_raw_fd(), request.as_bytes(), &fds).expect("send");
        assert_eq!(reply(&socket).0.status, status::RESOURCE);
    }
    let nic = agent.open();
    let mut vi = nic.vi(0);
    vi.attach_remote(&nic, (1, 0), (0, 11), RD, 0);
    assert_eq!(vi.ended(), end::LOST);
}
