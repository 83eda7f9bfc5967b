//! Connections between two hosts, step by step, on a link that loses no frame, or a single one.

use crate::net::*;
use crate::world::*;
use kagent_proto::*;

/// Two hosts; on the first a server, on the second a client, each with a NIC.
fn two() -> (Net, (u64, u16), (u64, u16)) {
    let mut net = Net::new(2, 1);
    let server = net.open(0, 1);
    let client = net.open(1, 1);
    (net, server, client)
}

/// Brings a server to its INCOMING; returns the identifier of the request.
fn meet(net: &mut Net, server: u64, client: u64) -> u64 {
    net.hosts[0].wait(1, server, 10, b"d", FOREVER);
    net.hosts[1].request(1, 11, &ask(client, 0, b"d"));
    net.run_ms(1);
    net.hosts[0].expect_incoming(1, 10).connection
}

fn confirm(net: &mut Net, host: usize, id: u64, connection: u64) {
    net.hosts[host].call(1, Op::CONFIRM, id, &ConnectionRef { connection });
}

/// The server has accepted and has not confirmed; returns the identifier of its side.
fn accepted(net: &mut Net, server: u64, client: u64) -> u64 {
    let incoming = meet(net, server, client);
    net.hosts[0].accept(1, 12, incoming);
    let (at_server, _) = net.hosts[0].expect_connected(1, 12);
    at_server.connection
}

/// The server has confirmed and the client has not; returns the identifiers of both sides.
fn attaching(net: &mut Net, server: u64, client: u64) -> (u64, u64) {
    let at_server = accepted(net, server, client);
    confirm(net, 0, 13, at_server);
    net.run_ms(1);
    let (at_client, _) = net.hosts[1].expect_connected(1, 11);
    (at_server, at_client.connection)
}

/// Connects the two; returns the identifiers of both sides.
fn pair(net: &mut Net, server: u64, client: u64) -> (u64, u64) {
    let (at_server, at_client) = attaching(net, server, client);
    confirm(net, 1, 14, at_client);
    net.hosts[1].expect_done(1, 14, Status::OK);
    net.run_ms(1);
    net.hosts[0].expect_done(1, 13, Status::OK);
    (at_server, at_client)
}

fn disconnect(net: &mut Net, host: usize, connection: u64) {
    net.hosts[host].call(1, Op::DISCONNECT, 20, &ConnectionRef { connection });
    net.hosts[host].expect_done(1, 20, Status::OK);
}

#[test]
fn both_sides_learn_all_that_frames_need() {
    let (mut net, server, client) = two();
    net.hosts[0].wait(1, server.0, 10, b"d", FOREVER);
    let body = Request {
        vi: 77,
        ..ask(client.0, 0, b"d")
    };
    net.hosts[1].request(1, 11, &body);
    net.run_ms(1);
    let incoming = net.hosts[0].expect_incoming(1, 10);
    assert_eq!(
        (incoming.remote.host(), incoming.remote.discriminator()),
        (&mac(1)[..], &b"my-own"[..])
    );
    assert_eq!(incoming.attributes, attributes());
    net.hosts[0].accept(1, 12, incoming.connection);
    let (at_server, fds) = net.hosts[0].expect_connected(1, 12);
    assert!(fds.is_empty() && at_server.remote == 1 && at_server.side == 0);
    // Not before the server's VI is attached.
    net.run_ms(500);
    net.hosts[1].quiet();
    confirm(&mut net, 0, 13, at_server.connection);
    net.run_ms(1);
    let (at_client, _) = net.hosts[1].expect_connected(1, 11);
    // And not before the client's is.
    net.run_ms(200);
    net.hosts[0].quiet();
    confirm(&mut net, 1, 14, at_client.connection);
    net.run_ms(1);
    net.hosts[0].expect_done(1, 13, Status::OK);
    net.hosts[1].expect_done(1, 14, Status::OK);
    assert_eq!((at_server.key, at_client.side), (at_client.key, 1));
    assert_eq!((at_server.peer_vi, at_client.peer_vi), (77, 88));
    assert_eq!(
        (at_server.remote_endpoint, at_client.remote_endpoint),
        (client.1, server.1)
    );
    for (connected, host) in [(at_server, 1), (at_client, 0)] {
        assert_eq!(
            connected.remote_host[..usize::from(connected.remote_host_len)],
            mac(host)
        );
        assert_eq!(
            (
                connected.peer_nic,
                connected.peer_pid,
                connected.segment_bytes
            ),
            (0, 0, 0)
        );
    }
    net.end();
}

