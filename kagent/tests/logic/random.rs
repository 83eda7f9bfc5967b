//! Random processes of two users do random things, right and wrong, to one agent. Whatever happens:
//! each call has exactly one reply, no process learns of another user, and nothing is left behind.

use std::collections::{BTreeMap, BTreeSet};

use crate::world::*;
use kagent::Census;
use kagent_proto::*;
use vipl_sys::random::Random;
use zerocopy::{Immutable, IntoBytes};

const SEEDS: u64 = 200;
const STEPS: usize = 1500;

/// The state of a process.
#[derive(Default)]
struct Process {
    uid: u32,
    nics: Vec<u64>,
    /// Ids without a reply.
    open: BTreeSet<u64>,
    /// Identifiers from INCOMING and CONNECTED, valid or not.
    names: Vec<u64>,
    /// Open connections that have not lost their peer.
    connected: BTreeSet<u64>,
}

struct Chaos {
    world: World,
    random: Random,
    processes: BTreeMap<u64, Process>,
    last_client: u64,
    last_id: u64,
}

impl Chaos {
    fn call<T: IntoBytes + Immutable>(&mut self, client: u64, op: Op, body: &T) -> u64 {
        self.last_id += 1;
        let mut bytes = packet(op, self.last_id, body);
        // Sometimes a byte is damaged, but never in the id or in the part that identifies the user.
        if self.random.below(12) == 0 {
            let at = self.random.below(bytes.len() as u64) as usize;
            if !(16..24).contains(&at) && !(64..72).contains(&at) {
                bytes[at] = self.random.below(256) as u8;
            }
        }
        let fds = (0..self.random.below(4)).map(|fd| fd as u32).collect();
        let fds = if op == Op::NIC_OPEN || self.random.below(20) == 0 {
            fds
        } else {
            Vec::new()
        };
        self.processes
            .get_mut(&client)
            .unwrap()
            .open
            .insert(self.last_id);
        self.world.raw(client, &bytes, fds);
        self.last_id
    }

    fn arrive(&mut self) {
        self.last_client += 1;
        let uid = 1000 + self.random.below(2) as u32;
        self.world.connect(self.last_client, uid);
        self.processes.insert(
            self.last_client,
            Process {
                uid,
                ..Default::default()
            },
        );
        self.call(self.last_client, Op::HELLO, &Hello { features: 0 });
    }

    fn leave(&mut self, client: u64) {
        self.processes.remove(&client);
        self.world.hangup(client);
    }

    fn wild_request(&mut self, client: u64) -> Request {
        let process = &self.processes[&client];
        let nic = self.random.pick(&process.nics).unwrap_or(1);
        let uid = process.uid;
        let places: [&[u8]; 3] = [b"a", b"b", b"c"];
        let host = places[self.random.below(3) as usize];
        let (near, far) = (
            places[self.random.below(2) as usize],
            places[self.random.below(2) as usize],
        );
        let mut body = peer(nic, near, host, far);
        // The size identifies the user, so that messages of another user are detected.
        body.attributes.max_transfer_size = u64::from(uid);
        body.attributes.reliability = 1 << (self.random.below(8) / 7);
        body.timeout_ms = self.random.below(60);
        body.grace_ms = self.random.below(2) * self.random.below(60);
        body.segment_bytes = self.random.below(20_000) as u32;
        body
    }

    fn step(&mut self) {
        let clients: Vec<u64> = self.processes.keys().copied().collect();
        let Some(client) = self.random.pick(&clients) else {
            return self.arrive();
        };
        let names = self.processes[&client].names.clone();
        // Usually a new identifier, otherwise most calls would fail.
        let fresh = names
            .len()
            .saturating_sub(1 + self.random.below(3) as usize);
        let name = self.random.pick(&names[fresh..]).unwrap_or(1);
        let nics = self.processes[&client].nics.clone();
        let nic = self.random.pick(&nics).unwrap_or(1);
        match self.random.below(32) {
            0 if clients.len() < 8 => self.arrive(),
            1 if self.random.below(4) == 0 => self.leave(client),
            2 if self.random.below(9) == 0 && !nics.is_empty() => {
                self.world.goodbye(client);
                self.collect();
                self.leave(client);
            }
            3..5 => drop(self.call(client, Op::NIC_OPEN, &nic_open("p", b"a"))),
            5 => drop(self.call(client, Op::NIC_OPEN, &nic_open("p", b"b"))),
            6 if self.random.below(4) == 0 => {
                self.call(client, Op::NIC_CLOSE, &NicClose { nic });
            }
            7..13 => {
                let disc: &[u8] = if self.random.below(2) == 0 {
                    b"a"
                } else {
                    b"b"
                };
                let timeout_ms = self.random.below(80);
                self.call(client, Op::WAIT, &wait(nic, disc, timeout_ms));
            }
            13..19 => {
                let body = self.wild_request(client);
                self.call(client, Op::REQUEST, &body);
            }
            19..23 => {
                let body = self.wild_request(client);
                self.call(client, Op::PEER, &body);
            }
            23..26 => {
                let attributes = self.wild_request(client).attributes;
                self.call(
                    client,
                    Op::ACCEPT,
                    &Accept {
                        attributes,
                        ..accept(name)
                    },
                );
            }
            26 => drop(self.call(client, Op::REJECT, &ConnectionRef { connection: name })),
            27 => {
                self.processes
                    .get_mut(&client)
                    .unwrap()
                    .connected
                    .remove(&name);
                self.call(client, Op::DISCONNECT, &ConnectionRef { connection: name });
            }
            28 => {
                let open: Vec<u64> = self.processes[&client].open.iter().copied().collect();
                let call = self.random.pick(&open).unwrap_or(0);
                self.call(client, Op::CANCEL, &Cancel { call });
            }
            29 => drop(self.call(client, Op::NEIGHBOURS, &Neighbours { nic })),
            30 => self.world.no_segments = self.random.below(10) == 0,
            _ => {
                let ms = self.random.below(15);
                self.world.sleep_ms(ms);
            }
        }
    }

