//! Connections of an agent that has died, handed to the next one by their two sides.

use std::collections::BTreeMap;

use crate::world::*;
use kagent::Census;
use kagent::budgets::ADOPT_TIME_MS;
use kagent_proto::*;
use vipl_sys::random::Random;

const KEY: u64 = 0xfeed;

fn adopt(nic: u64, key: u64, side: u32) -> Adopt {
    Adopt {
        nic,
        key,
        vi: 5,
        side,
        reserved: 0,
        attributes: attributes(),
    }
}

/// Hands over one side; returns the agent's identifier of it.
fn adopted(world: &mut World, client: u64, body: &Adopt) -> u64 {
    world.call(client, Op::ADOPT, 900, body);
    let reply = world.take(client);
    assert_eq!(
        (reply.op, reply.status, reply.id),
        (Op::ADOPTED, Status::OK, 900)
    );
    reply.body::<Adopted>().connection
}

/// Two processes with one side each, the first one's side first.
fn both() -> (World, [u64; 2], [u64; 2]) {
    let mut world = World::with_clients(2);
    let nics = [1, 2].map(|client| world.open(client));
    let names = [1, 0].map(|side| {
        let client = 2 - u64::from(side);
        adopted(
            &mut world,
            client,
            &adopt(nics[client as usize - 1], KEY, side),
        )
    });
    (world, nics, names)
}

#[test]
fn two_sides_find_each_other_and_part_in_good_order() {
    let (mut world, _, [one, two]) = both();
    assert_eq!(world.agent.census().halves, 0);
    world.sleep_ms(2 * ADOPT_TIME_MS);
    world.quiet();
    world.call(1, Op::DISCONNECT, 7, &ConnectionRef { connection: one });
    world.expect_gone(2, two, 1);
    world.expect_done(1, 7, Status::OK);
    world.call(2, Op::DISCONNECT, 7, &ConnectionRef { connection: two });
    world.expect_done(2, 7, Status::OK);
    assert_eq!(world.agent.census().connections, 0);
    world.end();
}

#[test]
fn death_is_reported_to_an_adopted_side() {
    let (mut world, _, [_, two]) = both();
    world.hangup(1);
    world.expect_gone(2, two, 0);
    world.end();
}

#[test]
fn end_of_a_process_in_good_order_is_reported_as_such() {
    let (mut world, _, [one, _]) = both();
    world.goodbye(2);
    world.hangup(2);
    world.expect_gone(1, one, 1);
    world.end();
}

#[test]
fn peer_that_died_meanwhile_is_missed() {
    let mut world = World::with_clients(1);
    let nic = world.open(1);
    let name = adopted(&mut world, 1, &adopt(nic, KEY, 0));
    world.sleep_ms(ADOPT_TIME_MS - 1);
    world.quiet();
    world.sleep_ms(1);
    world.expect_gone(1, name, 0);
    // It may still be adopted, too late: this is reported as well, after the same time.
    world.connect(2, 1000);
    world.hello(2);
    let other = world.open(2);
    let late = adopted(&mut world, 2, &adopt(other, KEY, 1));
    world.sleep_ms(ADOPT_TIME_MS);
    world.expect_gone(2, late, 0);
    world.quiet();
    world.end();
}

#[test]
fn side_that_left_before_its_peer_came_is_remembered() {
    for orderly in [0, 1, 2] {
        let mut world = World::with_clients(2);
        let nics = [1, 2].map(|client| world.open(client));
        let one = adopted(&mut world, 1, &adopt(nics[0], KEY, 0));
        match orderly {
            0 => world.hangup(1),
            1 => {
                world.call(1, Op::DISCONNECT, 7, &ConnectionRef { connection: one });
                world.expect_done(1, 7, Status::OK);
            }
            _ => {
                world.call(1, Op::NIC_CLOSE, 7, &NicClose { nic: nics[0] });
                world.expect_done(1, 7, Status::OK);
            }
        }
        let two = adopted(&mut world, 2, &adopt(nics[1], KEY, 1));
        world.expect_gone(2, two, orderly.min(1));
        world.quiet();
        assert_eq!(world.agent.census().halves, 0);
        world.end();
    }
}

#[test]
fn what_was_remembered_in_vain_is_forgotten() {
    let mut world = World::with_clients(1);
    let nic = world.open(1);
    adopted(&mut world, 1, &adopt(nic, KEY, 0));
    world.hangup(1);
    assert_eq!(world.agent.census().halves, 1);
    world.sleep_ms(ADOPT_TIME_MS);
    world.end();
}