#[test]
fn no_one_waits_at_once_or_after_the_grace() {
    let (mut net, server, client) = two();
    net.hosts[1].request(1, 11, &ask(client.0, 0, b"no one"));
    net.run_ms(1);
    net.hosts[1].expect_done(1, 11, Status::NO_MATCH);
    let patient = Request {
        grace_ms: 300,
        ..ask(client.0, 0, b"late")
    };
    net.hosts[1].request(1, 12, &patient);
    net.run_ms(299);
    net.hosts[1].quiet();
    net.run_ms(2);
    net.hosts[1].expect_done(1, 12, Status::NO_MATCH);
    net.hosts[1].request(1, 13, &patient);
    net.run_ms(200);
    net.hosts[0].wait(1, server.0, 10, b"late", FOREVER);
    net.hosts[0].expect_incoming(1, 10);
    net.end();
}

#[test]
fn a_repeated_request_never_meets_a_second_server_or_no_one() {
    let (mut net, server, client) = two();
    net.twice = 100;
    let incoming = meet(&mut net, server.0, client.0);
    // No server waits any more; the client repeats its request for half of its second.
    net.run_ms(500);
    net.hosts[0].wait(1, server.0, 15, b"d", 100);
    net.run_ms(200);
    net.hosts[0].expect_done(1, 15, Status::TIMEOUT);
    net.hosts[1].quiet();
    net.hosts[0].call(
        1,
        Op::REJECT,
        16,
        &ConnectionRef {
            connection: incoming,
        },
    );
    net.hosts[0].expect_done(1, 16, Status::OK);
    net.run_ms(100);
    net.hosts[1].expect_done(1, 11, Status::REJECTED);
    net.end();
}

#[test]
fn a_client_that_gives_up_is_not_accepted() {
    let (mut net, server, client) = two();
    let incoming = meet(&mut net, server.0, client.0);
    net.run_ms(1100);
    net.hosts[1].expect_done(1, 11, Status::TIMEOUT);
    net.hosts[0].accept(1, 12, incoming);
    net.hosts[0].expect_done(1, 12, Status::TIMEOUT);
    net.end();
}

#[test]
fn a_client_that_gives_up_between_accept_and_acknowledgement() {
    let (mut net, server, client) = two();
    let at_server = accepted(&mut net, server.0, client.0);
    net.cut[1] = true;
    confirm(&mut net, 0, 13, at_server);
    net.run_ms(1200);
    net.hosts[1].expect_done(1, 11, Status::TIMEOUT);
    net.hosts[0].quiet();
    net.cut[1] = false;
    net.run_ms(1000);
    net.hosts[0].expect_done(1, 13, Status::TIMEOUT);
    net.end();
}

#[test]
fn a_client_whose_host_is_cut_off_for_good_lets_the_server_go() {
    let (mut net, server, client) = two();
    let at_server = accepted(&mut net, server.0, client.0);
    net.cut[1] = true;
    confirm(&mut net, 0, 13, at_server);
    net.run_ms(3000);
    net.hosts[0].expect_done(1, 13, Status::TIMEOUT);
    net.hosts[1].expect_done(1, 11, Status::TIMEOUT);
    net.end();
}