    /// Reads all replies and checks each packet against what its receiver may know.
    fn collect(&mut self) {
        let clients: Vec<u64> = self.processes.keys().copied().collect();
        for client in clients {
            while let Some(packet) = self.world.inbox.get_mut(&client).unwrap().pop_front() {
                self.check(client, &packet);
            }
        }
        let open: usize = self
            .processes
            .values()
            .map(|process| process.open.len())
            .sum();
        assert_eq!(
            self.world.agent.census().calls,
            open,
            "calls lost or answered twice"
        );
        assert!(
            self.world.agent.census().queued <= open,
            "a queue remembers the dead"
        );
    }

    fn check(&mut self, client: u64, packet: &Packet) {
        let process = self.processes.get_mut(&client).unwrap();
        if packet.op == Op::PEER_GONE {
            assert_eq!(packet.id, 0);
            let gone: PeerGone = packet.body();
            // Reported once, unless this side disconnected at the same time.
            let known = process.connected.remove(&gone.connection);
            assert!(known || process.names.contains(&gone.connection));
            return;
        }
        assert!(
            process.open.remove(&packet.id),
            "a second reply: {packet:?}"
        );
        match packet.op {
            Op::NIC_OPENED => process.nics.push(packet.body::<NicOpened>().nic),
            Op::INCOMING => {
                let incoming: Incoming = packet.body();
                assert_eq!(incoming.attributes.max_transfer_size as u32, process.uid);
                assert!(!process.names.contains(&incoming.connection));
                process.names.push(incoming.connection);
            }
            Op::CONNECTED => {
                let connected: Connected = packet.body();
                let peer = u64::from(connected.peer_pid) - 100;
                process.names.push(connected.connection);
                assert!(process.connected.insert(connected.connection));
                assert_eq!(packet.fds[0], 1_000_000 + self.world.segments);
                let uid = process.uid;
                if let Some(peer) = self.processes.get(&peer) {
                    assert_eq!(peer.uid, uid, "a peer of another user");
                }
            }
            _ => assert!(packet.op == Op::DONE || packet.body.len() > 8),
        }
    }
}

#[test]
fn chaos_leaves_nothing_behind() {
    let mut connected = 0;
    for seed in 0..SEEDS {
        let mut chaos = Chaos {
            world: World::new(),
            random: Random::new(seed),
            processes: BTreeMap::new(),
            last_client: 0,
            last_id: 0,
        };
        for _ in 0..STEPS {
            chaos.step();
            chaos.collect();
        }
        connected += chaos.world.segments;
        // Waiting calls have a deadline, unless a damaged byte made it very late.
        chaos.world.sleep_ms(1000);
        chaos.collect();
        for client in chaos.processes.keys().copied().collect::<Vec<_>>() {
            chaos.leave(client);
            chaos.collect();
        }
        assert_eq!(chaos.world.agent.census(), Census::default(), "seed {seed}");
        assert_eq!(chaos.world.agent.poll_timeout(), None);
        assert!(chaos.world.agent.poll_output().is_none());
    }
    assert!(
        connected > 1000,
        "the random hardly ever connect: {connected}"
    );
}

#[test]
fn noise_is_answered_and_forgotten() {
    let mut random = Random::new(99);
    let mut world = World::with_clients(2);
    let (a, b) = (world.open(1), world.open(2));
    for _ in 0..20_000 {
        let len = random.below(600) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
        if len >= 24 && random.below(2) == 0 {
            // A valid frame with a random body.
            bytes[..4].copy_from_slice(&MAGIC.to_ne_bytes());
            bytes[4..6].copy_from_slice(&VERSION.to_ne_bytes());
            bytes[6..8].copy_from_slice(&(random.below(22) as u16).to_ne_bytes());
            bytes[8..12].copy_from_slice(&(len as u32 - 24).to_ne_bytes());
        }
        world.raw(1, &bytes, Vec::new());
        assert!(world.inbox[&1].len() <= 1);
        world.inbox.get_mut(&1).unwrap().clear();
        assert!(world.inbox[&2].is_empty());
    }
    world.pair((1, a), (2, b));
    world.end();
}
