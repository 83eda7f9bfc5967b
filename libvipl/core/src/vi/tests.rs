//! The work queues and completion queues against an oracle: random calls of the application, random
//! completions of the device, breaks, flushes, rings that grow, and counters that wrap. After each call the
//! result, the descriptors in memory and, in their order, the calls of handlers must match `oracle.rs`. The
//! seed is printed and determines everything: waiting threads and handlers run at any time, but the device
//! does nothing for them (`device.rs`).

mod calls;
pub(crate) mod device;
mod objects;
mod oracle;
mod run;

use run::Run;

/// Steps per seed.
const STEPS: u32 = 4000;

fn run(with_ready: bool, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        println!("seed {seed}, ready: {with_ready}");
        let mut run = Run::new(seed, with_ready);
        for step in 0..STEPS {
            run.step(step);
        }
        run.end();
    }
}

#[test]
fn the_queues_are_as_the_oracle_says() {
    run(false, 1..17);
}

#[test]
fn so_they_are_where_the_plugin_says_which_vis_are_ready() {
    run(true, 17..33);
}