#[test]
fn attributes_that_conflict_leave_the_request_to_a_second_try() {
    let (mut net, server, client) = two();
    let incoming = meet(&mut net, server.0, client.0);
    let right = accept(incoming);
    let other_level = Attributes {
        reliability: 4,
        ..right.attributes
    };
    let other_size = Attributes {
        max_transfer_size: 1,
        ..right.attributes
    };
    for (attributes, conflict) in [
        (other_level, Status::CONFLICT_RELIABILITY),
        (other_size, Status::CONFLICT_MTU),
    ] {
        net.hosts[0].call(
            1,
            Op::ACCEPT,
            12,
            &Accept {
                attributes,
                ..right
            },
        );
        net.hosts[0].expect_done(1, 12, conflict);
    }
    net.run_ms(50);
    net.hosts[1].quiet();
    net.hosts[0].accept(1, 12, incoming);
    net.hosts[0].expect_connected(1, 12);
    net.end();
}

#[test]
fn a_disconnect_is_reported_and_the_end_without_it_too() {
    for (orderly, dies) in [(1, false), (0, true)] {
        let (mut net, server, client) = two();
        let (at_server, at_client) = pair(&mut net, server.0, client.0);
        if dies {
            net.hosts[0].hangup(1);
        } else {
            disconnect(&mut net, 0, at_server);
        }
        net.run_ms(1);
        net.hosts[1].expect_gone(1, at_client, orderly);
        disconnect(&mut net, 1, at_client);
        net.run_ms(7000);
        assert_eq!(
            net.hosts[1].agent.census().exchanges,
            0,
            "remembered for some seconds only"
        );
        net.end();
    }
}

#[test]
fn both_disconnect_at_once() {
    let (mut net, server, client) = two();
    let (at_server, at_client) = pair(&mut net, server.0, client.0);
    disconnect(&mut net, 0, at_server);
    disconnect(&mut net, 1, at_client);
    net.run_ms(10_000);
    for host in &net.hosts {
        host.quiet();
        assert_eq!(host.agent.census().exchanges, 0);
    }
    net.end();
}

#[test]
fn a_disconnect_goes_on_until_it_is_acknowledged() {
    let (mut net, server, client) = two();
    let (at_server, at_client) = pair(&mut net, server.0, client.0);
    net.cut[1] = true;
    disconnect(&mut net, 0, at_server);
    net.run_ms(2000);
    net.hosts[1].quiet();
    net.cut[1] = false;
    net.run_ms(2000);
    net.hosts[1].expect_gone(1, at_client, 1);
    net.end();
}

#[test]
fn a_server_that_dies_with_the_request_rejects_it() {
    let (mut net, server, client) = two();
    meet(&mut net, server.0, client.0);
    net.hosts[0].hangup(1);
    net.run_ms(1);
    net.hosts[1].expect_done(1, 11, Status::REJECTED);
    net.end();
}

#[test]
fn a_server_that_leaves_between_accept_and_confirm() {
    let (mut net, server, client) = two();
    let at_server = accepted(&mut net, server.0, client.0);
    disconnect(&mut net, 0, at_server);
    net.run_ms(1);
    net.hosts[1].expect_done(1, 11, Status::TIMEOUT);
    net.end();
}

#[test]
fn a_process_that_lets_go_while_the_other_confirms() {
    let (mut net, server, client) = two();
    let (_, at_client) = attaching(&mut net, server.0, client.0);
    disconnect(&mut net, 1, at_client);
    net.run_ms(1);
    net.hosts[0].expect_done(1, 13, Status::TIMEOUT);
    net.end();
}

#[test]
fn the_accepter_lets_go_while_the_client_attaches() {
    let (mut net, server, client) = two();
    let (at_server, at_client) = attaching(&mut net, server.0, client.0);
    net.hosts[0].call(
        1,
        Op::DISCONNECT,
        20,
        &ConnectionRef {
            connection: at_server,
        },
    );
    net.hosts[0].expect_done(1, 13, Status::TIMEOUT);
    net.hosts[0].expect_done(1, 20, Status::OK);
    net.run_ms(1);
    confirm(&mut net, 1, 14, at_client);
    net.hosts[1].expect_done(1, 14, Status::TIMEOUT);
    confirm(&mut net, 1, 15, at_client);
    net.hosts[1].expect_done(1, 15, Status::INVALID);
    net.end();
}

