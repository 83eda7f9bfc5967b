//! Hosts on one link, in virtual time: a world for each, and frames between them that are lost, duplicated or
//! reordered at random.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use kagent::Census;
use kagent_proto::*;

use crate::world::*;
use vipl_sys::random::Random;

/// The interface of every host.
pub const LINK: u32 = 7;
const US: u64 = 1000;

pub fn mac(host: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, 1 + host as u8]
}

/// A frame in transit.
struct Flying {
    to: usize,
    from: usize,
    to_all: bool,
    bytes: Vec<u8>,
}

pub struct Net {
    pub hosts: Vec<World>,
    pub now: u64,
    pub random: Random,
    /// Percentage of lost frames.
    pub lost: u64,
    /// Percentage of duplicated frames.
    pub twice: u64,
    /// Maximum transit time of a frame, in microseconds.
    pub late_us: u64,
    /// Disconnected hosts.
    pub cut: Vec<bool>,
    /// Frames sent so far.
    pub sent: u64,
    wire: BTreeMap<(u64, u64), Flying>,
}

impl Net {
    /// Hosts with this number of greeted processes each, on a link without loss.
    pub fn new(hosts: usize, clients: u64) -> Self {
        let hosts: Vec<World> = (0..hosts)
            .map(|host| {
                let mut world = World::seeded(host as u8 + 1);
                for client in 1..=clients {
                    world.connect(client, 1000);
                    world.hello(client);
                }
                world.plug_in("eth0", LINK, mac(host));
                world
            })
            .collect();
        Net {
            now: 5 * MS,
            cut: vec![false; hosts.len()],
            hosts,
            random: Random::new(1),
            lost: 0,
            twice: 0,
            late_us: 100,
            sent: 0,
            wire: BTreeMap::new(),
        }
    }

    /// Transmits the frames sent by the hosts.
    fn collect(&mut self) {
        for from in 0..self.hosts.len() {
            while let Some(frame) = self.hosts[from].frames.pop_front() {
                assert_eq!(frame.link, LINK);
                let to_all = frame.to.bytes() == [0xFF; 6];
                assert!(to_all || frame.to.bytes()[0] & 1 == 0, "a frame to a group");
                for to in 0..self.hosts.len() {
                    if to != from && (to_all || mac(to) == frame.to.bytes()) {
                        self.fly(from, to, to_all, &frame.bytes);
                    }
                }
            }
        }
    }

    fn fly(&mut self, from: usize, to: usize, to_all: bool, bytes: &[u8]) {
        let copies = 1 + u64::from(self.random.below(100) < self.twice);
        for _ in 0..copies {
            self.sent += 1;
            if self.random.below(100) < self.lost || self.cut[from] || self.cut[to] {
                continue;
            }
            let at = self.now + US * (1 + self.random.below(self.late_us));
            let bytes = bytes.to_vec();
            self.wire.insert(
                (at, self.sent),
                Flying {
                    to,
                    from,
                    to_all,
                    bytes,
                },
            );
        }
    }

    /// The time of the next event.
    fn next(&self) -> Option<u64> {
        let timers = self
            .hosts
            .iter()
            .filter_map(|host| host.agent.poll_timeout());
        let frames = self.wire.first_key_value().map(|(&(at, _), _)| at);
        timers.chain(frames).min()
    }

    /// Advances time.
    pub fn run_ms(&mut self, ms: u64) {
        let end = self.now + ms * MS;
        loop {
            self.collect();
            let Some(next) = self.next().filter(|&next| next <= end) else {
                break;
            };
            self.set_now(self.now.max(next));
            for host in &mut self.hosts {
                host.agent.handle_timeout(host.now);
                host.pump();
            }
            while let Some(first) = self
                .wire
                .first_entry()
                .filter(|first| first.key().0 <= self.now)
            {
                let flying = first.remove();
                if self.cut[flying.to] {
                    continue;
                }
                let host = &mut self.hosts[flying.to];
                let from = mac(flying.from);
                let taken = host.agent.handle_frame(
                    host.now,
                    LINK,
                    from.into(),
                    flying.to_all,
                    &flying.bytes,
                );
                assert_eq!(taken, Ok(()));
                host.pump();
            }
        }
        self.set_now(end);
    }

    fn set_now(&mut self, now: u64) {
        self.now = now;
        for host in &mut self.hosts {
            host.now = now;
        }
    }

    /// Opens a NIC on the link.
    pub fn open(&mut self, host: usize, client: u64) -> (u64, u16) {
        self.hosts[host].open_on(client, "eth0")
    }

    /// All processes exit, and their remaining state expires.
    pub fn end(mut self) {
        for host in &mut self.hosts {
            let clients: Vec<u64> = host.inbox.keys().copied().collect();
            for client in clients {
                host.hangup(client);
            }
        }
        self.run_ms(20_000);
        for host in &mut self.hosts {
            assert_eq!(host.agent.census(), Census::default());
            assert_eq!(host.agent.poll_timeout(), None);
            assert!(host.agent.poll_output().is_none());
        }
    }
}

/// A request to a server on a remote host.
pub fn ask(nic: u64, host: usize, name: &[u8]) -> Request {
    request(nic, &mac(host), name)
}
