//! A path across routers, in virtual time: one queue before a slow line, and another flow in it. The line is shared
//! fairly and used fully.

mod sim;

use sim::host::{Recv, Send, UNTOUCHED};
use sim::network::{Faults, Router};
use sim::world::{World, config};
use vipl_wire::{Config, Connection, Level};

const SECOND: u64 = 1_000_000_000;
const BYTES: usize = 16_384;

fn path(rate: u64, latency_ns: u64, queue: u64) -> Faults {
    Faults {
        rate,
        latency_ns,
        queue,
        ..Faults::NONE
    }
}

/// A world in which side 1 sends across routers.
fn world(faults: Faults) -> World {
    let mut world = World::new(5, Level::Delivery, 1472, faults);
    world.poll_ns = 1_000;
    for side in 0..2 {
        let config = Config {
            shared_path: true,
            ..config(side as u32, 0x1234_5678, Level::Delivery, 1472, world.now)
        };
        world.sides[side].connection = Some(Connection::new(&config));
    }
    world
}

/// Side 1 always has data to send. Returns the bytes acknowledged in the last three quarters of the time, of side 1
/// and of the other flow.
fn send_for(world: &mut World, seconds: u64) -> (u64, u64) {
    let from = world.sides[1].area(BYTES, 9);
    let to = world.sides[0].area(BYTES, UNTOUCHED);
    let (begun, end) = (
        world.now + seconds * SECOND / 4,
        world.now + seconds * SECOND,
    );
    let (mut posted, mut before) = (0, None);
    while world.now < end {
        let done = world.sides[1].sends_done;
        while posted < done + 64 {
            world.sides[0].recvs.push(Recv::into_area(&to));
            world.sides[1].sends.push(Send::message(&from));
            posted += 1;
        }
        world.posted(1);
        world.until(end - world.now, |world| world.sides[1].sends_done > done);
        assert!(world.sides[1].failed.is_none(), "the connection holds");
        if before.is_none() && world.now >= begun {
            before = Some(state(world));
        }
    }
    let (before, after) = (before.expect("some time has passed"), state(world));
    (after.0 - before.0, after.1 - before.1)
}

fn state(world: &World) -> (u64, u64) {
    let rival = world.rivals[1].as_ref().map_or(0, |rival| rival.delivered);
    (world.sides[1].sends_done as u64 * BYTES as u64, rival)
}

#[test]
fn beside_cubic_each_has_its_share() {
    for (rate, latency_ns, queue) in [
        (1, 20_000_000, 40_000),
        (12, 5_000_000, 60_000),
        (12, 5_000_000, 120_000),
        (12, 1_000_000, 120_000),
        (60, 1_000_000, 120_000),
    ] {
        for late in [false, true] {
            let mut world = world(path(rate, latency_ns, queue));
            if late {
                // The line is in use when the other flow begins.
                send_for(&mut world, 4);
            }
            world.begin_rival(1);
            let seconds = if rate == 60 { 3 } else { 16 };
            let (ours, theirs) = send_for(&mut world, seconds);
            let share = ours as f64 / theirs as f64;
            let used = (ours + theirs) as f64 * 1000.0 / (rate * seconds * 3 * SECOND / 4) as f64;
            println!(
                "{rate} MB/s, {latency_ns} ns, {queue} bytes, late {late}: {share:.2}, {used:.2} used"
            );
            assert!((0.33..=3.0).contains(&share), "share {share:.2}");
            assert!(used > 0.8, "{used:.2} of the line is used");
        }
    }
}

/// The other flow never waits for a retransmission, so it is faster than any real one.
#[test]
fn at_loss_the_goodput_is_near_that_of_cubic() {
    for (loss, latency_ns) in [
        (1, 5_000_000),
        (10, 5_000_000),
        (10, 1_000_000),
        (30, 5_000_000),
    ] {
        let faults = Faults {
            loss,
            ..path(25, latency_ns, 256_000)
        };
        let (ours, _) = send_for(&mut world(faults), 12);
        let mut other = world(faults);
        other.begin_rival(1);
        other.run(12 * SECOND);
        let theirs = state(&other).1 * 3 / 4;
        let share = ours as f64 / theirs as f64;
        println!("{loss} of 1000 lost, {latency_ns} ns: {ours} bytes, {share:.2} of the other's");
        assert!(share > 0.5, "{share:.2}");
    }
}

/// Reordered frames are late, not lost: reordering costs a part of the rate at most. Frames that are delayed by more
/// than a quarter of the round trip are retransmitted needlessly at first.
#[test]
fn a_path_that_changes_the_order_keeps_its_rate() {
    for (loss, share_held, hold_ns, least) in [
        (0, 100, 300_000, 0.8),
        (0, 10, 300_000, 0.8),
        (0, 100, 6_000_000, 0.8),
        (10, 100, 300_000, 0.7),
        (10, 100, 6_000_000, 0.5),
    ] {
        let ordered = Faults {
            loss,
            ..path(25, 5_000_000, 256_000)
        };
        let mixed = Faults {
            reordering: share_held,
            hold_ns,
            ..ordered
        };
        let [(straight, _), (crooked, again)] = [ordered, mixed].map(|faults| {
            let mut world = world(faults);
            let (bytes, _) = send_for(&mut world, 12);
            (bytes, world.sent_again())
        });
        let share = crooked as f64 / straight as f64;
        println!(
            "{loss} of 1000 lost, {share_held} of 1000 held for {hold_ns} ns: {share:.2} of the goodput, {again} sent again"
        );
        assert!(share >= least, "{share:.2}");
    }
}

