//! The two applications: random operations in both directions, and the expected result of each.

use vipl_abi::*;
use vipl_wire::{Level, Operation};

use super::host::{Area, Recv, Segment, Send, UNTOUCHED};
use super::pick;
use super::world::World;

/// Expected effect of a complete operation.
#[derive(Clone, Debug)]
pub struct Expected {
    pub operation: Operation,
    /// The bytes that travel.
    pub data: Vec<u8>,
    pub flagged: bool,
    pub immediate: u32,
    /// Send: number of the receive. Others: lowest number of the receives of later sends.
    pub receive: usize,
    /// RDMA: the target (Write) or the local area (Read).
    pub area: Option<Area>,
}

/// The operations of one side.
#[derive(Default)]
pub struct Script {
    pub operations: Vec<Expected>,
    /// Operations found complete.
    pub checked: usize,
    /// Receives of the *other* side that this script uses.
    pub receives: usize,
    /// Receives checked.
    pub received: usize,
}

/// Cuts an area into segments.
fn cut(world: &mut World, area: &Area, most: u64) -> Vec<Segment> {
    let mut segments = Vec::new();
    let (mut at, end) = (area.at, area.at + area.bytes);
    while at < end && (segments.len() as u64) < most - 1 && world.rng.below(1000) < 600 {
        let bytes = world.rng.between(0, (end - at) as u64) as usize;
        segments.push((area.handle, at, bytes));
        at += bytes;
    }
    segments.push((area.handle, at, end - at));
    segments
}

fn size(world: &mut World) -> usize {
    let class = world.rng.below(100);
    let most = match class {
        0..=4 => 0,
        5..=59 => 64,
        60..=84 => 2_000,
        85..=97 => 16_000,
        _ => 70_000,
    };
    world.rng.between(0, most) as usize
}

impl Script {
    /// Posts one more operation at `side`, and the receive that it needs at the other side.
    pub fn post(&mut self, world: &mut World, side: usize, level: Level) {
        let bytes = size(world);
        let data: Vec<u8> = {
            let salt = world.rng.next_u64();
            (0..bytes as u64)
                .map(|i| (i.wrapping_mul(salt | 1) >> 5) as u8)
                .collect()
        };
        let kinds: &[Operation] = match level {
            Level::Unreliable => &[Operation::Send, Operation::Send, Operation::Write],
            _ => &[
                Operation::Send,
                Operation::Send,
                Operation::Send,
                Operation::Write,
                Operation::Read,
            ],
        };
        let operation = pick(&mut world.rng, kinds);
        let flagged = operation != Operation::Read && world.rng.below(1000) < 300;
        let immediate = world.rng.next_u64() as u32;
        let fenced = world.rng.below(1000) < 100;
        let mut expected = Expected {
            operation,
            data,
            flagged,
            immediate,
            receive: self.receives,
            area: None,
        };
        let (mut remote, local);
        match operation {
            Operation::Read => {
                let source = world.sides[1 - side].area(bytes, 0);
                let at = source.at;
                world.sides[1 - side].memory[at..at + bytes].copy_from_slice(&expected.data);
                remote = (source.at as u64, source.handle);
                local = world.sides[side].area(bytes, UNTOUCHED);
                expected.area = Some(local);
            }
            _ => {
                local = world.sides[side].area(bytes, 0);
                world.sides[side].memory[local.at..local.at + bytes]
                    .copy_from_slice(&expected.data);
                remote = (0, 0);
            }
        }
        if operation == Operation::Write {
            let target = world.sides[1 - side].area(bytes, UNTOUCHED);
            remote = (target.at as u64, target.handle);
            expected.area = Some(target);
        }
        if operation == Operation::Send || (operation == Operation::Write && flagged) {
            let more = world.rng.below(40) as usize;
            let room = if operation == Operation::Send {
                bytes + more
            } else {
                more
            };
            let buffer = world.sides[1 - side].area(room, UNTOUCHED);
            let segments = cut(world, &buffer, 5);
            world.sides[1 - side].recvs.push(Recv {
                segments,
                fault: None,
                gone: false,
                result: None,
            });
            self.receives += 1;
        }
        let segments = cut(world, &local, 5);
        world.sides[side].sends.push(Send {
            operation,
            segments,
            immediate,
            flagged,
            fenced,
            remote,
            fault: None,
            status: None,
        });
        self.operations.push(expected);
    }

    /// Checks the operations that have completed since the last time, on a reliable level: the data of all earlier
    /// ones must be in place, too.
    pub fn check(&mut self, world: &World, side: usize) {
        let (own, other) = (&world.sides[side].host, &world.sides[1 - side].host);
        while self.checked < own.sends_done {
            let (done, expected) = (&own.sends[self.checked], &self.operations[self.checked]);
            let status = done.status.unwrap_or(0);
            if status & VIP_STATUS_ERROR_MASK != 0 {
                return;
            }
            match expected.operation {
                Operation::Read => {
                    let area = expected.area.as_ref().expect("reads have one");
                    assert_eq!(status, VIP_STATUS_OP_RDMA_READ);
                    assert!(own.bytes(area) == expected.data, "read {}", self.checked);
                }
                Operation::Write => {
                    assert_eq!(status, VIP_STATUS_OP_RDMA_WRITE);
                    self.check_write(world, side, self.checked);
                }
                Operation::Send => {
                    assert_eq!(status, VIP_STATUS_OP_SEND);
                    assert!(
                        other.recvs_done > expected.receive,
                        "complete but not received"
                    );
                }
            }
            self.checked += 1;
        }
        while self.received < other.recvs_done {
            self.check_receive(world, side, self.received);
            self.received += 1;
        }
    }