#[test]
fn what_cannot_be_is_refused() {
    let mut world = World::with_clients(2);
    world.connect(3, 1001);
    world.hello(3);
    let nics = [1, 2, 3].map(|client| world.open(client));
    let refused = |world: &mut World, client, body: &Adopt| {
        world.call(client, Op::ADOPT, 9, body);
        world.expect_done(client, 9, Status::INVALID);
    };
    refused(&mut world, 1, &adopt(nics[1], KEY, 0));
    refused(&mut world, 1, &adopt(nics[0], 0, 0));
    refused(&mut world, 1, &adopt(nics[0], KEY, 2));
    let one = adopted(&mut world, 1, &adopt(nics[0], KEY, 0));
    // The same side again, and another VI than the one it was connected with.
    refused(&mut world, 2, &adopt(nics[1], KEY, 0));
    let mut other = adopt(nics[1], KEY, 1);
    other.attributes.reliability = 4;
    refused(&mut world, 2, &other);
    // A side is not a handle, and the key of another user is another key.
    world.accept(1, 9, one);
    world.expect_done(1, 9, Status::INVALID);
    world.call(1, Op::REJECT, 9, &ConnectionRef { connection: one });
    world.expect_done(1, 9, Status::INVALID);
    let stranger = adopted(&mut world, 3, &adopt(nics[2], KEY, 1));
    world.sleep_ms(ADOPT_TIME_MS);
    world.expect_gone(1, one, 0);
    world.expect_gone(3, stranger, 0);
    world.quiet();
    world.end();
}

#[test]
fn both_sides_may_be_in_one_process() {
    let mut world = World::with_clients(1);
    let nic = world.open(1);
    let one = adopted(&mut world, 1, &adopt(nic, KEY, 0));
    let two = adopted(&mut world, 1, &adopt(nic, KEY, 1));
    world.call(1, Op::DISCONNECT, 7, &ConnectionRef { connection: two });
    world.expect_gone(1, one, 1);
    world.expect_done(1, 7, Status::OK);
    world.end();
}

/// Maximum time in which only timers run, in milliseconds.
const SLEEP_MS: u64 = 1500;

/// One side of one connection, and the state of its process.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    process: u64,
    /// The agent's identifier and the time of the adoption, once adopted.
    came: Option<(u64, u64)>,
    /// The time of its disconnect, and whether in good order.
    left: Option<(u64, bool)>,
    /// The report that it received, and the time.
    reported: Option<(u64, bool)>,
}

struct Handover {
    world: World,
    nics: BTreeMap<u64, u64>,
    sides: Vec<[Side; 2]>,
}

impl Handover {
    fn come(&mut self, pair: usize, side: usize) {
        let it = self.sides[pair][side];
        let Some(&nic) = self.nics.get(&it.process) else {
            return;
        };
        if it.came.is_none() && it.left.is_none() {
            let body = adopt(nic, KEY + pair as u64, side as u32);
            let name = adopted(&mut self.world, it.process, &body);
            self.sides[pair][side].came = Some((name, self.world.now));
        }
    }

    fn disconnect(&mut self, pair: usize, side: usize) {
        let it = self.sides[pair][side];
        if let (Some((connection, _)), None) = (it.came, it.left) {
            let body = ConnectionRef { connection };
            self.world.call(it.process, Op::DISCONNECT, 8, &body);
            self.sides[pair][side].left = Some((self.world.now, true));
        }
    }

    fn leave(&mut self, process: u64, orderly: bool) {
        if self.nics.remove(&process).is_none() {
            return;
        }
        self.collect();
        if orderly {
            self.world.goodbye(process);
        }
        self.world.hangup(process);
        for side in self.sides.iter_mut().flatten() {
            if side.process == process && side.left.is_none() {
                side.left = Some((self.world.now, orderly));
            }
        }
    }

    /// Reads all replies.
    fn collect(&mut self) {
        for &process in self.nics.keys() {
            while let Some(packet) = self.world.inbox.get_mut(&process).unwrap().pop_front() {
                if packet.op != Op::PEER_GONE {
                    assert_eq!((packet.op, packet.status), (Op::DONE, Status::OK));
                    continue;
                }
                let gone: PeerGone = packet.body();
                let mut sides = self.sides.iter_mut().flatten();
                let side = sides
                    .find(|s| {
                        s.process == process && s.came.is_some_and(|c| c.0 == gone.connection)
                    })
                    .expect("a side of its own");
                assert!(side.reported.is_none(), "reported twice");
                side.reported = Some((self.world.now, gone.orderly != 0));
            }
        }
    }

