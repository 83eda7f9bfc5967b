//! Random processes on three hosts, on a link that loses, duplicates and reorders frames and is sometimes
//! cut. Whatever happens: each call has exactly one reply, no side stays connected whose peer is not, and
//! nothing is left behind.

use std::collections::BTreeMap;

use crate::net::*;
use crate::world::*;
use kagent_proto::setup::{FRAME_MAX, Frame};
use kagent_proto::*;
use vipl_sys::random::Random;
use zerocopy::{Immutable, IntoBytes};

const SEEDS: u64 = 80;
const STEPS: usize = 1000;
const HOSTS: usize = 3;

/// The state of one side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its process must confirm, or has done so.
    Attached,
    Connected,
    /// The agent reported that there is no connection, or that the peer has disconnected; or this side
    /// disconnected.
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    nic: u64,
    key: u64,
    side: u32,
    /// The id of CONFIRM.
    confirm: Option<u64>,
}

#[derive(Default)]
struct Process {
    nics: Vec<u64>,
    /// Calls without a reply, and the NIC of each.
    open: BTreeMap<u64, u64>,
    /// Requests to be answered, and their NIC.
    offers: Vec<(u64, u64)>,
    names: BTreeMap<u64, Held>,
}

struct Chaos {
    net: Net,
    processes: BTreeMap<(usize, u64), Process>,
    /// Both sides of each connection, by key.
    fates: BTreeMap<(u64, u32), Fate>,
    last_client: u64,
    last_id: u64,
    connected: u64,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut net = Net::new(HOSTS, 0);
        net.random = Random::new(seed);
        net.lost = seed % 4 * 10;
        net.twice = seed % 3 * 20;
        net.late_us = [50, 2_000, 60_000][(seed % 3) as usize];
        Chaos {
            net,
            processes: BTreeMap::new(),
            fates: BTreeMap::new(),
            last_client: 0,
            last_id: 100,
            connected: 0,
        }
    }

    fn below(&mut self, sides: u64) -> u64 {
        self.net.random.below(sides)
    }

    fn arrive(&mut self, host: usize) {
        self.last_client += 1;
        let client = self.last_client;
        self.net.hosts[host].connect(client, 1000);
        self.net.hosts[host].hello(client);
        let (nic, _) = self.net.open(host, client);
        let nics = vec![nic];
        self.processes.insert(
            (host, client),
            Process {
                nics,
                ..Default::default()
            },
        );
    }

    fn call<T: IntoBytes + Immutable>(
        &mut self,
        who: (usize, u64),
        nic: u64,
        op: Op,
        body: &T,
    ) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.processes.get_mut(&who).unwrap().open.insert(id, nic);
        self.net.hosts[who.0].call(who.1, op, id, body);
        self.collect(who.0);
        id
    }

    fn leave(&mut self, who: (usize, u64)) {
        if self.below(2) == 0 {
            self.net.hosts[who.0].goodbye(who.1);
        }
        self.collect(who.0);
        for held in self.processes.remove(&who).unwrap().names.into_values() {
            self.fates.insert((held.key, held.side), Fate::Over);
        }
        self.net.hosts[who.0].hangup(who.1);
    }

    fn wild_request(&mut self, nic: u64) -> Request {
        let names: [&[u8]; 2] = [b"a", b"b"];
        let host = self.below(HOSTS as u64) as usize;
        let (near, far) = (names[self.below(2) as usize], names[self.below(2) as usize]);
        let mut body = peer(nic, near, &mac(host), far);
        body.attributes.reliability = 1 << (self.below(10) / 9);
        body.timeout_ms = 1 + self.below(2500);
        body.grace_ms = self.below(2) * self.below(300);
        body
    }

    fn step(&mut self) {
        let everybody: Vec<(usize, u64)> = self.processes.keys().copied().collect();
        let host = self.below(HOSTS as u64) as usize;
        if everybody.len() < 9 && self.below(6) == 0 {
            return self.arrive(host);
        }
        let Some(who) = self.net.random.pick(&everybody) else {
            return self.arrive(host);
        };
        let process = &self.processes[&who];
        let (nics, offers) = (process.nics.clone(), process.offers.clone());
        let names: Vec<(u64, Held)> = process.names.iter().map(|(n, h)| (*n, *h)).collect();
        let Some(nic) = self.net.random.pick(&nics) else {
            return self.leave(who);
        };
        match self.below(40) {
            0 => self.leave(who),
            1 => {
                self.processes
                    .get_mut(&who)
                    .unwrap()
                    .nics
                    .retain(|known| *known != nic);
                for (name, held) in names.into_iter().filter(|(_, held)| held.nic == nic) {
                    self.processes.get_mut(&who).unwrap().names.remove(&name);
                    self.fates.insert((held.key, held.side), Fate::Over);
                }
                self.processes
                    .get_mut(&who)
                    .unwrap()
                    .offers
                    .retain(|(_, of)| *of != nic);
                self.call(who, nic, Op::NIC_CLOSE, &NicClose { nic });
            }
            2..10 => {
                let name: &[u8] = if self.below(2) == 0 { b"a" } else { b"b" };
                let timeout_ms = self.below(2000);
                self.call(who, nic, Op::WAIT, &wait(nic, name, timeout_ms));
            }
            10..18 => {
                let body = self.wild_request(nic);
                self.call(who, nic, Op::REQUEST, &body);
            }
            18..23 => {
                let body = self.wild_request(nic);
                self.call(who, nic, Op::PEER, &body);
            }
            23..28 => {
                if let Some((offer, nic)) = self.net.random.pick(&offers) {
                    let reliability = 1 << (self.below(10) / 9);
                    let attributes = Attributes {
                        reliability,
                        ..attributes()
                    };
                    self.call(
                        who,
                        nic,
                        Op::ACCEPT,
                        &Accept {
                            attributes,
                            ..accept(offer)
                        },
                    );
                }
            }
            28 => {
                if let Some((connection, nic)) = self.net.random.pick(&offers) {
                    self.processes
                        .get_mut(&who)
                        .unwrap()
                        .offers
                        .retain(|(o, _)| *o != connection);
                    self.call(who, nic, Op::REJECT, &ConnectionRef { connection });
                }
            }
            29..34 => self.confirm_all(who),
            34..36 => {
                if let Some((connection, held)) = self.net.random.pick(&names) {
                    self.processes
                        .get_mut(&who)
                        .unwrap()
                        .names
                        .remove(&connection);
                    self.fates.insert((held.key, held.side), Fate::Over);
                    self.call(who, held.nic, Op::DISCONNECT, &ConnectionRef { connection });
                }
            }
            36 => {
                let open: Vec<u64> = self.processes[&who].open.keys().copied().collect();
                let call = self.net.random.pick(&open).unwrap_or(0);
                self.call(who, nic, Op::CANCEL, &Cancel { call });
            }
            37 => drop(self.call(who, nic, Op::NEIGHBOURS, &Neighbours { nic })),
            38 => self.net.cut[host] = self.below(3) == 0,
            _ => {
                let ms = self.below(200);
                self.net.run_ms(ms);
            }
        }
        let ms = self.below(8);
        self.net.run_ms(ms);
    }

    fn confirm_all(&mut self, who: (usize, u64)) {
        let names: Vec<(u64, Held)> = self.processes[&who]
            .names
            .iter()
            .map(|(n, h)| (*n, *h))
            .collect();
        for (connection, held) in names {
            if held.confirm.is_none() && self.fates[&(held.key, held.side)] == Fate::Attached {
                let confirm = Some(self.last_id + 1);
                self.processes
                    .get_mut(&who)
                    .unwrap()
                    .names
                    .insert(connection, Held { confirm, ..held });
                self.call(who, held.nic, Op::CONFIRM, &ConnectionRef { connection });
            }
        }
    }

    fn collect(&mut self, host: usize) {
        let here: Vec<(usize, u64)> = self
            .processes
            .keys()
            .copied()
            .filter(|who| who.0 == host)
            .collect();
        for who in here {
            while let Some(packet) = self.net.hosts[host]
                .inbox
                .get_mut(&who.1)
                .unwrap()
                .pop_front()
            {
                self.check(who, &packet);
            }
        }
    }

    fn check(&mut self, who: (usize, u64), packet: &Packet) {
        let process = self.processes.get_mut(&who).unwrap();
        if packet.op == Op::PEER_GONE {
            // The end of a side that has just disconnected may still be reported.
            if let Some(held) = process.names.get(&packet.body::<PeerGone>().connection) {
                let fate = self.fates.insert((held.key, held.side), Fate::Over);
                assert_eq!(
                    fate,
                    Some(Fate::Connected),
                    "reported twice, or before it was connected"
                );
            }
            return;
        }
        let nic = process.open.remove(&packet.id).expect("a second reply");
        match packet.op {
            Op::INCOMING => process
                .offers
                .push((packet.body::<Incoming>().connection, nic)),
            Op::CONNECTED => {
                let connected: Connected = packet.body();
                process
                    .offers
                    .retain(|(offer, _)| *offer != connected.connection);
                let (key, side) = (connected.key, connected.side);
                process.names.insert(
                    connected.connection,
                    Held {
                        nic,
                        key,
                        side,
                        confirm: None,
                    },
                );
                let fate = if connected.remote == 0 {
                    Fate::Connected
                } else {
                    Fate::Attached
                };
                self.connected += u64::from(connected.remote == 0);
                assert_eq!(
                    self.fates.insert((key, side), fate),
                    None,
                    "a key comes twice"
                );
            }
            Op::DONE => {
                let confirmed = process
                    .names
                    .iter()
                    .find(|(_, held)| held.confirm == Some(packet.id));
                if let Some((&name, &held)) = confirmed {
                    let fine = packet.status == Status::OK;
                    let fate = if fine { Fate::Connected } else { Fate::Over };
                    self.fates.insert((held.key, held.side), fate);
                    self.connected += u64::from(fine);
                    if !fine {
                        process.names.remove(&name);
                    }
                }
            }
            _ => {}
        }
    }

    fn collect_all(&mut self) {
        for host in 0..HOSTS {
            self.collect(host);
        }
    }

    /// No frame is lost any more, and processes confirm pending connections.
    fn settle(&mut self) {
        self.net.lost = 0;
        self.net.cut = vec![false; HOSTS];
        for _ in 0..8 {
            self.collect_all();
            for who in self.processes.keys().copied().collect::<Vec<_>>() {
                self.confirm_all(who);
            }
            self.net.run_ms(6000);
        }
        self.collect_all();
    }
}

