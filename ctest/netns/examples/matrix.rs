//! What bad paths leave of a stream of 64 KiB messages over `ip` and of TCP (CUBIC, alone), in megabytes per second: to a
//! host of the same subnet, and to one that counts as elsewhere, for which `ip` has the window of CUBIC, too. A thread
//! stands for the path, which both directions of every packet take. Takes root, a release build, and three minutes:
//!
//! ```text
//!   cargo build --release && cargo run --release -p vipl-netns --example matrix [SECONDS]
//! ```

use std::process::ExitCode;

use vipl_netns::{Apart, INTERFACE, Impairments, Namespaces, Relay, beside_tcp, stream};

/// Loss, one-way delay in milliseconds, share that is held back, megabytes per second of each host (0: no limit).
const PATHS: [(f64, u64, f64, u64); 8] = [
    (0.0, 0, 0.0, 0),
    (0.0, 5, 0.0, 0),
    (0.001, 5, 0.0, 0),
    (0.01, 5, 0.0, 0),
    (0.03, 5, 0.0, 0),
    (0.01, 1, 0.0, 0),
    (0.0, 5, 0.1, 0),
    (0.01, 5, 0.0, 12),
];

fn main() -> ExitCode {
    let seconds = std::env::args().nth(1).and_then(|word| word.parse().ok());
    match measure(seconds.unwrap_or(4)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("matrix: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(seconds: u32) -> Result<(), String> {
    println!("loss   ms one way  held back  MB/s of line  ip, subnet  ip, elsewhere     TCP");
    for (loss, delay_ms, reorder, rate) in PATHS {
        let mut found = Vec::new();
        for elsewhere in [false, true] {
            let hosts = Namespaces::bridge(2)?;
            single_packets(&hosts);
            if elsewhere {
                apart(&hosts);
            }
            let impairments = Impairments {
                seed: 1,
                loss,
                reorder,
                delay_ns: delay_ms * 1_000_000,
                rate: rate * 1_000_000,
                ..Impairments::default()
            };
            let relay = Relay::start(&hosts, impairments).map_err(|error| error.to_string())?;
            let agents = Apart::new(&hosts);
            found.push(stream(&agents, &format!("ip:{INTERFACE}"), seconds));
            if elsewhere {
                let wait =
                    || std::thread::sleep(std::time::Duration::from_secs(1 + u64::from(seconds)));
                found.push(beside_tcp(&hosts, wait).1);
            }
            relay.end();
        }
        let [subnet, elsewhere, tcp] = [found[0], found[1], found[2]].map(|rate| rate / 1e6);
        println!(
            "{loss:5}  {delay_ms:10}  {reorder:9}  {rate:12}  {subnet:10.2}  {elsewhere:13.2}  {tcp:6.2}"
        );
    }
    Ok(())
}

/// A packet on the path is one that a wire could carry, not a train of them that is lost together.
fn single_packets(hosts: &Namespaces) {
    for host in 0..2 {
        run(
            hosts,
            host,
            &format!("link set dev {INTERFACE} gso_max_segs 1"),
        );
    }
}

fn run(hosts: &Namespaces, host: usize, line: &str) {
    let mut ip = hosts.command(host, "ip");
    let status = ip.args(line.split(' ')).status();
    assert!(status.is_ok_and(|status| status.success()), "{line}");
}

/// Each host has a subnet of its own, and the other host is reached on the same switch.
fn apart(hosts: &Namespaces) {
    for host in 0..2 {
        let (own, other) = (hosts.ipv4(host), hosts.ipv4(1 - host));
        for line in [
            format!("address del {own}/24 dev {INTERFACE}"),
            format!("address add {own}/32 dev {INTERFACE}"),
            format!("route add {other} dev {INTERFACE}"),
        ] {
            run(hosts, host, &line);
        }
    }
}
