//! Everything that may last is left alone for a long time, and works afterwards.
//!
//! Time passes faster in the programs, the agents and the devices (`VIPL_TEST_TIME`). As an ordinary test each idles a minute
//! of theirs or most of one, which is longer than any limit of the library and the agent; `cargo xtask hours` makes it hours.

use std::process::{Command, Stdio};
use std::time::Duration;

use vipl_ctest::{Agent, Run, end_with_parent, library_dir, program, time_factor};
use vipl_netns::{Apart, Namespaces};

/// The factor of an ordinary run. A connection over a network bears nine seconds of silence, here 1.5 s: other tests run at
/// the same time.
const FACTOR: u64 = 6;
/// Seconds to idle, unless `CTEST_IDLE_SECONDS` says otherwise.
const SECONDS: u64 = 7;
/// Before other tests, where that is permitted: what idles needs little of a processor, and soon.
const NICE: i32 = -15;
/// A program that has not ended so long after it has idled.
const PATIENCE_SECONDS: u64 = 240;

/// How long a state lasts, here.
fn seconds() -> u64 {
    let given = std::env::var("CTEST_IDLE_SECONDS").ok();
    given.map_or(SECONDS, |text| text.parse().expect("a number of seconds"))
}

fn idles(device: &str, run: Run) {
    let virtual_seconds = seconds() * time_factor();
    let finished = run
        .arg(virtual_seconds.to_string())
        .seconds(seconds() + PATIENCE_SECONDS)
        .finish();
    if let Some(complaint) = finished.complaint() {
        panic!("{}", finished.report(&complaint));
    }
    for line in finished
        .stdout
        .lines()
        .filter(|line| line.starts_with("ok: "))
    {
        println!("{device}: {line}");
    }
}

fn on_one_host(device: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let agent = Agent::start_in(folder.path()).expect("vipkad");
    idles(
        device,
        Run::strict(program("idle"))
            .env("VIPL_AGENT", agent.socket())
            .arg("-d")
            .arg(device),
    );
}

/// The connection points of both hosts are found again after a long time: cookies of agents and numbers of hosts have grown
/// old, devices and agents had no process to serve.
fn on_two_hosts(device: &str) {
    let hosts = match Namespaces::pair() {
        Ok(hosts) => hosts,
        Err(why) => return println!("SKIP network namespaces: {why}"),
    };
    let apart = Apart::new(&hosts);
    let meet = || apart.run("idle", device);
    meet().arg("1").pass();
    std::thread::sleep(Duration::from_secs(seconds()));
    let hours = (seconds() * time_factor()) as f64 / 3600.0;
    println!("{device}: ok: agents, devices and cookies of two hosts, unused: {hours:.2} h");
    idles(device, meet());
}

/// An agent without clients exits; one that is started to stay stays.
fn agents_without_clients() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = |name: &str, idle_ms: &str| {
        let mut agent = Command::new(library_dir().join("vipkad"));
        agent.args(["--idle-ms", idle_ms, "--socket"]);
        agent.arg(folder.path().join(name)).stdin(Stdio::null());
        end_with_parent(&mut agent);
        agent.spawn().expect("vipkad")
    };
    let (mut leaves, mut stays) = (start("leaves", "3000"), start("stays", "0"));
    std::thread::sleep(Duration::from_secs(seconds()));
    let is_there = stays.try_wait().expect("a child").is_none();
    assert!(leaves.wait().expect("a child").success());
    assert!(is_there, "the agent that is told to stay has left");
    let socket = folder.path().join("stays");
    Run::strict(program("idle"))
        .env("VIPL_AGENT", &socket)
        .arg("1")
        .seconds(PATIENCE_SECONDS)
        .pass();
    let hours = (seconds() * time_factor()) as f64 / 3600.0;
    println!("agent: ok: an agent without clients: {hours:.2} h");
    stays.kill().expect("a child");
    stays.wait().expect("a child");
}

#[test]
fn hours_pass() {
    if time_factor() == 1 {
        // Once more, in a process in which time passes faster, as it does in all that it starts.
        let status = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "--nocapture", "hours_pass"])
            .env("VIPL_TEST_TIME", FACTOR.to_string())
            .env("VIPL_TEST_WRAP", "1")
            .status();
        assert!(status.expect("this program").success());
        return;
    }
    // SAFETY: plain arguments. What starts from here on inherits it.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    std::thread::scope(|scope| {
        scope.spawn(agents_without_clients);
        for device in ["/dev/via_lo", "sim:", "clan:", "ip:127.0.0.1"] {
            scope.spawn(move || on_one_host(device));
        }
        for device in ["ip:eth0", "gnic2:eth0", "tulip:eth0", "clan:eth0"] {
            scope.spawn(move || on_two_hosts(device));
        }
    });
}