#[test]
fn chaos_between_hosts_ends_in_agreement() {
    let (mut connected, mut frames) = (0, 0);
    for seed in 0..SEEDS {
        let mut chaos = Chaos::new(seed);
        for step in 0..STEPS {
            chaos.step();
            chaos.collect_all();
            for host in chaos.net.hosts.iter().filter(|_| step % 8 == 0) {
                assert_eq!(host.agent.audit(), Ok(()), "seed {seed}");
            }
        }
        chaos.settle();
        for ((host, client), process) in &chaos.processes {
            assert!(
                process.open.is_empty(),
                "seed {seed}: process {client} of host {host}: {:?}",
                process.open
            );
        }
        for ((key, side), fate) in &chaos.fates {
            let other = chaos.fates.get(&(*key, 1 - side));
            let alone = *fate != Fate::Over && other != Some(&Fate::Connected);
            assert!(
                !alone,
                "seed {seed}: side {side} is {fate:?}, the other one {other:?}"
            );
        }
        connected += chaos.connected;
        frames += chaos.net.sent;
        chaos.net.end();
    }
    println!("{connected} sides connected, {frames} frames");
    assert!(
        connected > 20 * SEEDS,
        "the random hardly ever connect: {connected}"
    );
}

/// Other hosts send noise, damaged frames, frames of other versions, and well-formed ones without meaning.
#[test]
fn strangers_are_answered_little_and_remembered_less() {
    let mut random = Random::new(7);
    let mut net = Net::new(2, 1);
    let server = net.open(0, 1).0;
    let client = net.open(1, 1).0;
    // Well-formed frames of all kinds, as two hosts send them.
    net.hosts[0].wait(1, server, 10, b"d", FOREVER);
    net.hosts[1].request(
        1,
        11,
        &Request {
            grace_ms: 50,
            ..ask(client, 0, b"d")
        },
    );
    net.hosts[1].call(1, Op::PEER, 12, &peer(client, b"x", &mac(0), b"y"));
    net.hosts[1].call(1, Op::NEIGHBOURS, 13, &Neighbours { nic: client });
    let mut samples: Vec<Vec<u8>> = net.hosts[1]
        .frames
        .drain(..)
        .map(|frame| frame.bytes)
        .collect();
    for exchange in [1, 2] {
        for body in [
            kagent_proto::setup::Body::Ack,
            kagent_proto::setup::Body::Here,
            kagent_proto::setup::Body::Gone {
                from: kagent_proto::setup::Side::Asker,
            },
            kagent_proto::setup::Body::Disconnect {
                from: kagent_proto::setup::Side::Answerer,
                orderly: true,
            },
            kagent_proto::setup::Body::Answer(kagent_proto::setup::Answer::Held),
        ] {
            let mut room = [0; FRAME_MAX];
            let length = Frame { exchange, body }.emit(&mut room);
            samples.push(room[..length].to_vec());
        }
    }
    let host = &mut net.hosts[0];
    for round in 0..60_000 {
        let mut bytes = samples[random.below(samples.len() as u64) as usize].clone();
        match random.below(4) {
            0 => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            1 => bytes.truncate(random.below(bytes.len() as u64) as usize),
            2 => {
                bytes = (0..random.below(200))
                    .map(|_| random.below(256) as u8)
                    .collect()
            }
            // Well-formed, and another exchange each time.
            _ => {
                let mut frame = Frame::parse(&bytes).unwrap();
                frame.exchange = random.below(u64::MAX);
                let mut room = [0; FRAME_MAX];
                let length = frame.emit(&mut room);
                bytes = room[..length].to_vec();
            }
        }
        let stranger = [2, 9, 9, 9, random.below(256) as u8, random.below(256) as u8];
        // Due deadlines are independent of this frame: each call is answered once more when it ends.
        host.now += 1000;
        host.agent.handle_timeout(host.now);
        host.pump();
        host.frames.clear();
        let before: usize = host.frames.iter().map(|frame| frame.bytes.len()).sum();
        let _ = host.agent.handle_frame(
            host.now,
            LINK,
            stranger.into(),
            random.below(9) == 0,
            &bytes,
        );
        host.pump();
        let after: usize = host.frames.iter().map(|frame| frame.bytes.len()).sum();
        assert!(
            after - before <= bytes.len() * 2,
            "round {round}: {before} to {after} for {}",
            bytes.len()
        );
        host.frames.clear();
        let census = host.agent.census();
        if round % 100 == 0 {
            assert_eq!(host.agent.audit(), Ok(()), "round {round}");
        }
        assert!(
            census.exchanges <= kagent::budgets::EXCHANGES_PER_LINK_MAX,
            "{census:?}"
        );
    }
    // No process is affected by it.
    host.inbox.get_mut(&1).unwrap().clear();
    net.now = net.hosts[0].now;
    net.run_ms(60_000);
    net.hosts[0].inbox.get_mut(&1).unwrap().clear();
    net.hosts[1].inbox.get_mut(&1).unwrap().clear();
    net.hosts[0].wait(1, server, 20, b"again", FOREVER);
    net.hosts[1].request(1, 21, &ask(client, 0, b"again"));
    net.run_ms(10);
    net.hosts[0].expect_incoming(1, 20);
    net.end();
}
