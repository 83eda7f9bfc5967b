//! The whole matrix of the life of processes and threads on every device; raw Ethernet in a network namespace. Counts as tests
//! do, one a device.

use vipl_ctest::Run;
use vipl_ctest::life::matrix;
use vipl_netns::{Namespaces, on_first_host};

/// Runs the matrix on a device; whether all is well.
fn on(device: &str, place: impl Fn(Run) -> Run + Sync) -> bool {
    let report = matrix(device, true, place);
    println!("{report}");
    for failure in &report.failures {
        println!("{failure}");
    }
    report.failures.is_empty()
}

fn main() {
    // Most of the programs wait.
    let mut results: Vec<bool> = std::thread::scope(|scope| {
        ["via_lo", "sim:", "clan:", "ip:127.0.0.1"]
            .map(|device| scope.spawn(move || on(device, |run| run)))
            .map(|running| running.join().unwrap_or(false))
            .into()
    });
    let mut absent = 0;
    match Namespaces::pair() {
        Ok(hosts) => {
            for device in ["tulip:eth0", "gnic2:eth0", "clan:eth0", "ip:eth0"] {
                results.push(on(device, |run| on_first_host(&hosts, run)));
            }
        }
        Err(why) => {
            println!("SKIP raw Ethernet: {why}");
            absent = 4;
        }
    }
    let good = results.iter().filter(|good| **good).count();
    let bad = results.len() - good;
    println!("test result: {good} passed; {bad} failed; {absent} ignored;");
    std::process::exit(i32::from(bad > 0));
}
