//! Processes, NICs, users, invalid messages and limits, on a virtual clock.

use crate::world::*;
use kagent::budgets::*;
use kagent::{ClientId, Refused};
use kagent_proto::*;

#[test]
fn greeting_comes_first_and_once() {
    let mut world = World::new();
    world.connect(1, 1000);
    world.raw(
        1,
        &packet(Op::NIC_OPEN, 4, &nic_open("loopback", b"A")),
        vec![1, 2],
    );
    world.expect_done(1, 4, Status::INVALID);
    world.call(1, Op::GOODBYE, 5, &());
    world.expect_done(1, 5, Status::INVALID);
    world.hello(1);
    world.call(1, Op::HELLO, 6, &Hello { features: u64::MAX });
    world.expect_done(1, 6, Status::INVALID);
    world.end();
}

#[test]
fn another_version_receives_ours() {
    let mut world = World::new();
    world.connect(1, 1000);
    let mut bytes = packet(Op::HELLO, 3, &[0u8; 40]);
    bytes[4..6].copy_from_slice(&(VERSION + 1).to_ne_bytes());
    world.raw(1, &bytes, Vec::new());
    let welcome = world.take(1);
    assert_eq!(
        (welcome.op, welcome.id, welcome.status),
        (Op::WELCOME, 3, Status::VERSION)
    );
    // The greeting had no effect.
    world.call(1, Op::NIC_OPEN, 4, &nic_open("loopback", b"A"));
    world.expect_done(1, 4, Status::INVALID);
    world.hello(1);
    world.end();
}

/// Sends packets of process 1, each with id 7 and each invalid.
fn all_invalid(world: &mut World, table: Vec<Vec<u8>>) {
    for bytes in table {
        world.raw(1, &bytes, Vec::new());
        world.expect_done(1, 7, Status::INVALID);
        world.quiet();
    }
}

#[test]
fn bad_frames_are_invalid_and_harm_no_one() {
    let mut world = World::with_clients(2);
    let (nic, other) = (world.open(1), world.open(2));
    let good = packet(Op::WAIT, 7, &wait(nic, b"d", 10));
    let damaged = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let table = vec![
        damaged(0, b'X'),
        damaged(4, 9),
        damaged(6, 99),
        damaged(6, Op::WELCOME.0 as u8),
        damaged(8, 3),
        [good.as_slice(), &[0]].concat(),
        good[..good.len() - 1].to_vec(),
        good[..24].to_vec(),
        packet(Op::GOODBYE, 7, &1u8),
    ];
    all_invalid(&mut world, table);
    // Too short for an id, and descriptors where none belong.
    for short in [0, 1, 23] {
        world.raw(1, &good[..short], Vec::new());
        world.expect_done(1, 0, Status::INVALID);
    }
    let open = packet(Op::NIC_OPEN, 7, &nic_open("loopback", b"A"));
    for (bytes, fds) in [(&good, vec![1]), (&open, vec![1, 2, 3])] {
        world.raw(1, bytes, fds);
        world.expect_done(1, 7, Status::INVALID);
    }
    let _ = world.agent.handle_garbled(world.now, ClientId(1), &good);
    world.sleep_ms(0);
    world.expect_done(1, 7, Status::INVALID);
    world.quiet();
    world.pair((1, nic), (2, other));
    world.end();
}

#[test]
#[rustfmt::skip] // one case, one line
fn bad_values_are_invalid_and_harm_no_one() {
    let mut world = World::with_clients(2);
    let (nic, other) = (world.open(1), world.open(2));
    let long = Point { discriminator_len: 65, ..Point::new(b"", b"").unwrap() };
    let asked = request(nic, b"hostA", b"d");
    let large = SEGMENT_BYTES_MAX + 1;
    let table = vec![
        packet(Op::NIC_OPEN, 7, &nic_open("", b"A")),
        packet(Op::NIC_OPEN, 7, &nic_open("loopback", b"")),
        packet(Op::NIC_OPEN, 7, &NicOpen { host_len: 33, ..nic_open("loopback", b"A") }),
        packet(Op::WAIT, 7, &Wait { local: long, ..wait(nic, b"", 10) }),
        packet(Op::WAIT, 7, &wait(other, b"d", 10)),
        packet(Op::WAIT, 7, &wait(0, b"d", 10)),
        packet(Op::REQUEST, 7, &Request { timeout_ms: 0, ..asked }),
        packet(Op::REQUEST, 7, &Request { local: long, ..asked }),
        packet(Op::REQUEST, 7, &Request { nic: other, ..asked }),
        packet(Op::PEER, 7, &Request { remote: long, ..asked }),
        packet(Op::PEER, 7, &Request { segment_bytes: large, ..asked }),
        packet(Op::ACCEPT, 7, &accept(1)),
        packet(Op::ACCEPT, 7, &Accept { segment_bytes: large, ..accept(1) }),
        packet(Op::NIC_CLOSE, 7, &NicClose { nic: other }),
        packet(Op::NEIGHBOURS, 7, &Neighbours { nic: other }),
    ];
    all_invalid(&mut world, table);
    world.pair((1, nic), (2, other));
    world.end();
}

