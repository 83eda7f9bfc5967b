//! The peer-to-peer model on a fake clock (spec §9.3), and how connections end (spec §9.6).

use crate::world::*;
use kagent_proto::*;

#[test]
fn mirrored_requests_connect_in_either_order() {
    let mut world = World::with_clients(2);
    let a = world.open_as(1, "loopback", b"A", vec![1]);
    let b = world.open_as(2, "loopback", b"B", vec![2, 3]);
    world.call(
        1,
        Op::PEER,
        5,
        &Request {
            segment_bytes: 9000,
            ..peer(a, b"da", b"B", b"db")
        },
    );
    world.sleep_ms(999);
    world.quiet();
    world.call(
        2,
        Op::PEER,
        6,
        &Request {
            vi: 99,
            ..peer(b, b"db", b"A", b"da")
        },
    );
    let (one, one_fds) = world.expect_connected(1, 5);
    let (two, two_fds) = world.expect_connected(2, 6);
    assert_eq!((one.peer_nic, one.peer_vi, one.peer_pid), (b, 99, 102));
    assert_eq!((two.peer_nic, two.peer_vi, two.peer_pid), (a, 77, 101));
    assert_eq!(
        (one.side, two.side, one.segment_bytes, two.segment_bytes),
        (0, 1, 12288, 12288)
    );
    assert_eq!(one.key, two.key);
    assert_ne!(one.connection, two.connection);
    assert_eq!(
        (one_fds, two_fds),
        (vec![1_000_001, 2, 3], vec![1_000_001, 1])
    );
    world.sleep_ms(5000);
    world.quiet();
    world.end();
}

#[test]
fn only_exact_mirrors_meet() {
    // What process 2 at B says to process 1 at A with ("da", to B "db").
    type Case<'a> = (&'a [u8], &'a [u8], &'a [u8], bool);
    let table: [Case<'_>; 5] = [
        (b"db", b"A", b"da", true),
        (b"da", b"A", b"db", false),
        (b"db", b"A", b"d", false),
        (b"db", b"B", b"da", false),
        (b"dbx", b"A", b"da", false),
    ];
    for (local, host, remote, meet) in table {
        let mut world = World::with_clients(2);
        let (a, b) = (world.open_at(1, b"A"), world.open_at(2, b"B"));
        world.call(1, Op::PEER, 5, &peer(a, b"da", b"B", b"db"));
        world.call(2, Op::PEER, 6, &peer(b, local, host, remote));
        if meet {
            world.expect_connected(1, 5);
            world.expect_connected(2, 6);
        } else {
            world.quiet();
            world.sleep_ms(1000);
            world.expect_done(1, 5, Status::TIMEOUT);
            world.expect_done(2, 6, Status::TIMEOUT);
        }
        world.end();
    }
}

#[test]
fn a_request_that_mirrors_itself_needs_a_second() {
    let mut world = World::with_clients(1);
    let nic = world.open(1);
    world.call(1, Op::PEER, 5, &peer(nic, b"same", b"hostA", b"same"));
    world.quiet();
    world.call(1, Op::PEER, 6, &peer(nic, b"same", b"hostA", b"same"));
    world.expect_connected(1, 5);
    world.expect_connected(1, 6);
    world.end();
}

#[test]
fn peers_of_one_place_pair_up_in_order() {
    let mut world = World::with_clients(2);
    let (a, b) = (world.open_at(1, b"A"), world.open_at(2, b"B"));
    for id in 0..64u64 {
        world.call(
            1,
            Op::PEER,
            100 + id,
            &Request {
                vi: id,
                ..peer(a, b"d", b"B", b"d")
            },
        );
    }
    for id in 0..64u64 {
        world.call(2, Op::PEER, 200 + id, &peer(b, b"d", b"A", b"d"));
        assert_eq!(world.expect_connected(2, 200 + id).0.peer_vi, id);
        world.expect_connected(1, 100 + id);
    }
    world.quiet();
    world.end();
}

#[test]
fn conflict_is_reported_to_both() {
    let ours = attributes();
    let table = [
        (
            Attributes {
                reliability: 4,
                max_transfer_size: 9,
                ..ours
            },
            Status::CONFLICT_RELIABILITY,
        ),
        (
            Attributes {
                max_transfer_size: 9,
                qos: 9,
                ..ours
            },
            Status::CONFLICT_MTU,
        ),
        (Attributes { qos: 9, ..ours }, Status::CONFLICT_QOS),
    ];
    for (attributes, status) in table {
        let mut world = World::with_clients(2);
        let (a, b) = (world.open_at(1, b"A"), world.open_at(2, b"B"));
        world.call(1, Op::PEER, 5, &peer(a, b"d", b"B", b"d"));
        world.call(
            2,
            Op::PEER,
            6,
            &Request {
                attributes,
                ..peer(b, b"d", b"A", b"d")
            },
        );
        world.expect_done(1, 5, status);
        world.expect_done(2, 6, status);
        assert_eq!(world.agent.census().calls, 0);
        world.quiet();
        world.end();
    }
}

