//! Two hosts, two connections, two lines and a clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Deref, DerefMut};

use vipl_wire::{Closing, Config, Connection, Level, Reason, Received};

use super::host::{Host, Recv, Send, UNTOUCHED};
use super::network::{Carried, Faults, Line};
use super::rival::{PACKET, Rival};
use vipl_sys::random::Random;

/// One side.
pub struct Side {
    pub host: Host,
    pub connection: Option<Connection>,
    pub closing: Option<Closing>,
    /// The process has died silently.
    pub crashed: bool,
    /// The process has no processor before this time. Frames wait at its device until then.
    pub stopped_until: u64,
    /// The port that others see, and the one to which frames go, as the device knows it.
    pub port: u16,
    pub to_port: u16,
    inbox: Vec<(u16, Carried)>,
    polling: bool,
    /// When the application, and the thread that serves its deadlines, last polled.
    attended_ns: u64,
    polled_ns: u64,
    /// Retransmissions of connections that have ended.
    pub sent_again: u64,
}

impl Deref for Side {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl DerefMut for Side {
    fn deref_mut(&mut self) -> &mut Host {
        &mut self.host
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A frame from one port to another.
    Arrive(usize, (u16, u16), Carried),
    Poll(usize),
    Timer(usize),
    Wake(usize),
    /// The rival on this line is informed of a packet: when it was sent, whether it has arrived, whether it was
    /// marked.
    Rival(usize, u64, bool, bool),
}

pub struct World {
    pub now: u64,
    pub rng: Random,
    pub sides: [Side; 2],
    pub lines: [Line; 2],
    /// Another flow on a line.
    pub rivals: [Option<Rival>; 2],
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    /// Delay until a host polls its device.
    pub poll_ns: u64,
    /// The applications sleep until a frame arrives. A thread serves their deadlines at this interval, in
    /// nanoseconds, unless the application has polled meanwhile. 0: deadlines are kept to the microsecond.
    pub sleep_ns: u64,
    /// Polls that have to wait for a processor: how many in a thousand, and for how many nanoseconds.
    pub stalls: (u64, u64),
    /// Frames that a device takes at once.
    pub room: usize,
    /// Every frame that was sent, for tests that want them.
    pub log: Option<Vec<(usize, Vec<u8>)>>,
}

pub fn config(side: u32, key: u64, level: Level, mtu: u16, now_ns: u64) -> Config {
    Config {
        key,
        side,
        level,
        mtu,
        max_transfer: 1 << 20,
        own_vi: 10 + side,
        peer_vi: 11 - side,
        own_endpoint: 100 + side as u16,
        peer_endpoint: 101 - side as u16,
        carry_immediate: false,
        ack_delay_ns: 20_000,
        patience_ns: vipl_wire::PATIENCE_NS,
        now_ns,
        // The counters of half of the connections wrap.
        count_from: if key & 1 == 0 {
            0
        } else {
            4_u32.wrapping_neg()
        },
        shared_path: false,
        seal: None,
    }
}

impl World {
    pub fn new(seed: u64, level: Level, mtu: u16, faults: Faults) -> World {
        let mut rng = Random::new(seed);
        // Sequence and descriptor numbers wrap soon in some worlds.
        let wrap = if rng.below(1000) < 500 {
            0xFFFF_FFC0_FFFF_FFE0
        } else {
            0
        };
        let key = rng.next_u64() | wrap;
        let start = rng.below(1 << 40);
        let base = if wrap == 0 { 0 } else { u32::MAX - 20 };
        let side = |number: u32| Side {
            host: Host::new(usize::from(mtu), base),
            connection: Some(Connection::new(&Config {
                // Every fourth world has a secret.
                seal: (seed % 4 == 3).then_some([seed as u8; 32]),
                // Every fifth one has routers.
                shared_path: seed % 5 == 4,
                ..config(number, key, level, mtu, start)
            })),
            closing: None,
            crashed: false,
            stopped_until: 0,
            port: 0,
            to_port: 0,
            inbox: Vec::new(),
            polling: false,
            attended_ns: 0,
            polled_ns: 0,
            sent_again: 0,
        };
        World {
            now: start,
            sides: [side(0), side(1)],
            lines: [Line::new(faults), Line::new(faults)],
            rivals: [None, None],
            events: BinaryHeap::new(),
            count: 0,
            poll_ns: rng.between(0, 10_000),
            sleep_ns: 0,
            stalls: (0, 0),
            room: usize::MAX,
            log: None,
            rng,
        }
    }

