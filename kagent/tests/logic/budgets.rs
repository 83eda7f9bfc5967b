//! The limits of a user, the share left for others, and the errors beyond a limit.

use crate::net::*;
use crate::world::*;
use kagent::Agent;
use kagent::budgets::*;
use kagent_proto::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const A: u32 = 1000;
const B: u32 = 1001;

/// Processes 1 to `of_a` of user A, and process 100 of user B; all greeted.
fn two_users(of_a: u64) -> World {
    let mut world = World::new();
    for client in 1..=of_a {
        world.connect(client, A);
        world.hello(client);
    }
    world.connect(100, B);
    world.hello(100);
    world.plug_in("eth0", 7, MAC);
    world
}

#[track_caller]
fn is_about(detail: &Detail, budget: Budget, used: usize, limit: usize) {
    assert_eq!(
        (detail.reason, detail.user, detail.budget()),
        (Reason::USER_BUDGET, A, Some(budget))
    );
    assert_eq!((detail.used, detail.limit), (used as u64, limit as u64));
}

#[test]
fn pending_requests_of_a_user_are_bounded_over_all_his_processes() {
    let mut world = two_users(3);
    let most = bounds(Budget::Calls).per_user;
    let nics: Vec<u64> = (1..=3).map(|client| world.open(client)).collect();
    let mut waiting = 0;
    for (client, nic) in (1..).zip(&nics) {
        for id in 0..CALLS_PER_CLIENT_MAX.min(most - waiting) as u64 {
            world.wait(client, *nic, 100 + id, b"d", FOREVER);
            waiting += 1;
        }
    }
    assert_eq!(waiting, most);
    world.quiet();
    let line = world.budget(3, Budget::Calls);
    assert_eq!((line.used, line.limit), (most as u64, most as u64));
    let body = Request {
        grace_ms: 500,
        ..request(nics[2], b"hostA", b"e")
    };
    world.request(3, 7, &body);
    let detail = world.expect_denied(3, 7, Status::RESOURCE);
    is_about(&detail, Budget::Calls, most, most);
    let nic = world.open(100);
    world.wait(100, nic, 8, b"d", FOREVER);
    world.quiet();
    // Ended calls are not counted any more.
    world.call(1, Op::CANCEL, 9, &Cancel { call: 100 });
    world.expect_done(1, 100, Status::CANCELLED);
    world.expect_done(1, 9, Status::OK);
    world.request(3, 7, &body);
    world.quiet();
    world.end();
}

#[test]
fn a_process_learns_its_own_bounds_too() {
    let mut world = two_users(1);
    for _ in 0..NICS_PER_CLIENT_MAX {
        world.open(1);
    }
    world.call(1, Op::NIC_OPEN, 3, &nic_open("loopback", b"A"));
    let detail = world.expect_denied(1, 3, Status::RESOURCE);
    assert_eq!(
        (detail.reason, detail.budget()),
        (Reason::PROCESS_BUDGET, Some(Budget::Nics))
    );
    world.end();
}

/// The agent has 1000 descriptors for processes and the descriptors that they send.
fn few_descriptors(one_user: bool) -> World {
    let mut world = World::new();
    let agent = Agent::new([1; 32]).with_pid(4711).with_descriptors(1000);
    world.agent = if one_user {
        agent.for_one_user()
    } else {
        agent
    };
    world
}

/// Opens NICs with two descriptors each, over as many processes as necessary, until one is refused.
fn take_descriptors(world: &mut World, user: u32) -> Detail {
    for client in 1000 * u64::from(user).. {
        world.connect(client, user);
        world.hello(client);
        for _ in 0..NICS_PER_CLIENT_MAX {
            let body = packet(Op::NIC_OPEN, 3, &nic_open("loopback", b"A"));
            world.raw(client, &body, vec![1, 2]);
            let packet = world.take(client);
            if packet.op != Op::NIC_OPENED {
                return packet.body();
            }
        }
    }
    unreachable!()
}

