//! The client/server model on a fake clock: waits, requests, accept and reject (spec §3.8–3.11, §9.5).

use crate::world::*;
use kagent_proto::*;

/// Process 1 is the server, process 2 the client; both at hostA.
fn two() -> (World, u64, u64) {
    let mut world = World::with_clients(2);
    let (server, client) = (world.open(1), world.open(2));
    (world, server, client)
}

#[test]
fn request_and_accept_connect_both_at_once() {
    let mut world = World::with_clients(2);
    let server = world.open_as(1, "loopback", b"hostA", vec![11, 12]);
    let client = world.open_as(2, "loopback", b"hostB", vec![21]);
    world.wait(1, server, 5, b"disc", FOREVER);
    let asked = Request {
        segment_bytes: 5000,
        ..request(client, b"hostA", b"disc")
    };
    world.request(2, 6, &asked);
    let incoming = world.expect_incoming(1, 5);
    assert_ne!(incoming.connection, 0);
    assert_eq!(incoming.attributes, attributes());
    assert_eq!(incoming.remote, Point::new(b"hostB", b"my-own").unwrap());
    world.quiet();
    let rdma = Attributes {
        rdma_write: 0,
        rdma_read: 1,
        ..attributes()
    };
    let answer = Accept {
        segment_bytes: 300,
        attributes: rdma,
        ..accept(incoming.connection)
    };
    world.call(1, Op::ACCEPT, 7, &answer);
    let (s, s_fds) = world.expect_connected(1, 7);
    let (c, c_fds) = world.expect_connected(2, 6);
    assert_eq!(
        (s.connection, s.peer_nic, s.peer_vi),
        (incoming.connection, client, 77)
    );
    assert_eq!((c.peer_nic, c.peer_vi), (server, 88));
    assert_eq!((s.side, c.side, s.peer_pid, c.peer_pid), (0, 1, 102, 101));
    assert_eq!((s.key, s.segment_bytes), (c.key, 8192));
    assert_eq!((s.attributes, c.attributes), (attributes(), rdma));
    assert_ne!(s.connection, c.connection);
    assert_eq!(
        (s.data_address.bytes(), c.data_address.bytes()),
        (&b"hostB"[..], &b"hostA"[..])
    );
    assert_eq!(s_fds, [1_000_001, 21]);
    assert_eq!(c_fds, [1_000_001, 11, 12]);
    world.quiet();
    world.end();
}

#[test]
fn discriminators_match_by_length_and_bytes_only() {
    let full = [0u8; DISCRIMINATOR_BYTES_MAX];
    let table: [(&[u8], &[u8], bool); 6] = [
        (b"ab", b"ab", true),
        (b"ab", b"abc", false),
        (b"ab\0", b"ab", false),
        (b"", b"", true),
        (b"", b"x", false),
        (&full, &full, true),
    ];
    for (waits, asks, meet) in table {
        let (mut world, server, client) = two();
        world.wait(1, server, 5, waits, FOREVER);
        world.request(2, 6, &request(client, b"hostA", asks));
        if meet {
            world.expect_incoming(1, 5);
        } else {
            world.expect_done(2, 6, Status::NO_MATCH);
        }
        world.quiet();
        world.end();
    }
}

#[test]
fn no_one_waiting_has_two_names_and_a_grace() {
    // host, grace period, timeout, time of the answer, answer.
    let table: [(&[u8], u64, u64, u64, Status); 6] = [
        (b"hostA", 0, 1000, 0, Status::NO_MATCH),
        (b"nowhere", 0, 1000, 0, Status::NOT_REACHABLE),
        (b"hostA", 200, 1000, 200, Status::NO_MATCH),
        (b"nowhere", 200, 1000, 200, Status::NOT_REACHABLE),
        (b"hostA", 2000, 300, 300, Status::NO_MATCH),
        (b"", 0, 1, 0, Status::NOT_REACHABLE),
    ];
    for (host, grace_ms, timeout_ms, at_ms, status) in table {
        let (mut world, _, client) = two();
        let asked = Request {
            grace_ms,
            timeout_ms,
            ..request(client, host, b"d")
        };
        world.request(2, 6, &asked);
        if at_ms > 0 {
            world.sleep_ms(at_ms - 1);
            world.quiet();
            world.sleep_ms(1);
        }
        world.expect_done(2, 6, status);
        world.end();
    }
}