    /// The expected report of each side at the end.
    fn judge(&self, seed: u64) {
        let grace = ADOPT_TIME_MS * MS;
        for (pair, both) in self.sides.iter().enumerate() {
            for side in 0..2 {
                let (own, other) = (both[side], both[1 - side]);
                let Some((_, came)) = own.came else {
                    assert!(own.reported.is_none());
                    continue;
                };
                // The adoption of the peer, if it was in time to meet this side or the memory of it.
                let met = other.came.filter(|&(_, at)| {
                    let (early, late) = (came.min(at), came.max(at));
                    let first_left = if came <= at { own.left } else { other.left };
                    let remembered = first_left
                        .map(|(left, _)| left)
                        .filter(|&left| left <= late && left < early + grace);
                    late < remembered.unwrap_or(early) + grace
                });
                let expected = match met {
                    Some(_) => other.left.map(|(left, orderly)| (left.max(came), orderly)),
                    None => Some((came + grace, false)),
                };
                // A side that left earlier is not reported. The agent handles a deadline before anything else of
                // the same instant, so a side that leaves just then is.
                let expected = expected.filter(|&(at, _)| {
                    own.left
                        .is_none_or(|(left, _)| left > at || met.is_none() && left == at)
                });
                let place = format!("seed {seed}, pair {pair}, side {side}");
                let what = |report: Option<(u64, bool)>| report.map(|(_, orderly)| orderly);
                assert_eq!(
                    what(own.reported),
                    what(expected),
                    "{place}: {own:?} {other:?}"
                );
                // Replies are read after each step only, and the longest step is a sleep.
                let at = |report: Option<(u64, bool)>| report.map_or(0, |(at, _)| at);
                let late = at(own.reported).checked_sub(at(expected));
                assert!(
                    late.is_some_and(|late| late <= SLEEP_MS * MS),
                    "{place}: reported {:?} not {expected:?}; {own:?} {other:?}",
                    own.reported
                );
            }
        }
    }
}

#[test]
fn random_handovers_report_to_each_side_what_became_of_the_other() {
    const PROCESSES: u64 = 6;
    const PAIRS: usize = 40;
    let (mut met, mut missed) = (0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut handover = Handover {
            world: World::with_clients(PROCESSES),
            nics: BTreeMap::new(),
            sides: Vec::new(),
        };
        for process in 1..=PROCESSES {
            let nic = handover.world.open(process);
            handover.nics.insert(process, nic);
        }
        for _ in 0..PAIRS {
            let mut side = || Side {
                process: 1 + random.below(PROCESSES),
                ..Side::default()
            };
            handover.sides.push([side(), side()]);
        }
        for _ in 0..400 {
            let (pair, side) = (
                random.below(PAIRS as u64) as usize,
                random.below(2) as usize,
            );
            match random.below(40) {
                0 => handover.leave(1 + random.below(PROCESSES), random.below(2) == 0),
                1..6 => handover.disconnect(pair, side),
                6..12 => handover.world.sleep_ms(random.below(SLEEP_MS)),
                _ => handover.come(pair, side),
            }
            // So that no two things happen at the same time.
            handover.collect();
            handover.world.sleep_ms(1);
            handover.collect();
        }
        // Millisecond by millisecond would be slow; timers stop the clock at each of their instants.
        for _ in 0..2 * ADOPT_TIME_MS {
            handover.world.sleep_ms(1);
            handover.collect();
        }
        handover.judge(seed);
        for side in handover.sides.iter().flatten().filter(|s| s.came.is_some()) {
            met += u32::from(side.reported.is_none_or(|(_, orderly)| orderly));
            missed += u32::from(side.reported.is_some_and(|(_, orderly)| !orderly));
        }
        for process in 1..=PROCESSES {
            handover.leave(process, false);
        }
        handover.world.sleep_ms(ADOPT_TIME_MS);
        let world = handover.world;
        assert_eq!(world.agent.census(), Census::default(), "seed {seed}");
        assert_eq!(world.agent.poll_timeout(), None);
    }
    assert!(
        met > 1000 && missed > 1000,
        "the random are one-sided: {met} {missed}"
    );
}