#[test]
fn peers_meet_in_either_order() {
    for first in [0, 1] {
        let (mut net, a, b) = two();
        let bodies = [
            peer(a.0, b"x", &mac(1), b"y"),
            peer(b.0, b"y", &mac(0), b"x"),
        ];
        net.hosts[first].call(1, Op::PEER, 11, &bodies[first]);
        net.run_ms(400);
        net.hosts[1 - first].call(1, Op::PEER, 11, &bodies[1 - first]);
        net.run_ms(1);
        // The host with the lower address matches them.
        let (zero, _) = net.hosts[0].expect_connected(1, 11);
        confirm(&mut net, 0, 12, zero.connection);
        net.run_ms(1);
        let (one, _) = net.hosts[1].expect_connected(1, 11);
        confirm(&mut net, 1, 12, one.connection);
        net.run_ms(1);
        for host in &mut net.hosts {
            host.expect_done(1, 12, Status::OK);
        }
        assert_eq!((zero.key, zero.side, one.side), (one.key, 0, 1));
        net.end();
    }
}

#[test]
fn peers_that_conflict_both_learn_it_and_others_do_not_meet() {
    let (mut net, a, b) = two();
    net.hosts[0].call(1, Op::PEER, 10, &peer(a.0, b"x", &mac(1), b"other"));
    net.hosts[0].call(1, Op::PEER, 11, &peer(a.0, b"x", &mac(1), b"y"));
    let mut body = peer(b.0, b"y", &mac(0), b"x");
    body.attributes.max_transfer_size = 4096;
    net.hosts[1].call(1, Op::PEER, 11, &body);
    net.run_ms(10);
    for host in &mut net.hosts {
        host.expect_done(1, 11, Status::CONFLICT_MTU);
    }
    // A client does not meet a peer, nor a peer a server.
    net.hosts[1].request(1, 12, &ask(b.0, 0, b"x"));
    net.run_ms(10);
    net.hosts[1].expect_done(1, 12, Status::NO_MATCH);
    net.run_ms(1000);
    net.hosts[0].expect_done(1, 10, Status::TIMEOUT);
    net.end();
}

#[test]
fn a_peer_without_an_answer_times_out_on_either_host() {
    let (mut net, a, b) = two();
    net.hosts[0].call(1, Op::PEER, 11, &peer(a.0, b"x", &mac(1), b"y"));
    net.hosts[1].call(1, Op::PEER, 11, &peer(b.0, b"q", &mac(0), b"x"));
    net.run_ms(1001);
    for host in &mut net.hosts {
        host.expect_done(1, 11, Status::TIMEOUT);
    }
    net.end();
}

#[test]
fn no_such_host_times_out_and_an_interface_that_is_down_is_reported() {
    let (mut net, _, client) = two();
    net.hosts[1].request(1, 11, &ask(client.0, 5, b"d"));
    net.run_ms(999);
    net.hosts[1].quiet();
    net.run_ms(2);
    net.hosts[1].expect_done(1, 11, Status::TIMEOUT);
    net.hosts[1].request(1, 12, &ask(client.0, 5, b"d"));
    net.hosts[1].agent.handle_link_down(net.now, LINK);
    net.hosts[1].pump();
    let why = net.hosts[1].expect_denied(1, 12, Status::NOT_REACHABLE);
    assert_eq!(why, Detail::new(Reason::LINK_DOWN));
    net.end();
}

