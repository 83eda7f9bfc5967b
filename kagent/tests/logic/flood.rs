//! Hosts that send more requests than an agent can hold: a real client and server still connect.

use crate::net::*;
use crate::world::*;
use kagent::budgets::*;
use kagent_proto::setup::{self as setup, Body, FRAME_MAX, Frame};
use kagent_proto::*;
use vipl_sys::random::Random;

/// Frames of a flood in each millisecond.
const PER_MS: u64 = 10;

struct Flood {
    net: Net,
    server: u64,
    client: u64,
    random: Random,
    /// Number of forged source hosts.
    hosts: u64,
}

impl Flood {
    fn of(hosts: u64) -> Self {
        let mut net = Net::new(2, 1);
        let server = net.open(0, 1).0;
        let client = net.open(1, 1).0;
        Flood {
            net,
            server,
            client,
            random: Random::new(3),
            hosts,
        }
    }

    fn frame(&mut self) -> Vec<u8> {
        let call = setup::Call {
            endpoint: 1,
            vi: 1,
            remaining_ms: None,
            grace_ms: 60_000,
            attributes: setup::Attributes {
                max_transfer_size: 1,
                qos: 0,
                reliability: 1,
                rdma_write: false,
                rdma_read: false,
            },
            local: setup::Discriminator::new(b"l").unwrap(),
            remote: setup::Discriminator::new(&self.random.below(u64::MAX).to_le_bytes()).unwrap(),
        };
        let body = match self.random.below(2) {
            0 => Body::Request(call),
            _ => Body::Peer(call),
        };
        let exchange = self.random.below(u64::MAX);
        let mut room = [0; FRAME_MAX];
        let length = Frame { exchange, body }.emit(&mut room);
        room[..length].to_vec()
    }

    /// Advances time and delivers frames.
    fn run_ms(&mut self, ms: u64) {
        for _ in 0..ms {
            for _ in 0..PER_MS {
                let bytes = self.frame();
                // Higher addresses than that of the host, so that it matches peer requests as well.
                let from = self.random.below(self.hosts).to_le_bytes();
                let from = [2, 9, from[0], from[1], from[2], from[3]];
                let host = &mut self.net.hosts[0];
                let taken = host
                    .agent
                    .handle_frame(host.now, LINK, from.into(), false, &bytes);
                assert_eq!(taken, Ok(()));
                host.pump();
                // Answers to forged sources are discarded.
                host.frames.retain(|frame| frame.to == mac(1).into());
            }
            self.net.run_ms(1);
        }
    }

    fn end(mut self) {
        let census = self.net.hosts[0].agent.census();
        assert!(census.exchanges <= IDLE_EXCHANGES_PER_LINK_MAX + 10);
        assert_eq!(self.net.hosts[0].agent.audit(), Ok(()));
        self.net.run_ms(30_000);
        self.net.end();
    }
}

#[test]
fn a_server_that_waits_is_met_at_once_whatever_else_comes() {
    for hosts in [1, 1 << 32] {
        let mut flood = Flood::of(hosts);
        flood.run_ms(3000);
        for id in 20..30 {
            flood.net.hosts[0].wait(1, flood.server, id, b"d", FOREVER);
            flood.net.hosts[1].request(1, id, &ask(flood.client, 0, b"d"));
            flood.run_ms(3);
            let connection = flood.net.hosts[0].expect_incoming(1, id).connection;
            let body = ConnectionRef { connection };
            flood.net.hosts[0].call(1, Op::REJECT, 9, &body);
            flood.net.hosts[0].expect_done(1, 9, Status::OK);
            flood.run_ms(3);
            flood.net.hosts[1].expect_done(1, id, Status::REJECTED);
        }
        flood.end();
    }
}

#[test]
fn a_client_that_comes_before_its_server_is_met_within_a_repetition() {
    for hosts in [1, 1 << 32] {
        let mut flood = Flood::of(hosts);
        flood.run_ms(3000);
        let patient = Request {
            grace_ms: 5000,
            timeout_ms: 10_000,
            ..ask(flood.client, 0, b"d")
        };
        flood.net.hosts[1].request(1, 11, &patient);
        flood.run_ms(2000);
        flood.net.hosts[1].quiet();
        flood.net.hosts[0].wait(1, flood.server, 10, b"d", FOREVER);
        flood.run_ms(1003);
        flood.net.hosts[0].expect_incoming(1, 10);
        flood.end();
    }
}

#[test]
fn no_one_waits_is_said_at_once_and_two_peers_meet() {
    let mut flood = Flood::of(1 << 32);
    flood.run_ms(3000);
    flood.net.hosts[1].request(1, 11, &ask(flood.client, 0, b"no one"));
    flood.run_ms(3);
    flood.net.hosts[1].expect_done(1, 11, Status::NO_MATCH);
    let body = peer(flood.client, b"there", &mac(0), b"here");
    flood.net.hosts[1].call(1, Op::PEER, 12, &body);
    flood.run_ms(500);
    let body = peer(flood.server, b"here", &mac(1), b"there");
    flood.net.hosts[0].call(1, Op::PEER, 13, &body);
    flood.run_ms(1003);
    flood.net.hosts[0].expect_connected(1, 13);
    flood.end();
}