#[test]
fn no_one_gets_the_descriptors_that_others_need() {
    let mut world = few_descriptors(false);
    let detail = take_descriptors(&mut world, A);
    is_about(&detail, Budget::Descriptors, 500, 500);
    let detail = take_descriptors(&mut world, B);
    assert_eq!((detail.user, detail.used, detail.limit), (B, 250, 250));
    world.connect(7, 77);
    world.hello(7);
    world.open_as(7, "loopback", b"A", vec![1, 2]);
    world.end();
}

#[test]
fn an_agent_of_one_user_keeps_nothing_back() {
    let mut world = few_descriptors(true);
    is_about(
        &take_descriptors(&mut world, A),
        Budget::Descriptors,
        1000,
        1000,
    );
    world.end();
}

#[test]
fn data_sockets_of_a_user_are_bounded_and_come_back() {
    let most = bounds(Budget::Endpoints).per_user;
    let processes = (most / ENDPOINTS_PER_CLIENT_MAX) as u64;
    let mut world = two_users(processes + 1);
    for client in 1..=processes {
        for _ in 0..ENDPOINTS_PER_CLIENT_MAX {
            world.sleep_ms(20);
            world.link(client, "eth0");
        }
    }
    let last = processes + 1;
    world.call(last, Op::LINK_OPEN, 3, &link_open("eth0"));
    let detail = world.expect_denied(last, 3, Status::RESOURCE);
    is_about(&detail, Budget::Endpoints, most, most);
    world.link(100, "eth0");
    world.hangup(1);
    world.sleep_ms(20);
    world.link(last, "eth0");
    world.end();
}

#[test]
fn data_sockets_come_at_a_pace_and_not_to_those_who_have_gone() {
    let mut world = two_users(10);
    let body = link_open("eth0");
    // Processes of A send requests and hang up; all but a burst are queued.
    for client in 1..=9 {
        for id in 0..60 {
            world.call(client, Op::LINK_OPEN, 10 + id, &body);
        }
    }
    let opened = world.agent.census().endpoints;
    assert_eq!(opened, 257);
    for client in 1..=9 {
        world.hangup(client);
    }
    assert_eq!(world.agent.census().endpoints, 0);
    assert_eq!(world.agent.census().calls, 0);
    // Processes that stay are served in time, one after the other.
    for id in 0..5 {
        world.call(10, Op::LINK_OPEN, 10 + id, &body);
    }
    world.quiet();
    // B does not wait for A.
    world.link(100, "eth0");
    for id in 0..5 {
        world.sleep_ms(20);
        let packet = world.take(10);
        assert_eq!((packet.op, packet.id), (Op::LINK_OPENED, 10 + id));
        world.quiet();
    }
    // After a pause there is a burst again.
    world.sleep_ms(10_000);
    for id in 0..50 {
        world.call(10, Op::LINK_OPEN, 20 + id, &body);
        assert_eq!(world.take(10).op, Op::LINK_OPENED);
    }
    world.end();
}

#[test]
fn requests_to_other_hosts_count_until_the_other_host_knows_of_their_end() {
    let most = bounds(Budget::Exchanges).per_user;
    let mut world = two_users(1);
    let (nic, _) = world.open_on(1, "eth0");
    let (other, _) = world.open_on(100, "eth0");
    let body = request(nic, &[2, 0, 0, 0, 0, 9], b"d");
    for id in 0..most as u64 {
        let id = 100 + id;
        world.request(1, id, &body);
        world.call(1, Op::CANCEL, 9, &Cancel { call: id });
        world.expect_done(1, id, Status::CANCELLED);
        world.expect_done(1, 9, Status::OK);
    }
    world.request(1, 7, &body);
    let detail = world.expect_denied(1, 7, Status::RESOURCE);
    is_about(&detail, Budget::Exchanges, most, most);
    world.request(100, 8, &Request { nic: other, ..body });
    world.quiet();
    // Without an answer, it times out.
    world.sleep_ms(20_000);
    world.expect_done(100, 8, Status::TIMEOUT);
    world.request(1, 7, &body);
    world.quiet();
    world.hangup(1);
    world.hangup(100);
    world.sleep_ms(20_000);
    world.end();
}

