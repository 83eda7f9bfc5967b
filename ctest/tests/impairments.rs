//! C programs, untouched, over the Ethernet device class: on a simulated network without faults, and on one
//! that loses, duplicates, reorders and corrupts frames, where the reliable levels must not let the program
//! notice anything. The seed in the device's name, which a failure shows, decides about each frame.

use vipl_ctest::{Run, program};

/// A program that asks for `via_lo` and gets this device.
fn over(device: &str, name: &str) -> Run {
    Run::strict(program(name))
        .env("VIPL_DEVICE_MAP", format!("*={device}"))
        .seconds(240)
}

/// Frames of every size, the smallest and the largest that the protocol has.
#[test]
fn frames_of_all_sizes() {
    for mtu in [256, 1500, 9000] {
        over(&format!("sim:mtu={mtu}"), "tour").pass();
        over(&format!("sim:mtu={mtu}"), "simple").pass();
    }
}

#[test]
fn loss() {
    for seed in 1..=3 {
        over(&format!("sim:seed={seed},loss=0.05"), "tour").pass();
        over(&format!("sim:seed={seed},loss=0.2"), "simple").pass();
    }
}

#[test]
fn everything_at_once() {
    for seed in 1..=4 {
        let device = format!("sim:seed={seed},loss=0.05,dup=0.05,reorder=0.05,corrupt=0.02");
        over(&device, "tour").pass();
        over(&device, "simple").arg("-1").pass();
    }
}

#[test]
fn a_long_and_slow_way() {
    over("sim:seed=5,delay=2000,loss=0.01", "tour").pass();
    over("sim:seed=6,rate=20000000,reorder=0.02", "tour").pass();
}

/// What `cargo xtask deep` runs.
mod deep {
    use super::*;

    /// A network without faults carries whatever loopback carries: all levels, errors, ends.
    #[test]
    #[ignore = "cargo xtask deep"]
    fn clear_transfers() {
        for name in ["tour", "xfer", "rdma", "queue", "memory"] {
            over("sim:", name).pass();
            over("sim:", name).arg("-1").pass();
        }
    }

    #[test]
    #[ignore = "cargo xtask deep"]
    fn clear_errors_and_ends() {
        for name in ["errors", "kill", "forked", "threads"] {
            over("sim:", name).pass();
        }
        // One line comes from the default handler of asynchronous errors, as it should (ERR-02).
        over("sim:", "disc").allow("VIP_ERROR_CONN_LOST").pass();
    }

    #[test]
    #[ignore = "cargo xtask deep"]
    fn clear_connections_and_waits() {
        for name in ["conn", "conn_many", "peer", "waits", "notify", "cq", "vi"] {
            over("sim:", name).pass();
        }
    }
}
