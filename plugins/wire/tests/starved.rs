//! More threads than processors: a process that waits for a processor does not count as dead, and a dead one is still
//! detected.

mod sim;

use sim::network::{Faults, Line};
use sim::world::{World, sending};
use vipl_abi::*;
use vipl_wire::{Cause, Level};

const SECOND: u64 = 1_000_000_000;
const LEVELS: [Level; 3] = [Level::Unreliable, Level::Delivery, Level::Reception];
const RELIABLE: [Level; 2] = [Level::Delivery, Level::Reception];

fn lose(world: &mut World, permille: u64) {
    world.fault(|faults| faults.loss = permille);
}

fn none_failed(world: &World) {
    for side in &world.sides {
        assert_eq!(side.host.failed, None);
    }
}

/// Lets a side run for `running` nanoseconds out of every `period`.
fn starve(world: &mut World, side: usize, running: u64, period: u64) {
    world.run(running);
    world.stop(side, period - running);
    world.run(period - running);
}

/// The peer keeps sending; its frames wait at the device until this side runs again.
#[test]
fn waiting_frames_count_before_deadlines() {
    for level in LEVELS {
        let mut world = sending(level, Faults::NONE, &[100; 40]);
        let posted = std::mem::take(&mut world.sides[1].sends);
        for (number, send) in posted.into_iter().enumerate() {
            if number == 10 {
                world.stop(0, 20 * SECOND);
            }
            world.sides[1].sends.push(send);
            world.posted(1);
            // Frames of this process arrive at the peer on other connections.
            world.sides[1].peer_last_received = Some(world.now);
            world.run(SECOND);
        }
        world.run(SECOND);
        none_failed(&world);
        assert_eq!(world.sides[0].recvs_done, 40);
        assert_eq!(world.sides[1].sends_done, 40);
    }
}

/// After one retransmission timeout this side has no processor for a long time, and answers are lost meanwhile. This
/// time does not count.
#[test]
fn a_timeout_does_not_continue_while_this_side_is_stopped() {
    for level in RELIABLE {
        let mut world = sending(level, Faults::NONE, &[100, 100]);
        lose(&mut world, 1000);
        world.posted(1);
        world.run(SECOND);
        assert!(world.sides[1].connection.as_ref().unwrap().stats().timeouts > 0);
        world.stop(1, 20 * SECOND);
        world.run(20 * SECOND + SECOND / 2);
        none_failed(&world);
        lose(&mut world, 0);
        world.run(2 * SECOND);
        none_failed(&world);
        assert_eq!(world.sides[1].sends_done, 2);
    }
}

/// A side that seldom runs has polled only a few times in nine seconds, which proves nothing.
#[test]
fn a_few_looks_are_not_enough() {
    for level in LEVELS {
        for messages in [0, 2] {
            let mut world = sending(level, Faults::NONE, &vec![100; messages]);
            lose(&mut world, 1000);
            // The other side may fail.
            world.sides[0].crashed = true;
            world.posted(1);
            let began = world.now;
            while world.now < began + 12 * SECOND {
                starve(&mut world, 1, SECOND / 100, 3 * SECOND / 2);
            }
            assert_eq!(world.sides[1].failed, None, "{level:?} {messages}");
            // After many polls the peer is dead.
            while world.now < began + 60 * SECOND {
                starve(&mut world, 1, SECOND / 100, 3 * SECOND / 2);
            }
            assert!(world.sides[1].failed.is_some());
        }
    }
}

/// Each side runs briefly every three seconds, never at the same time as the other; every second frame is lost.
#[test]
fn two_that_never_run_at_the_same_time() {
    for level in LEVELS {
        for seed in 0..40 {
            let mut world = World::new(seed, level, 1500, Faults::NONE);
            lose(&mut world, 500);
            world.stop(0, 3 * SECOND / 2);
            for round in 0..80 {
                world.run(SECOND / 10);
                world.stop(1 - round % 2, 29 * SECOND / 10);
                world.run(14 * SECOND / 10);
            }
            let informed = |line: &Line| line.frames > 10;
            assert!(world.lines.iter().all(informed), "neither side has run");
            none_failed(&world);
        }
    }
}

/// A peer without a processor for five seconds: it answers PROBEs, but its device has not had room for all frames.
#[test]
fn silence_does_not_count_as_being_stuck() {
    for level in RELIABLE {
        let mut world = sending(level, Faults::NONE, &[100, 100]);
        lose(&mut world, 1000);
        world.posted(1);
        world.run(8 * SECOND);
        for line in &mut world.lines {
            (line.faults.loss, line.faults.largest) = (0, 60);
        }
        world.run(2 * SECOND);
        none_failed(&world);
        world.fault(|faults| faults.largest = 0);
        world.run(SECOND);
        none_failed(&world);
        assert_eq!(world.sides[1].sends_done, 2);
    }
}

/// A network that carries only small frames: the peer answers, but there is no progress.
#[test]
fn a_peer_that_answers_and_gets_nothing_is_as_good_as_dead() {
    for level in RELIABLE {
        let faults = Faults {
            largest: 100,
            ..Faults::NONE
        };
        let mut world = sending(level, faults, &[1000]);
        let began = world.now;
        world.posted(1);
        let over = |world: &World| world.sides[1].failed.is_some();
        assert!(world.until(20 * SECOND, over));
        let took = world.now - began;
        assert!((7 * SECOND..10 * SECOND).contains(&took), "{took} ns");
        assert_eq!(world.sides[1].failed, Some((Cause::Reported, 0)));
        let status = world.sides[1].sends[0].status.unwrap();
        assert_eq!(status & VIP_STATUS_ERROR_MASK, VIP_STATUS_TRANSPORT_ERROR);
    }
}

/// All frames of one connection are lost while frames of the peer's process arrive on others. When those end, nine
/// seconds remain; and there is a limit.
#[test]
fn a_process_that_sends_elsewhere_lives() {
    for level in LEVELS {
        for others in [30, 1000] {
            let mut world = sending(level, Faults::NONE, &[]);
            lose(&mut world, 1000);
            world.sides[0].crashed = true;
            let began = world.now;
            let mut last = began;
            world.posted(1);
            while world.sides[1].failed.is_none() {
                if world.now < began + others * SECOND {
                    last = world.now;
                }
                world.sides[1].peer_last_received = Some(last);
                world.run(SECOND);
                assert!(world.now < began + 120 * SECOND, "never");
            }
            let took = (world.now - began) / SECOND;
            let expected = if others == 30 { 35..=40 } else { 59..=63 };
            assert!(expected.contains(&took), "{took} s");
        }
    }
}