#[test]
fn own_address_is_always_reachable() {
    let mut world = World::with_clients(1);
    let nic = world.open_at(1, b"alone");
    world.request(1, 6, &request(nic, b"alone", b"d"));
    world.expect_done(1, 6, Status::NO_MATCH);
    world.end();
}

#[test]
fn within_the_grace_nic_and_waiter_may_appear() {
    let mut world = World::with_clients(3);
    let (a, b) = (world.open_at(1, b"hostA"), world.open_at(2, b"hostB"));
    let patient = |nic| Request {
        grace_ms: 500,
        ..request(nic, b"late", b"d")
    };
    world.request(1, 6, &patient(a));
    world.sleep_ms(100);
    world.request(2, 7, &patient(b));
    world.sleep_ms(100);
    let late = world.open_at(3, b"late");
    world.wait(3, late, 20, b"other", FOREVER);
    // First come, first served; the second with a zero timeout.
    world.wait(3, late, 21, b"d", FOREVER);
    let first = world.expect_incoming(3, 21);
    assert_eq!(first.remote.host(), b"hostA");
    world.wait(3, late, 22, b"d", 0);
    assert_eq!(world.expect_incoming(3, 22).remote.host(), b"hostB");
    world.wait(3, late, 23, b"d", 0);
    world.expect_done(3, 23, Status::TIMEOUT);
    // The grace period has passed and no longer applies; the timeout still does.
    world.sleep_ms(799);
    world.quiet();
    world.sleep_ms(1);
    world.expect_done(1, 6, Status::TIMEOUT);
    world.quiet();
    world.sleep_ms(100);
    world.expect_done(2, 7, Status::TIMEOUT);
    world.end();
}

#[test]
fn oldest_wait_gets_the_request_of_any_client() {
    let mut world = World::with_clients(3);
    let (a, b, c) = (world.open(1), world.open(2), world.open(3));
    world.wait(1, a, 5, b"d", FOREVER);
    world.wait(2, b, 5, b"d", FOREVER);
    world.wait(1, a, 6, b"d", FOREVER);
    for (client, id) in [(1, 5), (2, 5), (1, 6)] {
        world.request(3, 100 * client + id, &request(c, b"hostA", b"d"));
        world.expect_incoming(client, id);
        world.quiet();
    }
    world.request(3, 200, &request(c, b"hostA", b"d"));
    world.expect_done(3, 200, Status::NO_MATCH);
    world.end();
}

#[test]
fn wait_ends_after_its_time() {
    let (mut world, server, _) = two();
    world.wait(1, server, 5, b"d", 30);
    world.wait(1, server, 6, b"d", 10);
    world.wait(1, server, 7, b"d", u64::MAX - 1);
    world.sleep_ms(9);
    world.quiet();
    world.sleep_ms(1);
    world.expect_done(1, 6, Status::TIMEOUT);
    world.quiet();
    world.sleep_ms(1_000_000);
    world.expect_done(1, 5, Status::TIMEOUT);
    world.quiet();
    world.end();
}