/// A single flow uses the line and does not fill a deep queue.
#[test]
fn alone_it_uses_the_line() {
    for (rate, latency_ns, queue) in [
        (1, 20_000_000, 100_000),
        (12, 5_000_000, 120_000),
        (60, 1_000_000, 120_000),
        // More than 256 frames are in flight.
        (125, 5_000_000, 1_000_000),
    ] {
        let mut world = world(path(rate, latency_ns, queue));
        let (ours, _) = send_for(&mut world, 5);
        let used = ours as f64 * 1000.0 / (rate * 5 * 3 * SECOND / 4) as f64;
        let line = &world.lines[1];
        println!(
            "{rate} MB/s: {used:.2} used, {} of {} lost",
            line.lost, line.frames
        );
        assert!(used > 0.75, "{used:.2} of the line");
        assert!(
            line.lost * 50 < line.frames,
            "{} of {}",
            line.lost,
            line.frames
        );
    }
}

/// The path is cut for a while and is slower afterwards: the sender adapts to its rate.
#[test]
fn a_path_that_changes_is_followed() {
    let mut world = world(path(12, 5_000_000, 120_000));
    send_for(&mut world, 4);
    world.lines[1].faults.cut = Some((world.now, world.now + SECOND));
    world.lines[1].faults.rate = 3;
    send_for(&mut world, 4);
    let (ours, _) = send_for(&mut world, 8);
    let used = ours as f64 * 1000.0 / (3 * 8 * 3 / 4 * SECOND) as f64;
    println!("{used:.2} used");
    assert!(used > 0.75, "{used:.2} of the line");
}

/// The sender responds to the marks of a router before frames are dropped.
#[test]
fn marks_replace_losses() {
    for (rate, latency_ns, queue, above) in [
        (12, 5_000_000, 120_000, 40_000),
        (25, 5_000_000, 256_000, 60_000),
        (60, 1_000_000, 120_000, 40_000),
    ] {
        let faults = Faults {
            router: Router::MarksAbove(above),
            ..path(rate, latency_ns, queue)
        };
        let mut world = world(faults);
        // At the end of slow start the queue may be too short for the round trip that a mark takes.
        send_for(&mut world, 1);
        let before = (world.lines[1].lost, world.sent_again());
        let (ours, _) = send_for(&mut world, 8);
        let used = ours as f64 * 1000.0 / (rate * 8 * 3 * SECOND / 4) as f64;
        let (lost, again) = (
            world.lines[1].lost - before.0,
            world.sent_again() - before.1,
        );
        println!("{rate} MB/s: {used:.2} used, {lost} lost, {again} sent again");
        assert!(used > 0.9, "{used:.2} of the line");
        assert_eq!((lost, again), (0, 0));
    }
}

/// If both flows respond to marks, each gets its share.
#[test]
fn marks_are_shared_fairly() {
    for (rate, latency_ns) in [(12, 5_000_000), (12, 20_000_000), (60, 1_000_000)] {
        let faults = Faults {
            router: Router::MarksAbove(60_000),
            ..path(rate, latency_ns, 256_000)
        };
        let mut world = world(faults);
        world.begin_rival(1);
        let seconds = if rate == 60 { 3 } else { 16 };
        let (ours, theirs) = send_for(&mut world, seconds);
        let share = ours as f64 / theirs as f64;
        let used = (ours + theirs) as f64 * 1000.0 / (rate * seconds * 3 * SECOND / 4) as f64;
        println!("{rate} MB/s, {latency_ns} ns: {share:.2}, {used:.2} used");
        assert!((0.33..=3.0).contains(&share), "share {share:.2}");
        assert!(used > 0.8, "{used:.2} of the line is used");
    }
}

/// Routers that handle marks wrongly cost a short time at the beginning only.
#[test]
fn a_path_that_mangles_marks_does_no_harm() {
    let clean = path(12, 5_000_000, 120_000);
    let (usual, _) = send_for(&mut world(clean), 12);
    for router in [Router::MarksAll, Router::Refuses] {
        let mut world = world(Faults { router, ..clean });
        let (ours, _) = send_for(&mut world, 12);
        let share = ours as f64 / usual as f64;
        println!("{router:?}: {share:.2} of the goodput");
        assert!(share > 0.9, "{share:.2}");
        for side in world.sides {
            assert_eq!(side.host.not_ect, router == Router::Refuses);
        }
    }
}