#[test]
fn the_two_models_never_meet() {
    let mut world = World::with_clients(2);
    let (a, b) = (world.open_at(1, b"A"), world.open_at(2, b"B"));
    world.wait(1, a, 5, b"d", FOREVER);
    world.call(2, Op::PEER, 6, &peer(b, b"my-own", b"A", b"d"));
    world.quiet();
    world.request(1, 7, &peer(a, b"d", b"B", b"my-own"));
    world.expect_done(1, 7, Status::NO_MATCH);
    world.quiet();
    // A missing host does not end the request either.
    world.call(2, Op::PEER, 8, &peer(b, b"x", b"nowhere", b"d"));
    world.quiet();
    world.sleep_ms(1000);
    world.expect_done(2, 6, Status::TIMEOUT);
    world.expect_done(2, 8, Status::TIMEOUT);
    world.quiet();
    world.end();
}

#[test]
fn peer_can_be_cancelled() {
    let mut world = World::with_clients(2);
    let (a, b) = (world.open_at(1, b"A"), world.open_at(2, b"B"));
    world.call(1, Op::PEER, 5, &peer(a, b"d", b"B", b"d"));
    world.call(1, Op::CANCEL, 6, &Cancel { call: 5 });
    world.expect_done(1, 5, Status::CANCELLED);
    world.expect_done(1, 6, Status::OK);
    world.call(2, Op::PEER, 7, &peer(b, b"d", b"A", b"d"));
    world.quiet();
    // Too late, and of another process: both without effect.
    world.call(1, Op::CANCEL, 8, &Cancel { call: 5 });
    world.expect_done(1, 8, Status::OK);
    world.call(1, Op::CANCEL, 9, &Cancel { call: 7 });
    world.expect_done(1, 9, Status::OK);
    world.quiet();
    world.end();
}

/// What the peer is notified of, by how the other side ends.
#[test]
fn peer_is_notified_once_how_it_ended() {
    for (how, orderly) in [
        ("disconnect", 1),
        ("nic closed", 1),
        ("goodbye", 1),
        ("death", 0),
    ] {
        for server_ends in [true, false] {
            let mut world = World::with_clients(2);
            let (a, b) = (world.open(1), world.open(2));
            let (at_1, at_2) = world.pair((1, a), (2, b));
            let (ending, nic, name, left, left_name) = if server_ends {
                (1, a, at_1, 2, at_2)
            } else {
                (2, b, at_2, 1, at_1)
            };
            let disconnect = ConnectionRef { connection: name };
            match how {
                "disconnect" => {
                    world.call(ending, Op::DISCONNECT, 20, &disconnect);
                    world.expect_done(ending, 20, Status::OK);
                }
                "nic closed" => {
                    world.call(ending, Op::NIC_CLOSE, 20, &NicClose { nic });
                    world.expect_done(ending, 20, Status::OK);
                }
                "goodbye" => {
                    world.goodbye(ending);
                    world.quiet();
                    world.hangup(ending);
                }
                _ => world.hangup(ending),
            }
            world.expect_gone(left, left_name, orderly);
            world.quiet();
            // The other side must still disconnect, once.
            let own = ConnectionRef {
                connection: left_name,
            };
            world.call(left, Op::DISCONNECT, 21, &own);
            world.expect_done(left, 21, Status::OK);
            world.call(left, Op::DISCONNECT, 22, &own);
            world.expect_done(left, 22, Status::INVALID);
            world.quiet();
            assert_eq!(world.agent.census().connections, 0);
            world.end();
        }
    }
}

#[test]
fn death_before_connected_is_read_is_an_ordinary_death() {
    let mut world = World::with_clients(2);
    let (a, b) = (world.open_at(1, b"A"), world.open_at(2, b"B"));
    world.call(1, Op::PEER, 5, &peer(a, b"d", b"B", b"d"));
    world.call(2, Op::PEER, 6, &peer(b, b"d", b"A", b"d"));
    world.hangup(1);
    let (connected, _) = world.expect_connected(2, 6);
    world.expect_gone(2, connected.connection, 0);
    world.quiet();
    world.end();
}

#[test]
fn death_of_a_process_with_both_sides_is_silent() {
    let mut world = World::with_clients(2);
    let nic = world.open(1);
    world.pair((1, nic), (1, nic));
    world.wait(1, nic, 30, b"own", FOREVER);
    world.request(1, 31, &request(nic, b"hostA", b"own"));
    world.expect_incoming(1, 30);
    world.hangup(1);
    world.quiet();
    world.end();
}

#[test]
fn a_process_disconnects_only_its_own() {
    let mut world = World::with_clients(3);
    let (a, b) = (world.open(1), world.open(2));
    let (at_1, at_2) = world.pair((1, a), (2, b));
    world.wait(1, a, 5, b"d", FOREVER);
    world.request(2, 6, &request(b, b"hostA", b"d"));
    let held = world.expect_incoming(1, 5).connection;
    for (client, connection) in [(3, at_1), (1, at_2), (2, at_1), (1, 0), (1, 999), (1, held)] {
        world.call(client, Op::DISCONNECT, 20, &ConnectionRef { connection });
        world.expect_done(client, 20, Status::INVALID);
    }
    for client in [2, 3] {
        world.accept(client, 21, held);
        world.expect_done(client, 21, Status::INVALID);
        world.call(client, Op::REJECT, 22, &ConnectionRef { connection: held });
        world.expect_done(client, 22, Status::INVALID);
    }
    world.quiet();
    world.end();
}