#[test]
fn late_answers_of_the_server() {
    // How the requester is lost, its own result.
    for lost in ["deadline", "cancel", "death", "nic closed"] {
        for late in [Op::ACCEPT, Op::REJECT] {
            let (mut world, server, client) = two();
            world.wait(1, server, 5, b"d", FOREVER);
            world.request(2, 6, &request(client, b"hostA", b"d"));
            let held = world.expect_incoming(1, 5).connection;
            match lost {
                "deadline" => {
                    world.sleep_ms(999);
                    world.quiet();
                    world.sleep_ms(1);
                    world.expect_done(2, 6, Status::TIMEOUT);
                }
                "cancel" => {
                    world.call(2, Op::CANCEL, 9, &Cancel { call: 6 });
                    world.expect_done(2, 6, Status::CANCELLED);
                    world.expect_done(2, 9, Status::OK);
                }
                "death" => world.hangup(2),
                _ => {
                    world.call(2, Op::NIC_CLOSE, 9, &NicClose { nic: client });
                    world.expect_done(2, 6, Status::CANCELLED);
                    world.expect_done(2, 9, Status::OK);
                }
            }
            if late == Op::ACCEPT {
                world.accept(1, 30, held);
                world.expect_done(1, 30, Status::TIMEOUT);
            } else {
                world.call(1, Op::REJECT, 30, &ConnectionRef { connection: held });
                world.expect_done(1, 30, Status::OK);
            }
            // In both cases the handle is invalid afterwards.
            world.accept(1, 31, held);
            world.expect_done(1, 31, Status::INVALID);
            world.call(1, Op::REJECT, 32, &ConnectionRef { connection: held });
            world.expect_done(1, 32, Status::INVALID);
            world.quiet();
            world.end();
        }
    }
}

#[test]
fn requester_is_notified_of_every_rejection() {
    for how in ["reject", "death", "goodbye", "nic closed"] {
        let (mut world, server, client) = two();
        world.wait(1, server, 5, b"d", FOREVER);
        world.request(2, 6, &request(client, b"hostA", b"d"));
        let held = world.expect_incoming(1, 5).connection;
        match how {
            "reject" => {
                world.call(1, Op::REJECT, 9, &ConnectionRef { connection: held });
                world.expect_done(1, 9, Status::OK);
            }
            "death" => world.hangup(1),
            "goodbye" => {
                world.goodbye(1);
                world.hangup(1);
            }
            _ => {
                world.call(1, Op::NIC_CLOSE, 9, &NicClose { nic: server });
                world.expect_done(1, 9, Status::OK);
            }
        }
        world.expect_done(2, 6, Status::REJECTED);
        world.quiet();
        world.sleep_ms(5000);
        world.quiet();
        world.end();
    }
}

#[test]
fn conflicts_come_in_order_and_leave_the_request() {
    let (mut world, server, client) = two();
    world.wait(1, server, 5, b"d", FOREVER);
    world.request(2, 6, &request(client, b"hostA", b"d"));
    let held = world.expect_incoming(1, 5).connection;
    let ours = attributes();
    let table = [
        (
            Attributes {
                reliability: 4,
                max_transfer_size: 1,
                qos: 1,
                ..ours
            },
            Status::CONFLICT_RELIABILITY,
        ),
        (
            Attributes {
                max_transfer_size: 1,
                qos: 1,
                ..ours
            },
            Status::CONFLICT_MTU,
        ),
        (Attributes { qos: 1, ..ours }, Status::CONFLICT_QOS),
    ];
    for (attributes, status) in table {
        world.call(
            1,
            Op::ACCEPT,
            9,
            &Accept {
                attributes,
                ..accept(held)
            },
        );
        world.expect_done(1, 9, status);
        world.quiet();
    }
    world.accept(1, 9, held);
    world.expect_connected(1, 9);
    world.expect_connected(2, 6);
    // It is a connection now, not a handle.
    world.accept(1, 10, held);
    world.expect_done(1, 10, Status::INVALID);
    world.call(1, Op::REJECT, 11, &ConnectionRef { connection: held });
    world.expect_done(1, 11, Status::INVALID);
    world.end();
}

#[test]
fn one_process_may_be_both_sides() {
    let mut world = World::with_clients(1);
    let nic = world.open(1);
    let (server, client) = world.pair((1, nic), (1, nic));
    world.call(1, Op::DISCONNECT, 20, &ConnectionRef { connection: client });
    world.expect_gone(1, server, 1);
    world.expect_done(1, 20, Status::OK);
    world.call(1, Op::DISCONNECT, 21, &ConnectionRef { connection: server });
    world.expect_done(1, 21, Status::OK);
    assert_eq!(world.agent.census().connections, 0);
    world.pair((1, nic), (1, nic));
    world.end();
}