    fn check_write(&self, world: &World, side: usize, number: usize) {
        let expected = &self.operations[number];
        let area = expected.area.as_ref().expect("writes have one");
        assert!(
            world.sides[1 - side].bytes(area) == expected.data,
            "write {number}"
        );
    }

    /// The operation that used a receive.
    fn user(&self, receive: usize) -> usize {
        let uses = |expected: &Expected| {
            expected.operation == Operation::Send
                || (expected.operation == Operation::Write && expected.flagged)
        };
        let found = self
            .operations
            .iter()
            .position(|e| e.receive == receive && uses(e));
        found.expect("each receive is used")
    }

    fn check_receive(&self, world: &World, side: usize, receive: usize) {
        let other = &world.sides[1 - side].host;
        let Some((status, length, immediate)) = other.recvs[receive].result else {
            panic!("receive {receive} is not complete");
        };
        if status & VIP_STATUS_ERROR_MASK != 0 {
            return;
        }
        let user = self.user(receive);
        let expected = &self.operations[user];
        self.check_result(expected, (status, length, immediate));
        let segments = &other.recvs[receive].segments;
        let placed: Vec<u8> = segments
            .iter()
            .flat_map(|(_, at, bytes)| other.memory[*at..at + bytes].iter().copied())
            .collect();
        let bytes = if expected.operation == Operation::Send {
            expected.data.len()
        } else {
            0
        };
        assert!(
            placed[..bytes] == expected.data[..bytes],
            "bytes of receive {receive}"
        );
        assert!(
            placed[bytes..].iter().all(|byte| *byte == UNTOUCHED),
            "bytes behind the message of receive {receive}"
        );
        // RDMA Writes that were sent before have arrived before.
        for number in (0..=user).rev().take(20) {
            if self.operations[number].operation == Operation::Write {
                self.check_write(world, side, number);
            }
        }
    }

    fn check_result(&self, expected: &Expected, result: (u32, u32, u32)) {
        let (status, length, immediate) = result;
        let opcode = match expected.operation {
            Operation::Send => VIP_STATUS_OP_RECEIVE,
            _ => VIP_STATUS_OP_REMOTE_RDMA_WRITE,
        };
        let flag = if expected.flagged {
            VIP_STATUS_IMMEDIATE
        } else {
            0
        };
        assert_eq!(status, opcode | flag);
        assert_eq!(length as usize, expected.data.len());
        assert_eq!(
            immediate,
            if expected.flagged {
                expected.immediate
            } else {
                0
            }
        );
    }

    /// On Unreliable: each received message was sent, arrives at most once and, if the network keeps order, in order;
    /// or is the beginning of one.
    pub fn check_unreliable(&self, world: &World, side: usize, ordered: bool) {
        let (own, other) = (&world.sides[side].host, &world.sides[1 - side].host);
        for send in &own.sends[..own.sends_done] {
            assert_eq!(send.status.unwrap_or(0) & VIP_STATUS_ERROR_MASK, 0);
        }
        let mut used = vec![false; self.operations.len()];
        let mut last = 0;
        for recv in &other.recvs[..other.recvs_done] {
            let (status, length, immediate) = recv.result.expect("it is complete");
            let placed: Vec<u8> = recv
                .segments
                .iter()
                .flat_map(|(_, at, bytes)| other.memory[*at..at + bytes].iter().copied())
                .collect();
            let error = status & VIP_STATUS_ERROR_MASK;
            let write = status & VIP_STATUS_OP_MASK == VIP_STATUS_OP_REMOTE_RDMA_WRITE;
            if error != 0 {
                // Messages consume receives that were meant for others and may be too small.
                let known = error == VIP_STATUS_PARTIAL_ERROR || error == VIP_STATUS_LENGTH_ERROR;
                assert!(known, "{error:#x}");
                continue;
            }
            let from = if ordered { last } else { 0 };
            let fits = |(number, expected): (usize, &Expected)| {
                let kind = match expected.operation {
                    Operation::Send => !write && placed.starts_with(&expected.data),
                    Operation::Write => write && expected.flagged,
                    Operation::Read => false,
                };
                let reported = if expected.flagged {
                    expected.immediate
                } else {
                    0
                };
                (kind
                    && !used[number]
                    && expected.data.len() == length as usize
                    && reported == immediate)
                    .then_some(number)
            };
            let found = self.operations.iter().enumerate().skip(from).find_map(fits);
            let number = found.expect("the message was not sent, or arrived twice or late");
            used[number] = true;
            last = number + 1;
        }
    }
}
