//! The whole matrix of the life of processes and threads on every device; raw Ethernet in a network namespace. Counts as tests
//! do, one a device.

use vipl_ctest::life::matrix;
use vipl_ethernet_tests::{Namespaces, on_first_host};

fn main() {
    let (mut good, mut bad, mut absent) = (0, 0, 0);
    for device in ["via_lo", "sim:", "clan:", "ip:127.0.0.1"] {
        let report = matrix(device, true, |run| run);
        println!("{report}");
        report
            .failures
            .iter()
            .for_each(|failure| println!("{failure}"));
        *if report.failures.is_empty() {
            &mut good
        } else {
            &mut bad
        } += 1;
    }
    match Namespaces::pair() {
        Ok(hosts) => {
            for device in ["tulip:eth0", "gnic2:eth0", "clan:eth0", "ip:eth0"] {
                let report = matrix(device, true, |run| on_first_host(&hosts, run));
                println!("{report}");
                report
                    .failures
                    .iter()
                    .for_each(|failure| println!("{failure}"));
                *if report.failures.is_empty() {
                    &mut good
                } else {
                    &mut bad
                } += 1;
            }
        }
        Err(why) => {
            println!("SKIP raw Ethernet: {why}");
            absent = 4;
        }
    }
    println!("test result: {good} passed; {bad} failed; {absent} ignored;");
    std::process::exit(i32::from(bad > 0));
}