#[test]
fn an_id_in_use_is_refused() {
    let mut world = World::with_clients(1);
    let nic = world.open(1);
    world.wait(1, nic, 7, b"d", 10);
    world.wait(1, nic, 7, b"d", 20);
    world.expect_done(1, 7, Status::INVALID);
    world.sleep_ms(10);
    world.expect_done(1, 7, Status::TIMEOUT);
    world.sleep_ms(10);
    world.quiet();
    world.end();
}

#[test]
fn users_and_providers_do_not_see_each_other() {
    let mut world = World::with_clients(2);
    world.connect(3, 2000);
    world.hello(3);
    let nic = world.open(1);
    let foreign = world.open(3);
    let wire = world.open_as(2, "clan", b"hostA", Vec::new());
    let own = world.open_at(2, b"hostB");
    world.wait(1, nic, 5, b"d", FOREVER);
    world.request(3, 6, &request(foreign, b"hostA", b"d"));
    world.expect_done(3, 6, Status::NO_MATCH);
    world.request(3, 7, &request(foreign, b"hostB", b"d"));
    world.expect_done(3, 7, Status::NOT_REACHABLE);
    world.request(2, 8, &request(wire, b"hostA", b"d"));
    world.expect_done(2, 8, Status::NO_MATCH);
    world.call(1, Op::PEER, 9, &peer(nic, b"p", b"hostA", b"p"));
    world.call(3, Op::PEER, 9, &peer(foreign, b"p", b"hostA", b"p"));
    world.call(2, Op::PEER, 9, &peer(wire, b"p", b"hostA", b"p"));
    world.quiet();
    world.request(2, 10, &request(own, b"hostA", b"d"));
    let held = world.expect_incoming(1, 5).connection;
    world.accept(3, 11, held);
    world.expect_done(3, 11, Status::INVALID);
    world.end();
}

#[test]
fn bytes_after_the_provider_name_do_not_count() {
    let mut world = World::with_clients(2);
    let mut odd = nic_open("loopback", b"hostA");
    odd.provider[20] = 7;
    odd.host[9] = 7;
    world.call(1, Op::NIC_OPEN, 2, &odd);
    let odd = world.take(1).body::<NicOpened>().nic;
    let nic = world.open(2);
    world.pair((1, odd), (2, nic));
    world.end();
}

#[test]
fn neighbours_each_once_own_first() {
    let mut world = World::with_clients(3);
    let nic = world.open_at(1, b"m");
    for host in [b"z", b"m", b"a"] {
        world.open_at(2, host);
        world.open_at(3, host);
    }
    world.open_at(2, b"longer");
    world.open_as(2, "clan", b"b", Vec::new());
    world.connect(9, 2000);
    world.hello(9);
    world.open_at(9, b"c");
    let ask = |world: &mut World| {
        world.call(1, Op::NEIGHBOURS, 5, &Neighbours { nic });
        let packet = world.take(1);
        assert_eq!((packet.op, packet.id), (Op::NEIGHBOUR_LIST, 5));
        let list: NeighbourList = packet.body();
        assert_eq!(list.host_len, 1);
        list.hosts[..list.count as usize]
            .iter()
            .map(|host| host[0])
            .collect::<Vec<u8>>()
    };
    assert_eq!(ask(&mut world), b"maz");
    world.hangup(3);
    assert_eq!(ask(&mut world), b"maz");
    world.hangup(2);
    assert_eq!(ask(&mut world), b"m");
    world.connect(4, 1000);
    world.hello(4);
    for host in 0..40 {
        world.open_at(4, &[host]);
    }
    let many = ask(&mut world);
    assert_eq!((many.len(), many[0], many[1]), (NEIGHBOURS_MAX, b'm', 0));
    world.end();
}