#[test]
fn a_call_without_an_answer_reports_what_was_received() {
    let (mut net, _, client) = two();
    let there = mac(0).into();
    let reported = |net: &mut Net, id: u64, host: usize, reason: Reason| {
        net.run_ms(1001);
        let why = net.hosts[1].expect_denied(1, id, Status::TIMEOUT);
        assert_eq!(why, Detail::new(reason), "{host}");
    };
    net.cut[0] = true;
    net.hosts[1].request(1, 20, &ask(client.0, 0, b"d"));
    reported(&mut net, 20, 0, Reason::SILENT);
    for (id, refused, reason) in [(21, true, Reason::NO_AGENT), (22, false, Reason::NO_ROUTE)] {
        net.hosts[1].request(1, id, &ask(client.0, 0, b"d"));
        let other = mac(5).into();
        let agent = &mut net.hosts[1].agent;
        agent.handle_unreached(net.now, LINK, other, !refused);
        agent.handle_unreached(net.now, LINK, there, refused);
        reported(&mut net, id, 0, reason);
    }
    net.cut[0] = false;
    net.hosts[1].request(1, 23, &ask(client.0, 0, b"d"));
    net.run_ms(50);
    // The agent there has answered: reports of the network are ignored.
    let agent = &mut net.hosts[1].agent;
    agent.handle_unreached(net.now, LINK, there, true);
    net.run_ms(2100);
    let why = net.hosts[1].expect_denied(1, 23, Status::NO_MATCH);
    assert_eq!(why, Detail::new(Reason::OTHER_HOST));
    net.end();
}

#[test]
fn a_cancelled_request_leaves_nothing_with_the_server() {
    let (mut net, server, client) = two();
    let incoming = meet(&mut net, server.0, client.0);
    net.hosts[1].call(1, Op::CANCEL, 20, &Cancel { call: 11 });
    net.hosts[1].expect_done(1, 11, Status::CANCELLED);
    net.hosts[1].expect_done(1, 20, Status::OK);
    net.run_ms(1);
    net.hosts[0].accept(1, 12, incoming);
    net.hosts[0].expect_done(1, 12, Status::TIMEOUT);
    net.end();
}

#[test]
fn the_oldest_is_served_first_from_wherever() {
    let mut net = Net::new(2, 3);
    let server = net.open(0, 1).0;
    let near = net.open(0, 2).0;
    let far = net.open(1, 1).0;
    net.hosts[1].request(
        1,
        11,
        &Request {
            grace_ms: 900,
            ..ask(far, 0, b"d")
        },
    );
    net.run_ms(10);
    net.hosts[0].request(
        2,
        11,
        &Request {
            grace_ms: 900,
            ..ask(near, 0, b"d")
        },
    );
    net.hosts[0].wait(1, server, 10, b"d", FOREVER);
    assert_eq!(net.hosts[0].expect_incoming(1, 10).remote.host(), mac(1));
    net.hosts[0].wait(1, server, 11, b"d", FOREVER);
    assert_eq!(net.hosts[0].expect_incoming(1, 11).remote.host(), mac(0));
    net.end();
}

#[test]
fn everybody_on_the_link_is_found() {
    let mut net = Net::new(4, 1);
    net.lost = 20;
    let nic = net.open(0, 1).0;
    for host in 1..3 {
        net.open(host, 1);
    }
    net.hosts[0].call(1, Op::NEIGHBOURS, 20, &Neighbours { nic });
    net.run_ms(1000);
    let list: NeighbourList = net.hosts[0].take(1).body();
    let found: Vec<&[u8]> = list
        .hosts
        .iter()
        .take(list.count as usize)
        .map(|host| &host[..6])
        .collect();
    // No process of the fourth uses the link.
    assert_eq!(found, [mac(0), mac(1), mac(2)]);
    net.end();
}

