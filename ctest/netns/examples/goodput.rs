//! What loss on the cable leaves of a stream: 64 KiB messages between two hosts whose cable delays each frame
//! by a millisecond and loses none, or one in a hundred, by turns; between programs that poll, and between
//! programs that sleep until something comes. Takes root, and a release build:
//!
//! ```text
//!   cargo build --release && cargo run --release -p vipl-netns --example goodput [RUNS [poll|wait]]
//! ```

use std::process::ExitCode;

use vipl_netns::{INTERFACE, Impairments, Namespaces, Relay};

const LOSS: f64 = 0.01;
const DELAY_NS: u64 = 1_000_000;
/// What the two programs do until something comes.
const MODES: [&str; 2] = ["poll", "wait"];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let runs = words.next().and_then(|word| word.parse().ok());
    let only = words.next();
    let modes: Vec<_> = MODES
        .into_iter()
        .filter(|mode| only.as_ref().is_none_or(|only| only == mode))
        .collect();
    if modes.is_empty() {
        eprintln!("goodput: programs poll or wait");
        return ExitCode::FAILURE;
    }
    match measure(runs.unwrap_or(5).max(1), &modes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("goodput: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(runs: u64, modes: &[&str]) -> Result<(), String> {
    let hosts = Namespaces::bridge(2)?;
    for host in 0..hosts.hosts() {
        hosts.set_mtu(host, 9000);
    }
    let clear = Impairments {
        delay_ns: DELAY_NS,
        ..Impairments::default()
    };
    let relay = Relay::start(&hosts, clear.clone()).map_err(|error| error.to_string())?;
    println!("run  programs  none, MB/s  {LOSS} lost, MB/s  ratio");
    let mut ratios = vec![Vec::new(); modes.len()];
    for seed in 1..=runs {
        let lossy = Impairments {
            seed,
            loss: LOSS,
            ..clear.clone()
        };
        for (mode, ratios) in modes.iter().zip(&mut ratios) {
            let [none, lost] = [&clear, &lossy].map(|impairments| {
                relay.impair(impairments.clone());
                std::thread::sleep(std::time::Duration::from_millis(100));
                stream(&hosts, mode)
            });
            let (none, lost) = (none?, lost?);
            ratios.push(lost / none);
            let ratio = lost / none;
            println!("{seed:3}  {mode:8}  {none:10.1}  {lost:15.1}  {ratio:5.2}");
        }
    }
    for (mode, ratios) in modes.iter().zip(&mut ratios) {
        ratios.sort_by(f64::total_cmp);
        println!("median {mode} {:.2}", ratios[ratios.len() / 2]);
    }
    println!("{:?}", relay.end());
    Ok(())
}

/// Megabytes per second that arrive.
fn stream(hosts: &Namespaces, mode: &str) -> Result<f64, String> {
    // Beside the folder of the examples.
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = here.with_file_name("../vip_perf");
    let output = hosts
        .command(0, program)
        .args(["--self", "--netns", hosts.name(1), "--json"])
        .args(["-d", &format!("gnic2:{INTERFACE}"), "-s", "64k"])
        .args(["--seconds", "1", "--runs", "1"])
        .args([&format!("--{mode}"), "bandwidth"])
        .output()
        .map_err(|error| format!("vip_perf: {error}; build it with cargo build --release"))?;
    let found: Option<f64> = serde_json::from_slice(&output.stdout)
        .ok()
        .and_then(|report: serde_json::Value| report["results"][0]["figures"][0]["value"].as_f64());
    found.map(|value| value * 1000.0).ok_or_else(|| {
        let text = String::from_utf8_lossy(&output.stderr);
        format!("vip_perf: {}: {text}", output.status)
    })
}