#[test]
fn a_request_without_a_match_returns_the_likely_cause() {
    let mut world = two_users(2);
    let (server, client, other) = (
        world.open_at(1, b"hostA"),
        world.open_at(2, b"hostB"),
        world.open_at(100, b"hostA"),
    );
    let table: [(&[u8], Status, Reason); 2] = [
        (b"hostA", Status::NO_MATCH, Reason::NO_SERVER),
        (b"hostC", Status::NOT_REACHABLE, Reason::NO_SUCH_ADDRESS),
    ];
    for (host, status, reason) in table {
        world.request(2, 5, &request(client, host, b"d"));
        let detail = world.expect_denied(2, 5, status);
        assert_eq!(detail, Detail::new(reason));
    }
    world.wait(100, other, 8, b"d", FOREVER);
    let patient = Request {
        grace_ms: 100,
        ..request(client, b"hostA", b"d")
    };
    world.request(2, 5, &patient);
    world.sleep_ms(100);
    let detail = world.expect_denied(2, 5, Status::NO_MATCH);
    assert_eq!(detail, Detail::new(Reason::OTHER_USER));
    world.wait(1, server, 9, b"d", FOREVER);
    world.request(2, 5, &request(client, b"hostB", b"d"));
    let detail = world.expect_denied(2, 5, Status::NO_MATCH);
    assert_eq!(detail, Detail::new(Reason::ELSEWHERE));
    world.end();
}

#[test]
fn a_request_without_a_match_names_the_servers_of_its_user_at_that_address() {
    let mut world = two_users(2);
    world.connect(3, A);
    world.hello_with(3, Hello::WAITED);
    let (server, other) = (world.open_at(1, b"hostA"), world.open_at(100, b"hostA"));
    let (old, client) = (world.open_at(2, b"hostB"), world.open_at(3, b"hostB"));
    let elsewhere = world.open_at(1, b"hostC");
    // Another user's server at the same address, and the same user's at another one, are not for this client.
    world.wait(100, other, 8, b"order", FOREVER);
    world.wait(1, elsewhere, 9, b"orders!", FOREVER);
    world.request(3, 5, &request(client, b"hostA", b"orders\0"));
    let detail = world.expect_denied(3, 5, Status::NO_MATCH);
    assert_eq!(detail, Detail::new(Reason::NO_SERVER));
    world.wait(1, server, 10, b"orders", FOREVER);
    world.wait(1, server, 11, b"invoices", FOREVER);
    world.request(3, 5, &request(client, b"hostA", b"orders\0"));
    let named = world.expect_waited(3, 5);
    assert_eq!(named, [b"orders".to_vec(), b"invoices".to_vec()]);
    // At the end of a grace period, too.
    let patient = Request {
        grace_ms: 100,
        ..request(client, b"hostA", b"orders\0")
    };
    world.request(3, 5, &patient);
    world.sleep_ms(100);
    assert_eq!(world.expect_waited(3, 5), named);
    // A process of an older library gets what it knows.
    world.request(2, 5, &request(old, b"hostA", b"orders\0"));
    let detail = world.expect_denied(2, 5, Status::NO_MATCH);
    assert_eq!(detail, Detail::new(Reason::NO_SERVER));
    // The nearest in the order of the agent, and no more than fit.
    for number in 0..40u8 {
        world.wait(1, server, 20 + u64::from(number), &[b'x', number], FOREVER);
    }
    world.request(3, 5, &request(client, b"hostA", &[b'x', 100]));
    let named = world.expect_waited(3, 5);
    let expected: Vec<Vec<u8>> = (34..40u8).rev().map(|number| vec![b'x', number]).collect();
    assert_eq!(named[..6], expected);
    assert_eq!(named[6..], [b"orders".to_vec(), b"invoices".to_vec()]);
    world.end();
}

/// Two hosts; on the first users A and B, processes 1 and 100, on the second a client, each with a NIC.
fn shared_link() -> (Net, u64, u64, u64) {
    let mut net = Net::new(2, 0);
    for (host, client, user) in [(0, 1, A), (0, 100, B), (1, 1, A)] {
        net.hosts[host].connect(client, user);
        net.hosts[host].hello(client);
    }
    let (a, b) = (net.open(0, 1).0, net.open(0, 100).0);
    let client = net.open(1, 1).0;
    (net, a, b, client)
}