#[test]
fn closing_a_nic_ends_what_waits_there_and_no_more() {
    let mut world = World::with_clients(2);
    let (nic, kept, other) = (world.open(1), world.open(1), world.open(2));
    world.wait(1, nic, 5, b"a", FOREVER);
    world.request(
        1,
        6,
        &Request {
            grace_ms: 900,
            ..request(nic, b"hostA", b"b")
        },
    );
    world.call(1, Op::PEER, 7, &peer(nic, b"c", b"hostA", b"d"));
    world.wait(1, kept, 8, b"a", FOREVER);
    world.call(1, Op::NIC_CLOSE, 9, &NicClose { nic });
    for id in [5, 6, 7] {
        world.expect_done(1, id, Status::CANCELLED);
    }
    world.expect_done(1, 9, Status::OK);
    world.call(1, Op::NIC_CLOSE, 10, &NicClose { nic });
    world.expect_done(1, 10, Status::INVALID);
    world.quiet();
    world.request(2, 11, &request(other, b"hostA", b"a"));
    world.expect_incoming(1, 8);
    world.end();
}

#[test]
fn cancel_answers_the_call_first() {
    let mut world = World::with_clients(1);
    let nic = world.open(1);
    world.wait(1, nic, 5, b"d", FOREVER);
    world.request(
        1,
        6,
        &Request {
            grace_ms: 100,
            ..request(nic, b"hostA", b"e")
        },
    );
    for call in [5, 6] {
        world.call(1, Op::CANCEL, 9, &Cancel { call });
        world.expect_done(1, call, Status::CANCELLED);
        world.expect_done(1, 9, Status::OK);
    }
    world.sleep_ms(5000);
    world.quiet();
    world.end();
}

#[test]
fn tables_are_bounded() {
    let mut world = World::with_clients(1);
    for _ in 0..NICS_PER_CLIENT_MAX {
        world.open(1);
    }
    world.call(1, Op::NIC_OPEN, 3, &nic_open("loopback", b"A"));
    world.expect_done(1, 3, Status::RESOURCE);
    let nic = 1;
    for id in 0..CALLS_PER_CLIENT_MAX as u64 {
        world.wait(1, nic, 100 + id, b"d", FOREVER);
    }
    world.quiet();
    world.wait(1, nic, 3, b"d", FOREVER);
    world.expect_done(1, 3, Status::RESOURCE);
    world.request(1, 3, &request(nic, b"hostA", b"d"));
    world.expect_done(1, 3, Status::RESOURCE);
    world.call(1, Op::PEER, 3, &peer(nic, b"d", b"hostA", b"d"));
    world.expect_done(1, 3, Status::RESOURCE);
    world.end();
}

#[test]
fn connections_are_bounded() {
    let mut world = World::with_clients(2);
    let (nic, other) = (world.open(1), world.open(2));
    for _ in 0..CONNECTIONS_PER_CLIENT_MAX {
        world.pair((1, nic), (2, other));
    }
    world.wait(1, nic, 3, b"d", FOREVER);
    world.expect_done(1, 3, Status::RESOURCE);
    assert_eq!(
        world.agent.census().connections,
        2 * CONNECTIONS_PER_CLIENT_MAX
    );
    world.hangup(2);
    assert_eq!(world.inbox[&1].len(), CONNECTIONS_PER_CLIENT_MAX);
    world.end();
}

#[test]
fn processes_are_bounded_for_each_user_and_all() {
    let mut world = World::new();
    let Bounds { room, per_user } = bounds(Budget::Processes);
    let mut connect = |client: usize, uid| {
        let client = ClientId(client as u64);
        world.agent.handle_connect(0, client, uid, 1)
    };
    let mut all = 0;
    // Each user takes as much as possible: up to the limit, and never the last entry.
    for user in 0..8 {
        let expected = per_user.min((room - all) / 2);
        for _ in 0..expected {
            assert_eq!(connect(all, user), Ok(()));
            all += 1;
        }
        let refused = connect(9999, user).unwrap_err();
        let text = format!("user {user} has {expected} of {expected} processes");
        assert_eq!(refused.to_string(), text);
        assert!(refused.rejection().is_some());
    }
    assert_eq!(connect(0, 0), Err(Refused::Known));
    assert_eq!(connect(9999, 77), Ok(()));
    for client in (0..all).chain([9999]) {
        world.agent.handle_hangup(0, ClientId(client as u64));
    }
    world.end();
}