    /// Changes the faults of both lines.
    pub fn fault(&mut self, mut change: impl FnMut(&mut Faults)) {
        for line in &mut self.lines {
            change(&mut line.faults);
        }
    }

    fn push(&mut self, at: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    /// Calls the engine of a side, then transports its frames and sets its timer.
    pub fn call(&mut self, side: usize, act: impl FnOnce(&mut Connection, u64, &mut Host)) {
        let now = self.now;
        let s = &mut self.sides[side];
        s.host.room = self.room;
        if let Some(connection) = &mut s.connection {
            act(connection, now, &mut s.host);
        }
        self.update(side);
    }

    fn update(&mut self, side: usize) {
        let s = &mut self.sides[side];
        let mut deadline = u64::MAX;
        let mut blocked = false;
        if let Some(connection) = &s.connection {
            deadline = connection.deadline();
            blocked = connection.is_blocked();
        }
        if let Some(closing) = &s.closing {
            deadline = deadline.min(closing.deadline());
        }
        let (frames, may_mark) = (std::mem::take(&mut s.host.out), !s.host.not_ect);
        let ports = (s.port, s.to_port);
        for frame in frames {
            if let Some(log) = &mut self.log {
                log.push((side, frame.clone()));
            }
            for (at, frame) in self.lines[side].carry(frame, may_mark, self.now, &mut self.rng) {
                self.push(at, Event::Arrive(1 - side, ports, frame));
            }
        }
        if deadline != u64::MAX {
            // A timer is never exact.
            let soonest = self.sides[side].polled_ns + self.sleep_ns;
            let at = deadline.max(self.now).max(soonest) + 1 + self.rng.below(1000);
            self.push(at, Event::Timer(side));
        }
        if blocked {
            self.push(self.now + 5_000, Event::Poll(side));
        }
    }

    /// The doorbell. One side posts without the time and reports it when the engine asks.
    pub fn posted(&mut self, side: usize) {
        self.call(side, |connection, now, host| {
            if side == 0 {
                return connection.posted(now, host);
            }
            host.clock = Some(now);
            connection.posted(0, host);
            host.clock = None;
        });
    }

    /// VipDisconnect.
    pub fn close(&mut self, side: usize, reason: Reason) {
        let now = self.now;
        let s = &mut self.sides[side];
        s.host.room = usize::MAX;
        if let Some(connection) = s.connection.take() {
            s.sent_again += connection.stats().sent_again;
            s.closing = Some(connection.close(reason, now, &mut s.host));
        }
        self.update(side);
    }

    fn poll(&mut self, side: usize) {
        let (now, sleeps) = (self.now, self.sleep_ns > 0);
        let s = &mut self.sides[side];
        s.polling = false;
        s.attended_ns = now;
        let frames = std::mem::take(&mut s.inbox);
        if s.crashed {
            return;
        }
        if let Some(closing) = &mut s.closing {
            s.host.room = usize::MAX;
            for (_, (frame, _)) in &frames {
                closing.received(frame, &mut s.host);
            }
            return self.update(side);
        }
        let mut moved = None;
        self.call(side, |connection, now, host| {
            for (from, (frame, marked)) in &frames {
                let received = connection.received(frame, now, host);
                if received == Received::Taken && *marked {
                    connection.marked(frame);
                }
                // As in a device.
                if received == Received::Taken && connection.is_newest() {
                    moved = Some(*from);
                }
            }
            connection.flush(now, host);
            if sleeps {
                // The application polls once more before it sleeps.
                connection.flush_acks(now, host);
            }
        });
        self.sides[side].to_port = moved.unwrap_or(self.sides[side].to_port);
    }

    /// A router that translates addresses forgets those of a side: from now on its frames come from another port, and
    /// those to the old one are lost.
    pub fn rebind(&mut self, side: usize) {
        self.sides[side].port += 1;
    }

    /// Runs the next event, if it comes before `until`. False: there is none.
    pub fn step(&mut self, until: u64) -> bool {
        match self.events.peek() {
            Some(Reverse((at, _, _))) if *at < until => {}
            _ => {
                self.now = self.now.max(until);
                return false;
            }
        }
        let Some(Reverse((at, _, event))) = self.events.pop() else {
            return false;
        };
        self.now = self.now.max(at);
        match event {
            Event::Arrive(side, (_, to), _) if to != self.sides[side].port => {
                self.lines[1 - side].lost += 1;
            }
            Event::Arrive(side, (from, _), frame) => {
                self.sides[side].inbox.push((from, frame));
                if !self.sides[side].polling {
                    self.sides[side].polling = true;
                    let stalled = self.stalls.0 > 0 && self.rng.below(1000) < self.stalls.0;
                    let stall = if stalled { self.stalls.1 } else { 0 };
                    self.push(self.now + self.poll_ns + stall, Event::Poll(side));
                }
            }
            Event::Poll(side) | Event::Timer(side) if self.is_stopped(side) => {}
            Event::Poll(side) => self.poll(side),
            Event::Timer(side) => self.timer(side),
            Event::Wake(side) if !self.is_stopped(side) => {
                // As in a device: first arrived frames, then timers.
                self.poll(side);
                self.timer(side);
            }
            Event::Wake(_) => {}
            Event::Rival(line, sent, arrived, marked) => {
                if let Some(rival) = &mut self.rivals[line] {
                    rival.informed(self.now, sent, arrived, marked);
                }
                self.rival_sends(line);
            }
        }
        true
    }

    /// Another flow begins on a line.
    pub fn begin_rival(&mut self, line: usize) {
        self.rivals[line] = Some(Rival::default());
        self.rival_sends(line);
    }

    fn rival_sends(&mut self, line: usize) {
        let latency = self.lines[line].faults.latency_ns;
        while let Some(rival) = self.rivals[line].as_mut().filter(|rival| rival.may_send()) {
            rival.in_flight += 1;
            let by_chance = self.rng.below(1000) < self.lines[line].faults.loss;
            let marked = self.lines[line].marks(self.now);
            let left = self.lines[line].leaves(PACKET, self.now);
            // A loss is detected by later packets.
            let waits = left.unwrap_or(
                self.now
                    + self.lines[line].faults.queue * 1000 / self.lines[line].faults.rate.max(1),
            );
            let arrived = left.is_some() && !by_chance;
            self.push(
                waits + 2 * latency,
                Event::Rival(line, self.now, arrived, marked),
            );
        }
    }

    fn is_stopped(&self, side: usize) -> bool {
        self.now < self.sides[side].stopped_until
    }

    /// Takes the processor away from a side for this time.
    pub fn stop(&mut self, side: usize, ns: u64) {
        let until = self.now + ns;
        self.sides[side].stopped_until = until;
        self.push(until, Event::Wake(side));
    }

    fn timer(&mut self, side: usize) {
        let now = self.now;
        let s = &mut self.sides[side];
        if s.crashed {
            return;
        }
        if self.sleep_ns > 0 && now < s.attended_ns + self.sleep_ns {
            s.polled_ns = now;
            let at = now + self.sleep_ns;
            return self.push(at, Event::Timer(side));
        }
        s.polled_ns = now;
        if let Some(closing) = &mut s.closing {
            if closing.deadline() <= now {
                s.host.room = usize::MAX;
                closing.timeout(now, &mut s.host);
                self.update(side);
            }
        } else if s.connection.as_ref().is_some_and(|c| c.deadline() <= now) {
            self.call(side, |connection, now, host| connection.timeout(now, host));
        }
    }

    /// Runs until a condition holds, at most for this time. Returns whether it holds.
    pub fn until(&mut self, most_ns: u64, mut so: impl FnMut(&World) -> bool) -> bool {
        let end = self.now + most_ns;
        // Limits a world that never becomes idle.
        for _ in 0..5_000_000 {
            if so(self) {
                return true;
            }
            if !self.step(end) {
                return so(self);
            }
        }
        panic!("the two sides do not come to rest");
    }

    pub fn run(&mut self, ns: u64) {
        self.until(ns, |_| false);
    }

    pub fn sent_again(&self) -> u64 {
        let open = |side: &Side| side.connection.as_ref().map_or(0, |c| c.stats().sent_again);
        self.sides
            .iter()
            .map(|side| side.sent_again + open(side))
            .sum()
    }
}

/// A world in which side 0 has receives and side 1 sends messages of the sizes given.
pub fn sending(level: Level, faults: Faults, sizes: &[usize]) -> World {
    let mut world = World::new(1, level, 1500, faults);
    for bytes in sizes {
        let buffer = world.sides[0].host.area(*bytes, UNTOUCHED);
        world.sides[0].host.recvs.push(Recv::into_area(&buffer));
        let local = world.sides[1].host.area(*bytes, 9);
        world.sides[1].host.sends.push(Send::message(&local));
    }
    world
}