/// If the grace period and the timeout end at the same time, the remote host decides which applies.
#[test]
fn a_call_as_short_as_its_grace() {
    let (mut net, server, client) = two();
    let short = |name| Request {
        grace_ms: 2000,
        timeout_ms: 300,
        ..ask(client.0, 0, name)
    };
    net.hosts[1].request(1, 11, &short(b"no one"));
    net.run_ms(299);
    net.hosts[1].quiet();
    net.run_ms(3);
    net.hosts[1].expect_done(1, 11, Status::NO_MATCH);
    // A server that holds the request and does nothing.
    net.hosts[0].wait(1, server.0, 10, b"slow", FOREVER);
    net.hosts[1].request(1, 12, &short(b"slow"));
    net.run_ms(1);
    net.hosts[0].expect_incoming(1, 10);
    net.run_ms(303);
    net.hosts[1].expect_done(1, 12, Status::TIMEOUT);
    // A host that becomes silent after it has received the call.
    net.hosts[1].request(1, 13, &short(b"no one"));
    net.run_ms(100);
    net.cut[0] = true;
    net.run_ms(1199);
    net.hosts[1].quiet();
    net.run_ms(3);
    net.hosts[1].expect_done(1, 13, Status::TIMEOUT);
}

#[test]
fn a_host_that_went_silent_is_not_met() {
    let (mut net, a, b) = two();
    net.hosts[1].call(
        1,
        Op::PEER,
        11,
        &Request {
            timeout_ms: FOREVER,
            ..peer(b.0, b"y", &mac(0), b"x")
        },
    );
    net.run_ms(100);
    net.cut[1] = true;
    net.run_ms(15_000);
    net.hosts[0].call(
        1,
        Op::PEER,
        11,
        &Request {
            timeout_ms: 60_000,
            ..peer(a.0, b"x", &mac(1), b"y")
        },
    );
    net.run_ms(1000);
    net.hosts[0].quiet();
    net.cut[1] = false;
    net.run_ms(2000);
    net.hosts[0].expect_connected(1, 11);
    net.end();
}

#[test]
fn a_host_of_another_version_is_not_reachable_and_no_other_host_can_claim_so() {
    let (mut net, _, client) = two();
    net.hosts[1].request(1, 11, &ask(client.0, 0, b"d"));
    let sent = net.hosts[1].frames.pop_front().unwrap();
    let mut wrong = sent.bytes.clone();
    wrong[0] = 9;
    let end = wrong.len() - 4;
    let crc = vipl_sys::crc::crc32c(&wrong[..end]);
    wrong[end..].copy_from_slice(&crc.to_be_bytes());
    let mut room = [0; kagent_proto::setup::FRAME_MAX];
    let length = kagent_proto::setup::answer_version(&wrong, &mut room).unwrap();
    let host = &mut net.hosts[1];
    for (from, taken) in [(5, false), (0, true), (0, false)] {
        let read =
            host.agent
                .handle_frame(host.now, LINK, mac(from).into(), false, &room[..length]);
        let refused = matches!(read, Err(kagent_proto::setup::Refused::OtherVersion(..)));
        assert_eq!(refused, taken, "{read:?}");
    }
    host.pump();
    let why = host.expect_denied(1, 11, Status::NOT_REACHABLE);
    assert_eq!(why, Detail::new(Reason::OTHER_VERSION));
    net.end();
}

/// A server's process exits while requests of another host wait for a server here, and the link closes.
fn guests_of_a_closed_link(ask_for: impl Fn(&mut Net, u64)) -> (Net, u64) {
    let (mut net, _, client) = two();
    ask_for(&mut net, client.0);
    net.run_ms(1);
    assert_eq!(net.hosts[0].agent.census().calls, 1, "the guest's call");
    net.hosts[0].hangup(1);
    net.run_ms(1);
    let census = net.hosts[0].agent.census();
    assert_eq!((census.links, census.exchanges), (0, 0));
    assert_eq!((census.calls, census.queued, census.timers), (0, 0, 0));
    // The next server's process on the same interface.
    net.hosts[0].connect(2, 1000);
    net.hosts[0].hello(2);
    let (next, _) = net.open(0, 2);
    (net, next)
}

