//! The agent's logic under packets of processes that are right, wrong or mad. Whatever they send: no process
//! gets more than one reply to a call or messages of another user, tables keep their bounds, and when the
//! processes have gone nothing is left.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use kagent::{Census, budgets};
use kagent_proto::*;
use libfuzzer_sys::fuzz_target;
use vipl_fuzz::input::Input;
use zerocopy::{Immutable, IntoBytes};

#[path = "../../../kagent/tests/bodies/mod.rs"]
mod bodies;
#[path = "../../../kagent/tests/logic/world.rs"]
mod world;
use world::{World, accept, nic_open, packet, peer, wait};

/// What a process knows.
#[derive(Default)]
struct Process {
    uid: u32,
    nics: Vec<u64>,
    open: BTreeSet<u64>,
    names: Vec<u64>,
}

struct Game<'a> {
    input: Input<'a>,
    world: World,
    processes: BTreeMap<u64, Process>,
    last_client: u64,
    last_id: u64,
}

impl Game<'_> {
    fn arrive(&mut self) {
        self.last_client += 1;
        let uid = 1000 + self.input.below(2);
        self.world.connect(self.last_client, uid);
        self.processes.insert(
            self.last_client,
            Process {
                uid,
                ..Process::default()
            },
        );
        if self.input.below(8) != 0 {
            self.call(self.last_client, Op::HELLO, &Hello { features: 0 });
        }
    }

    fn leave(&mut self, client: u64) {
        self.processes.remove(&client);
        self.world.hangup(client);
    }

    /// One packet; now and then some bytes of it go wrong, but never in the id.
    fn call<T: IntoBytes + Immutable>(&mut self, client: u64, op: Op, body: &T) {
        self.last_id += 1;
        let mut bytes = packet(op, self.last_id, body);
        let damage = self.input.u8();
        for _ in 0..damage.saturating_sub(250) {
            let at = self.input.below(bytes.len() as u32) as usize;
            // Neither in the size, which tells the user here.
            if !(16..24).contains(&at) && !(64..72).contains(&at) {
                bytes[at] = self.input.u8();
            }
        }
        if damage == 249 {
            bytes.truncate((self.input.below(bytes.len() as u32) as usize).max(24));
        }
        let fds = self.input.below(if op == Op::NIC_OPEN {
            4
        } else {
            1 + u32::from(damage == 248)
        });
        // GOODBYE alone has no answer, if it is well-formed.
        if bytes.len() > 24 || bytes[6..8] != Op::GOODBYE.0.to_ne_bytes() {
            self.processes
                .get_mut(&client)
                .expect("known")
                .open
                .insert(self.last_id);
            self.world.raw(client, &bytes, (0..fds).collect());
        }
    }

    fn step(&mut self) {
        let clients: Vec<u64> = self.processes.keys().copied().collect();
        let Some(&client) = clients.get(self.input.below(clients.len().max(1) as u32) as usize)
        else {
            return self.arrive();
        };
        let pick = |input: &mut Input<'_>, list: &[u64]| {
            // Mostly the freshest, or there would be little but errors.
            let back = input.below(4) as usize;
            list.len()
                .checked_sub(1 + back)
                .map_or(u64::from(input.u8()), |at| list[at])
        };
        let (names, nics) = (
            self.processes[&client].names.clone(),
            self.processes[&client].nics.clone(),
        );
        let name = pick(&mut self.input, &names);
        let nic = pick(&mut self.input, &nics);
        let places: [&[u8]; 3] = [b"a", b"b", b"c"];
        let place = |input: &mut Input<'_>| places[input.below(3) as usize];
        let (near, host, far) = (
            place(&mut self.input),
            place(&mut self.input),
            place(&mut self.input),
        );
        let mut request = peer(nic, near, host, far);
        request.attributes.max_transfer_size = u64::from(self.processes[&client].uid);
        request.attributes.reliability = 1 << (self.input.below(8) / 7);
        request.timeout_ms = match self.input.u8() {
            255 => u64::MAX,
            254 => self.input.u64(),
            short => u64::from(short),
        };
        request.grace_ms = u64::from(self.input.u8() / 4);
        request.segment_bytes = self.input.odd_u32();
        match self.input.below(24) {
            0..=1 if clients.len() < 6 => self.arrive(),
            2 if self.input.below(4) == 0 => self.leave(client),
            3 if self.input.below(8) == 0 => {
                self.last_id += 1;
                let id = self.last_id;
                self.world.call(client, Op::GOODBYE, id, &());
                // A client that was not greeted receives an error; others receive no answer.
                let inbox = self.world.inbox.get_mut(&client).expect("known");
                inbox.retain(|packet| packet.id != id || packet.status != Status::INVALID);
                self.collect();
                self.leave(client);
            }
            4..=6 => self.call(client, Op::NIC_OPEN, &nic_open("p", host)),
            7 if self.input.below(4) == 0 => self.call(client, Op::NIC_CLOSE, &NicClose { nic }),
            8..=10 => self.call(client, Op::WAIT, &wait(nic, near, request.timeout_ms)),
            11..=13 => self.call(client, Op::REQUEST, &request),
            14..=15 => self.call(client, Op::PEER, &request),
            16..=17 => {
                let attributes = request.attributes;
                self.call(
                    client,
                    Op::ACCEPT,
                    &Accept {
                        attributes,
                        ..accept(name)
                    },
                );
            }
            18 => self.call(client, Op::REJECT, &ConnectionRef { connection: name }),
            19 => self.call(client, Op::DISCONNECT, &ConnectionRef { connection: name }),
            20 => {
                let open: Vec<u64> = self.processes[&client].open.iter().copied().collect();
                let call = pick(&mut self.input, &open);
                self.call(client, Op::CANCEL, &Cancel { call });
            }
            21 => self.call(client, Op::NEIGHBOURS, &Neighbours { nic }),
            22 => self.world.no_segments = self.input.below(8) == 0,
            _ => {
                let ms = u64::from(self.input.u8());
                self.world.sleep_ms(ms);
            }
        }
    }

    /// Reads all messages.
    fn collect(&mut self) {
        let clients: Vec<u64> = self.processes.keys().copied().collect();
        for client in clients {
            while let Some(packet) = self.world.inbox.get_mut(&client).expect("known").pop_front() {
                let process = self.processes.get_mut(&client).expect("known");
                if packet.op == Op::PEER_GONE {
                    assert_eq!(packet.id, 0);
                    let gone: PeerGone = packet.body();
                    assert!(process.names.contains(&gone.connection));
                    continue;
                }
                assert!(
                    process.open.remove(&packet.id),
                    "a second reply, or one nobody asked for: {packet:?}"
                );
                match packet.op {
                    Op::NIC_OPENED => process.nics.push(packet.body::<NicOpened>().nic),
                    Op::INCOMING => {
                        let incoming: Incoming = packet.body();
                        assert_eq!(
                            incoming.attributes.max_transfer_size as u32, process.uid,
                            "another user"
                        );
                        process.names.push(incoming.connection);
                    }
                    Op::CONNECTED => process.names.push(packet.body::<Connected>().connection),
                    _ => {}
                }
            }
        }
        let census = self.world.agent.census();
        let open: usize = self
            .processes
            .values()
            .map(|process| process.open.len())
            .sum();
        assert_eq!(census.calls, open, "calls lost or answered twice");
        assert!(census.queued <= open && census.clients == self.processes.len());
        assert!(census.nics <= self.processes.len() * budgets::NICS_PER_CLIENT_MAX);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    if input.below(8) == 0 {
        return noise(&mut input);
    }
    let mut game = Game {
        input,
        world: World::new(),
        processes: BTreeMap::new(),
        last_client: 0,
        last_id: 0,
    };
    while !game.input.is_empty() {
        game.step();
        game.collect();
    }
    for client in game.processes.keys().copied().collect::<Vec<_>>() {
        game.leave(client);
        game.collect();
    }
    assert_eq!(game.world.agent.census(), Census::default());
    assert_eq!(game.world.agent.poll_timeout(), None);
    assert!(game.world.agent.poll_output().is_none());
});

/// Bytes of any kind as one packet after the other: at most one answer each, and no harm to a neighbour.
fn noise(input: &mut Input<'_>) {
    let mut world = World::with_clients(2);
    let (a, b) = (world.open(1), world.open(2));
    while !input.is_empty() {
        let length = input.u16() % 600;
        let mut bytes = input.take(usize::from(length)).to_vec();
        if bytes.len() >= 24 && input.coin() {
            bytes[..4].copy_from_slice(&MAGIC.to_ne_bytes());
            bytes[4..6].copy_from_slice(&VERSION.to_ne_bytes());
            bytes[6..8].copy_from_slice(&(input.u16() % 14).to_ne_bytes());
            let body = bytes.len() as u32 - 24;
            bytes[8..12].copy_from_slice(&body.to_ne_bytes());
        }
        world.raw(1, &bytes, Vec::new());
        assert!(world.inbox[&1].len() <= 1);
        world.inbox.get_mut(&1).expect("known").clear();
        assert!(world.inbox[&2].is_empty());
    }
    // The neighbour and a third process still find each other.
    world.connect(3, 1000);
    world.hello(3);
    let c = world.open(3);
    let _ = a;
    world.pair((2, b), (3, c));
    world.end();
}
