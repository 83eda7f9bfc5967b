//! Endpoints on links: permission, use, and end.

use crate::world::*;
use kagent_proto::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn world(clients: u64) -> World {
    let mut world = World::with_clients(clients);
    world.plug_in("eth0", 7, MAC);
    world
}

#[test]
fn an_endpoint_has_the_interface_and_has_a_number_of_its_own() {
    let mut world = world(2);
    let (one, two, three) = (
        world.link(1, "eth0"),
        world.link(1, "eth0"),
        world.link(2, "eth0"),
    );
    assert_eq!(
        (one.interface_index, one.mtu, one.speed_mbit),
        (7, 1500, 1000)
    );
    assert_eq!(&one.host[..usize::from(one.host_len)], MAC);
    let mut numbers = vec![one.endpoint, two.endpoint, three.endpoint];
    numbers.sort_unstable();
    numbers.dedup();
    assert!(numbers.len() == 3 && numbers[0] > 0);
    assert!(one.link != two.link && two.link != three.link);
    world.call(1, Op::LINK_OPEN, 3, &link_open("eth1"));
    world.expect_done(1, 3, Status::INVALID);
    world.end();
}

#[test]
fn a_number_is_not_used_again_soon() {
    let mut world = world(2);
    let _stays = world.link(2, "eth0");
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..100 {
        let (nic, endpoint) = world.open_on(1, "eth0");
        assert!(seen.insert(endpoint), "round {round}");
        world.call(1, Op::NIC_CLOSE, 5, &NicClose { nic });
        world.expect_done(1, 5, Status::OK);
    }
    world.end();
}

#[test]
fn an_endpoint_serves_one_nic_of_its_own_process_at_its_own_address() {
    let mut world = world(2);
    let link = world.link(1, "eth0").link;
    let right = NicOpen {
        link,
        ..nic_open("wire", &MAC)
    };
    for (client, body) in [
        (2, right),
        (
            1,
            NicOpen {
                link: link + 1,
                ..right
            },
        ),
        (
            1,
            NicOpen {
                link,
                ..nic_open("wire", &[2, 0, 0, 0, 0, 2])
            },
        ),
    ] {
        world.call(client, Op::NIC_OPEN, 4, &body);
        world.expect_done(client, 4, Status::INVALID);
    }
    world.call(1, Op::NIC_OPEN, 4, &right);
    assert_eq!(world.take(1).op, Op::NIC_OPENED);
    world.call(1, Op::NIC_OPEN, 4, &right);
    world.expect_done(1, 4, Status::INVALID);
    world.end();
}

#[test]
fn endpoints_end_with_their_nic_or_their_process_and_the_link_with_the_last() {
    let mut world = world(2);
    let (nic, _) = world.open_on(1, "eth0");
    world.link(2, "eth0");
    world.call(1, Op::NIC_CLOSE, 5, &NicClose { nic });
    world.expect_done(1, 5, Status::OK);
    assert!(world.closed_links.is_empty());
    let census = world.agent.census();
    assert_eq!((census.links, census.endpoints), (1, 1));
    world.hangup(2);
    assert_eq!(world.closed_links, [7]);
    world.end();
}

#[test]
fn one_process_does_not_get_all_endpoints() {
    let mut world = world(2);
    for _ in 0..kagent::budgets::ENDPOINTS_PER_CLIENT_MAX {
        world.link(1, "eth0");
    }
    world.call(1, Op::LINK_OPEN, 3, &link_open("eth0"));
    world.expect_done(1, 3, Status::RESOURCE);
    world.link(2, "eth0");
    world.end();
}

#[test]
fn two_nics_of_one_interface_meet_with_a_segment() {
    let mut world = world(2);
    let (server, _) = world.open_on(1, "eth0");
    let (client, _) = world.open_on(2, "eth0");
    world.wait(1, server, 10, b"d", FOREVER);
    world.request(2, 11, &request(client, &MAC, b"d"));
    let connection = world.expect_incoming(1, 10).connection;
    world.accept(1, 12, connection);
    for (process, call) in [(1, 12), (2, 11)] {
        let (connected, fds) = world.expect_connected(process, call);
        assert_eq!((connected.remote, fds.len()), (0, 1));
    }
    world.end();
}