#[test]
fn without_a_segment_both_sides_learn_it() {
    let (mut world, server, client) = two();
    world.no_segments = true;
    world.wait(1, server, 5, b"d", FOREVER);
    world.request(2, 6, &request(client, b"hostA", b"d"));
    let held = world.expect_incoming(1, 5).connection;
    world.accept(1, 7, held);
    world.expect_done(1, 7, Status::RESOURCE);
    world.expect_done(2, 6, Status::RESOURCE);
    world.quiet();
    assert_eq!(
        (world.agent.census().calls, world.agent.census().connections),
        (0, 0)
    );
    world.no_segments = false;
    world.pair((1, server), (2, client));
    world.end();
}

#[test]
fn a_deadline_is_settled_before_the_message_that_comes_with_it() {
    let (mut world, server, client) = two();
    world.wait(1, server, 5, b"d", FOREVER);
    world.request(2, 6, &request(client, b"hostA", b"d"));
    let held = world.expect_incoming(1, 5).connection;
    world.now += 1000 * MS;
    world.accept(1, 7, held);
    world.expect_done(2, 6, Status::TIMEOUT);
    world.expect_done(1, 7, Status::TIMEOUT);
    world.end();
}

#[test]
fn what_a_server_has_not_taken_goes_to_the_next_one() {
    let mut world = World::with_clients(3);
    let (leaver, stayer, client) = (world.open(1), world.open(2), world.open(3));
    world.wait(1, leaver, 5, b"d", FOREVER);
    world.wait(2, stayer, 5, b"d", FOREVER);
    world.request(3, 6, &request(client, b"hostA", b"d"));
    world.expect_incoming(1, 5);
    // The reply and the cancel cross.
    world.call(1, Op::CANCEL, 7, &Cancel { call: 5 });
    world.expect_done(1, 7, Status::OK);
    let connection = world.expect_incoming(2, 5).connection;
    world.accept(2, 8, connection);
    world.expect_connected(2, 8);
    world.expect_connected(3, 6);
    // Once more, for an ended call.
    world.call(1, Op::CANCEL, 9, &Cancel { call: 5 });
    world.expect_done(1, 9, Status::OK);
    world.quiet();
    world.end();
}

#[test]
fn what_no_server_takes_waits_for_its_grace_and_is_refused() {
    for (grace_ms, left) in [(300, true), (50, false), (0, false)] {
        let (mut world, server, client) = two();
        world.wait(1, server, 5, b"d", FOREVER);
        let asked = Request {
            grace_ms,
            timeout_ms: 1000,
            ..request(client, b"hostA", b"d")
        };
        world.request(2, 6, &asked);
        world.expect_incoming(1, 5);
        world.sleep_ms(100);
        world.call(1, Op::CANCEL, 7, &Cancel { call: 5 });
        world.expect_done(1, 7, Status::OK);
        if left {
            world.quiet();
            world.wait(1, server, 8, b"d", FOREVER);
            let again = world.expect_incoming(1, 8);
            world.accept(1, 9, again.connection);
            world.expect_connected(1, 9);
            world.expect_connected(2, 6);
        } else {
            world.sleep_ms(0);
            world.expect_done(2, 6, Status::NO_MATCH);
        }
        world.quiet();
        world.end();
    }
}

#[test]
fn a_wait_that_was_given_up_has_no_offer_left() {
    let (mut world, server, client) = two();
    world.wait(1, server, 5, b"d", FOREVER);
    world.request(2, 6, &request(client, b"hostA", b"d"));
    let expired = world.expect_incoming(1, 5).connection;
    world.call(2, Op::CANCEL, 7, &Cancel { call: 6 });
    world.expect_done(2, 6, Status::CANCELLED);
    world.expect_done(2, 7, Status::OK);
    world.call(1, Op::CANCEL, 8, &Cancel { call: 5 });
    world.expect_done(1, 8, Status::OK);
    world.accept(1, 9, expired);
    world.expect_done(1, 9, Status::INVALID);
    world.end();
}
