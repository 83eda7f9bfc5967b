//! Goodput of a link that loses frames, in virtual time: independent of the speed of the machine.

mod sim;

use sim::host::{Recv, Send, UNTOUCHED};
use sim::network::Faults;
use sim::world::World;
use vipl_wire::Level;

const SECOND: u64 = 1_000_000_000;

/// Virtual time of a stream of messages with a window between applications that poll, in nanoseconds.
fn stream(faults: Faults, mtu: u16, bytes: usize, count: usize, window: usize) -> u64 {
    let mut world = World::new(77, Level::Delivery, mtu, faults);
    world.poll_ns = 1_000;
    stream_in(&mut world, bytes, count, window)
}

fn stream_in(world: &mut World, bytes: usize, count: usize, window: usize) -> u64 {
    let from = world.sides[1].area(bytes, 9);
    let to = world.sides[0].area(bytes, UNTOUCHED);
    let began = world.now;
    let mut posted = 0;
    while posted < count {
        while posted < count && posted - world.sides[1].sends_done < window {
            world.sides[0].recvs.push(Recv::into_area(&to));
            world.sides[1].sends.push(Send::message(&from));
            posted += 1;
        }
        world.posted(1);
        let done = world.sides[1].sends_done;
        assert!(world.until(20 * SECOND, |world| world.sides[1].sends_done > done));
    }
    assert!(world.until(20 * SECOND, |world| world.sides[1].sends_done == count));
    world.now - began
}

/// Random loss must not count as congestion: at 1 % at least half of the rate remains.
#[test]
fn one_percent_of_loss_costs_less_than_half() {
    for (rate, latency_ns, mtu) in [
        (125, 50_000, 1500),
        (1250, 20_000, 1500),
        (1250, 20_000, 9000),
    ] {
        let clean = Faults {
            rate,
            latency_ns,
            queue: 256_000,
            ..Faults::NONE
        };
        let lossy = Faults { loss: 10, ..clean };
        for (bytes, count, window) in [(65_536, 300, 8), (4_096, 3_000, 64), (200, 10_000, 256)] {
            let (best, worst) = (
                stream(clean, mtu, bytes, count, window),
                stream(lossy, mtu, bytes, count, window),
            );
            let share = best as f64 / worst as f64;
            println!(
                "{rate} MB/s, mtu {mtu}, {bytes} bytes: {share:.2} of the goodput is left at 1 %"
            );
            assert!(
                share >= 0.5,
                "{share:.2} of the goodput at {rate} MB/s, {bytes} bytes"
            );
        }
    }
}

/// If two hosts send faster than the link, only a small share of the frames is lost.
#[test]
fn a_slow_line_is_not_flooded() {
    for queue in [32_000, 128_000] {
        let slow = Faults {
            rate: 12,
            latency_ns: 200_000,
            queue,
            ..Faults::NONE
        };
        let took = stream(slow, 1500, 65_536, 100, 8);
        let least: u64 = 100 * 65_536 * 1000 / 12;
        let share = least as f64 / took as f64;
        println!("12 MB/s, {queue} bytes of queue: {share:.2} of the rate");
        assert!(share >= 0.5, "{share:.2} of the rate");
    }
}

/// Sleeping applications: frames wake them up, and a thread serves their deadlines once per millisecond. Sometimes
/// they have no processor for some milliseconds. This must not count as loss, and loss must not limit them to one
/// burst per millisecond.
#[test]
fn programs_that_sleep_keep_the_line_busy() {
    const MS: u64 = 1_000_000;
    const COUNT: usize = 4_000;
    for (loss, stalls, least) in [
        (0, (0, 0), 900),
        (0, (5, 4 * MS), 400),
        (0, (20, 8 * MS), 150),
        (10, (0, 0), 400),
        (10, (5, 4 * MS), 300),
        (50, (5, 4 * MS), 75),
    ] {
        let faults = Faults {
            rate: 1250,
            latency_ns: MS,
            queue: 4 << 20,
            loss,
            ..Faults::NONE
        };
        let mut world = World::new(77, Level::Delivery, 9000, faults);
        (world.poll_ns, world.sleep_ns, world.stalls) = (30_000, MS, stalls);
        let took = stream_in(&mut world, 65_536, COUNT, 64);
        let rate = COUNT as u64 * 65_536 * 1000 / took;
        let stats = world.sides[1].connection.as_ref().map(|c| c.stats());
        println!("{loss} of 1000 lost, stalls {stalls:?}: {rate} MB/s, {stats:?}");
        assert!(
            rate >= least,
            "{rate} MB/s at a loss of {loss} permille, stalls {stalls:?}"
        );
    }
}