#[track_caller]
fn is_taken(net: &mut Net, client: u64, id: u64, owner: u32) {
    let detail = net.hosts[0].expect_denied(client, id, Status::RESOURCE);
    assert_eq!(
        (detail.reason, detail.user, detail.limit),
        (Reason::NAME_TAKEN, owner, NAME_GRACE_MS)
    );
}

#[test]
fn a_discriminator_on_a_link_belongs_to_the_first_user_that_waits() {
    let (mut net, a, b, client) = shared_link();
    // B serves; A tries to receive B's clients.
    net.hosts[0].wait(100, b, 10, b"d", FOREVER);
    net.hosts[0].wait(1, a, 11, b"d", FOREVER);
    is_taken(&mut net, 1, 11, B);
    // On the link it belongs to one user; on this host each user has its own.
    net.hosts[0].wait(1, a, 12, b"e", FOREVER);
    for next in 20..23 {
        net.hosts[1].request(1, next, &ask(client, 0, b"d"));
        net.run_ms(1);
        let incoming = net.hosts[0].expect_incoming(100, 10);
        // B is busy with its client for a while, and A tries to come in between.
        net.run_ms(NAME_GRACE_MS - 100);
        net.hosts[0].wait(1, a, 11, b"d", 0);
        is_taken(&mut net, 1, 11, B);
        let body = ConnectionRef {
            connection: incoming.connection,
        };
        net.hosts[0].call(100, Op::REJECT, 13, &body);
        net.hosts[0].inbox.get_mut(&100).unwrap().clear();
        net.hosts[0].wait(100, b, 10, b"d", FOREVER);
        net.run_ms(1);
        net.hosts[1].inbox.get_mut(&1).unwrap().clear();
    }
    net.end();
}

#[test]
fn a_discriminator_becomes_free_after_a_grace_or_with_the_last_nic() {
    let (mut net, a, b, _) = shared_link();
    net.hosts[0].wait(100, b, 10, b"d", 50);
    net.run_ms(50 + NAME_GRACE_MS - 1);
    net.hosts[0].expect_done(100, 10, Status::TIMEOUT);
    net.hosts[0].wait(1, a, 11, b"d", 50);
    is_taken(&mut net, 1, 11, B);
    net.run_ms(1);
    net.hosts[0].wait(1, a, 11, b"d", 0);
    net.hosts[0].expect_done(1, 11, Status::TIMEOUT);
    // A owns it now, until its process exits.
    net.hosts[0].wait(100, b, 10, b"d", 50);
    is_taken(&mut net, 100, 10, A);
    net.hosts[0].hangup(1);
    assert_eq!(net.hosts[0].agent.census().names, 0);
    net.hosts[0].wait(100, b, 10, b"d", FOREVER);
    net.hosts[0].quiet();
    net.end();
}

#[test]
fn a_pair_of_peers_belongs_to_the_first_user_too() {
    let (mut net, a, b, client) = shared_link();
    let body = peer(b, b"here", &mac(1), b"there");
    net.hosts[0].call(100, Op::PEER, 10, &body);
    net.hosts[0].call(1, Op::PEER, 11, &Request { nic: a, ..body });
    is_taken(&mut net, 1, 11, B);
    let body = peer(client, b"there", &mac(0), b"here");
    net.hosts[1].call(1, Op::PEER, 12, &body);
    net.run_ms(1);
    net.hosts[0].expect_connected(100, 10);
    net.end();
}

#[test]
fn discriminators_of_a_user_are_bounded() {
    let (mut net, a, b, _) = shared_link();
    let host = &mut net.hosts[0];
    let most = bounds(Budget::Names).per_user;
    for number in 0..most as u64 {
        host.wait(1, a, 11, &number.to_le_bytes(), 0);
        host.expect_done(1, 11, Status::TIMEOUT);
    }
    host.wait(1, a, 11, b"one more", 0);
    let detail = host.expect_denied(1, 11, Status::RESOURCE);
    is_about(&detail, Budget::Names, most, most);
    host.wait(100, b, 10, b"d", FOREVER);
    host.quiet();
    net.end();
}