#[test]
fn the_next_server_on_an_interface_gets_no_request_of_the_time_before() {
    let (mut net, next) = guests_of_a_closed_link(|net, client| {
        let patient = Request {
            grace_ms: 900,
            ..ask(client, 0, b"d")
        };
        net.hosts[1].request(1, 11, &patient);
    });
    // The client exits unnoticed: no server may receive its request.
    net.cut[1] = true;
    net.hosts[0].wait(2, next, 20, b"d", 500);
    net.run_ms(600);
    net.hosts[0].expect_done(2, 20, Status::TIMEOUT);
    net.end();
}

#[test]
fn a_client_that_outlives_a_server_process_meets_the_next_one() {
    let (mut net, next) = guests_of_a_closed_link(|net, client| {
        let patient = Request {
            grace_ms: 3000,
            timeout_ms: 3000,
            ..ask(client, 0, b"d")
        };
        net.hosts[1].request(1, 11, &patient);
    });
    net.hosts[0].wait(2, next, 20, b"d", FOREVER);
    net.run_ms(1500);
    let incoming = net.hosts[0].expect_incoming(2, 20);
    net.hosts[0].accept(2, 21, incoming.connection);
    let (at_server, _) = net.hosts[0].expect_connected(2, 21);
    let body = ConnectionRef {
        connection: at_server.connection,
    };
    net.hosts[0].call(2, Op::CONFIRM, 22, &body);
    net.run_ms(1);
    net.hosts[1].expect_connected(1, 11);
    net.end();
}

#[test]
fn the_next_peer_on_an_interface_meets_no_peer_of_the_time_before() {
    let (mut net, next) = guests_of_a_closed_link(|net, client| {
        // The host with the lower address matches them.
        let body = peer(client, b"there", &mac(0), b"here");
        net.hosts[1].call(1, Op::PEER, 11, &body);
    });
    net.cut[1] = true;
    let body = Request {
        timeout_ms: 500,
        ..peer(next, b"here", &mac(1), b"there")
    };
    net.hosts[0].call(2, Op::PEER, 20, &body);
    net.hosts[0].quiet();
    net.run_ms(600);
    net.hosts[0].expect_done(2, 20, Status::TIMEOUT);
    net.end();
}

#[test]
fn the_log_shows_the_life_of_a_request_on_both_hosts() {
    let (mut net, server, client) = two();
    let incoming = meet(&mut net, server.0, client.0);
    let body = ConnectionRef {
        connection: incoming,
    };
    net.hosts[0].call(1, Op::REJECT, 16, &body);
    net.run_ms(1);
    net.hosts[1].expect_done(1, 11, Status::REJECTED);
    // The number of an exchange differs from run to run of this test only if its seed does.
    let without_number = |line: &String| {
        let mut words: Vec<&str> = line.split(' ').collect();
        if let Some(at) = words.iter().position(|word| *word == "exchange") {
            words[at + 1] = "N";
        }
        words.join(" ")
    };
    let lines = |host: usize| -> Vec<String> {
        let notes = net.hosts[host].notes.iter();
        notes.map(without_number).collect()
    };
    assert_eq!(
        lines(0),
        [
            "call 1: client 1 of user 1000 waits at \"d\" at 02:00:00:00:00:01 and on interface 7",
            "call 2: exchange N with 02:00:00:00:00:02 (Answerer) requests \"d\"",
            "exchange N with 02:00:00:00:00:02 (Answerer): called (call 2)",
            "call 2: client 1 has it as 1",
            "call 2: REJECTED",
            "exchange N with 02:00:00:00:00:02 (Answerer): refused (Rejected)",
        ]
    );
    assert_eq!(
        lines(1),
        [
            "call 1: client 1 of user 1000 asks for \"d\" at 02:00:00:00:00:01 by exchange N with 02:00:00:00:00:01 (Asker)",
            "exchange N with 02:00:00:00:00:01 (Asker): asking (call 1)",
            "exchange N with 02:00:00:00:00:01 (Asker): forgotten",
            "call 1: REJECTED",
        ]
    );
    net.end();
}
