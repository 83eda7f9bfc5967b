//! The tests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use vipl_ctest::program as compiled;

use crate::hosts::{self, must, program};
use crate::order::{self, kind};

/// The device that programs open, the same on both hosts.
const DEVICE: &str = "verbs:eth0";
/// The C programs that tests run.
const PROGRAMS: &[&str] = &[
    "tour", "simple", "rdma", "errors", "cq", "threads", "waits", "xfer", "disc", "cable", "idle",
];

/// A test. Those that are not `short` take minutes each, and run when they are named.
struct Test {
    name: &'static str,
    is_short: bool,
    body: fn(),
}

const fn short(name: &'static str, body: fn()) -> Test {
    Test {
        name,
        is_short: true,
        body,
    }
}

const fn long(name: &'static str, body: fn()) -> Test {
    Test {
        name,
        is_short: false,
        body,
    }
}

// What only two hosts show comes first: there may be no time for all.
const TESTS: &[Test] = &[
    short("pingpong", pingpong),
    short("killed", killed),
    short("own_link_down", own_link_down),
    short("unexplained", unexplained),
    short("short_cut", short_cut),
    short("secret", secret),
    short("ipv6", ipv6),
    short("link_local", link_local),
    short("idle", idle),
    short("agent_killed", agent_killed),
    short("simple", || pass("simple")),
    short("errors", || pass("errors")),
    short("unequal_mtu", unequal_mtu),
    short("rdma", || pass("rdma")),
    long("tour", || pass("tour")),
    long("cq", || pass("cq")),
    long("threads", || pass("threads")),
    long("waits", || pass("waits")),
    long("xfer", || pass("xfer")),
    long("disc", disc),
    long("unplugged", unplugged),
    long("killed_together", killed_together),
    long("report", report),
];

/// Compiles what is needed, which takes minutes in a guest.
pub(crate) fn compile() -> ExitCode {
    for name in PROGRAMS {
        compiled(name);
    }
    vipl_ctest::library_dir();
    ExitCode::SUCCESS
}

/// Runs the tests whose names contain one of these words, or the short ones; `all`: all. Begins none after the seconds of a
/// word `--within=SECONDS`.
pub(crate) fn run(words: &[String]) -> ExitCode {
    let (options, names): (Vec<_>, Vec<_>) = words.iter().partition(|word| word.starts_with("--"));
    let within = options
        .first()
        .and_then(|word| word.strip_prefix("--within=")?.parse().ok());
    let within = within.map_or(Duration::MAX, Duration::from_secs);
    let wanted = |test: &&Test| match names.as_slice() {
        [] => test.is_short,
        names => names
            .iter()
            .any(|name| name.as_str() == "all" || test.name.contains(name.as_str())),
    };
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    let begun = Instant::now();
    for test in TESTS.iter().filter(wanted) {
        let start = Instant::now();
        if begun.elapsed() > within {
            println!(
                "test two::{} ... ignored, no time was left for it",
                test.name
            );
            ignored += 1;
            continue;
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            for side in 0..2 {
                restore(side);
                hosts::start_agent(side, None);
            }
            (test.body)();
        }));
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => passed += 1,
            Err(_) => {
                failed += 1;
                for side in 0..2 {
                    let (_, text) = hosts::on(
                        side,
                        "cat /run/agent/log /run/server.log; dmesg | tail -5; ip addr show eth0",
                    );
                    println!("-- guest {side}\n{text}");
                }
            }
        }
        let word = if result.is_ok() { "ok" } else { "FAILED" };
        println!("test two::{} ... {word} ({seconds:.1} s)", test.name);
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "test result: {word}. {passed} passed; {failed} failed; {ignored} ignored; finished in {seconds:.0} s"
    );
    let end = order::connect().and_then(|stream| order::put(stream, &[kind::END.to_owned()]));
    match (failed, end) {
        (0, Ok(())) if passed > 0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// The addresses and links as at the beginning.
fn restore(side: usize) {
    let number = side + 1;
    if side == 0 {
        hosts::plug(true);
    }
    must(
        side,
        &format!(
            "rm -f /run/agent/log /run/server.log
             ip link set eth0 mtu 4200 up
             ip addr replace 10.9.0.{number}/24 dev eth0
             ip addr replace fd09::{number}/64 dev eth0 nodad
             n=0; until grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
             do n=$((n + 1)); [ $n -lt 300 ] || exit 1; sleep 0.1; done"
        ),
    );
}

/// A C program with one side on each of the hosts.
fn pass(name: &str) {
    program(name, DEVICE).pass();
}

fn ping(server: &str, client: &str) {
    hosts::start_server(server);
    let (status, output) = hosts::client(client);
    assert!(status == 0, "vip_pingpong {client}: {status}\n{output}");
    println!("{}", output.trim_end());
}

/// Every byte of messages and RDMA Writes is checked, on each level, polling and waiting, also by the device's name.
fn pingpong() {
    let sizes = "-c -n 200 -w 20 -s 8,4k,64k";
    ping("-d verbs:eth0", &format!("10.9.0.2 -d verbs:eth0 {sizes}"));
    ping("-d verbs:", &format!("10.9.0.2 -d verbs:rxe0 -e {sizes}"));
    ping(
        "-d verbs:eth0",
        &format!("10.9.0.2 -d verbs:eth0 -r reception --rdma {sizes}"),
    );
    ping(
        "-d verbs:eth0",
        &format!("10.9.0.2 -d verbs:eth0 -r unreliable {sizes}"),
    );
}

fn disc() {
    // One line comes from the default handler of asynchronous errors, as it should (ERR-02).
    program("disc", DEVICE).allow("VIP_ERROR_CONN_LOST").pass();
}

/// The smaller one of the two is agreed.
fn unequal_mtu() {
    must(1, "ip link set eth0 mtu 1500");
    ping(
        "-d verbs:eth0",
        "10.9.0.2 -d verbs:eth0 -c -n 20 -w 1 -s 64k",
    );
    pass("rdma");
}

/// Hosts with one secret connect; a host without it, or with another one, is refused.
fn secret() {
    let client = "10.9.0.2 -d verbs:eth0 -c -n 20 -w 1 -s 4k";
    let secret = "two hosts with one secret";
    for (other, fits) in [
        (Some(secret), true),
        (None, false),
        (Some("another secret, as long"), false),
    ] {
        hosts::start_agent(0, Some(secret));
        hosts::start_agent(1, other);
        hosts::start_server("-d verbs:eth0");
        let (status, output) = hosts::client(client);
        assert!((status == 0) == fits, "{other:?}: {status}\n{output}");
        if !fits {
            must(1, "kill -9 -$(cat /run/server)");
        }
    }
}

/// Without addresses of IPv4 those of IPv6 serve.
fn ipv6() {
    for side in 0..2 {
        must(side, "ip -4 addr flush dev eth0");
    }
    ping(
        "-d verbs:eth0",
        "fd09::2 -d verbs:eth0 -c -n 100 -w 1 -s 8,64k",
    );
    pass("simple");
}

/// Link-local addresses are refused, with words.
fn link_local() {
    must(
        0,
        "ip -4 addr flush dev eth0; ip -6 addr del fd09::1/64 dev eth0",
    );
    let (status, output) = hosts::client("10.9.0.2 -d verbs:eth0 -n 1");
    assert!(status != 0 && output.contains("eth0"), "{status}\n{output}");
    println!("{}", output.trim_end());
}

/// Packets that the RDMA device of this guest has sent.
fn sent() -> u64 {
    let text = must(
        0,
        "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts",
    );
    text.trim().parse().expect("a number")
}

/// Waits until the RDMA device has sent so many packets more: what is needed for connecting, and busy since then.
fn wait_for_traffic(before: u64, is_running: &mut dyn FnMut() -> bool) {
    let begun = Instant::now();
    while sent() < before + 500 && is_running() {
        assert!(begun.elapsed() < Duration::from_secs(120), "no traffic");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A client that plays ping-pong without end, and what comes of it.
fn endless_client(meanwhile: impl FnOnce()) -> (i32, String) {
    hosts::start_server("-d verbs:eth0");
    let before = sent();
    std::thread::scope(|scope| {
        let client = "10.9.0.2 -d verbs:eth0 -e -n 100000000 -w 1 -s 4k";
        let client = scope.spawn(|| hosts::client(client));
        wait_for_traffic(before, &mut || !client.is_finished());
        meanwhile();
        let begun = Instant::now();
        let end = client.join().expect("the client");
        println!("told after {:.1} s", begun.elapsed().as_secs_f64());
        end
    })
}

/// Connections last on which nothing is sent, for several questions to the peer's device.
fn idle() {
    program("idle", DEVICE).arg("8").pass();
}

/// A process that is killed is missed at once.
fn killed() {
    let (status, output) = endless_client(|| drop(must(1, "kill -9 -$(cat /run/server)")));
    let lost = output.contains("VIP_ERROR_CONN_LOST");
    assert!(status != 0 && lost, "{status}\n{output}");
}

/// A process that is killed together with its agent: its device does not answer any more.
fn killed_together() {
    // At once: a server without its agent ends by itself.
    let (status, output) = endless_client(|| {
        must(
            1,
            "kill -9 $(cat /run/agent/pid) -$(cat /run/server); rm /run/agent/pid",
        );
    });
    let lost = output.contains("VIP_ERROR_CONN_LOST");
    assert!(status != 0 && lost, "{status}\n{output}");
}

/// Connections outlive the agent of one side.
fn agent_killed() {
    let run = program("cable", DEVICE).arg("survive").arg("20");
    let run = run.allow("the Kernel Agent exited");
    during(run, || {
        hosts::kill_agent(1);
        hosts::start_agent(1, None);
    });
}

/// Runs a program that sends until something has been done.
fn during(run: vipl_ctest::Run, what: impl FnOnce()) {
    let before = sent();
    let mut program = run.start();
    wait_for_traffic(before, &mut || program.is_running());
    assert!(program.is_running(), "it has ended before");
    what();
    let begun = Instant::now();
    program.finish().expect_pass();
    println!("ended after {:.1} s", begun.elapsed().as_secs_f64());
}

/// A cable that is out for a second costs time and nothing else. (The kernel takes the routes of an interface that is set
/// down, and then rxe ends connections that have something to send.)
fn short_cut() {
    during(program("cable", DEVICE).arg("survive").arg("20"), || {
        hosts::plug(false);
        std::thread::sleep(Duration::from_secs(1));
        hosts::plug(true);
    });
}

/// A link that stays down: its own host is told, and its peer.
fn own_link_down() {
    let run = program("cable", DEVICE)
        .arg("lose")
        .allow("VIP_ERROR_CONN_LOST");
    during(run.allow("the port of the RDMA device is down"), || {
        must(1, "ip link set eth0 down");
    });
}

/// Two processes of one host whose interface is set down for a moment: rxe ends their queue pairs without a reason.
fn unexplained() {
    let before = sent();
    let (status, output) = std::thread::scope(|scope| {
        let client = "--self -d verbs:eth0 -e -n 100000000 -w 1 -s 4k";
        let client = scope.spawn(|| hosts::client(client));
        wait_for_traffic(before, &mut || !client.is_finished());
        must(0, "ip link set eth0 down; sleep 3; ip link set eth0 up");
        client.join().expect("both")
    });
    let lost = output.contains("VIP_ERROR_CONN_LOST") && !output.contains("timed out");
    assert!(status != 0 && lost, "{status}\n{output}");
}

/// The same from outside, here.
fn unplugged() {
    let run = program("cable", DEVICE)
        .arg("lose")
        .allow("VIP_ERROR_CONN_LOST");
    during(run.allow("the port of the RDMA device is down"), || {
        hosts::plug(false)
    });
}

/// The script for owners of hardware, on one host and on two, in all its modes.
fn report() {
    let script = vipl_ctest::source("../docs/verbs-hardware.sh");
    let script = format!("sh {}", script.display());
    let tools = hosts::tool("");
    let settings = format!(
        "export {} PATH={}:$PATH ITERATIONS=20",
        hosts::settings(),
        tools.display()
    );
    println!("{}", must(0, &format!("{settings}; {script} verbs:eth0")));
    must(
        1,
        &format!(
            "{settings}; setsid {script} eth0 server </dev/null >/run/server.log 2>&1 & echo $! >/run/server"
        ),
    );
    println!(
        "{}",
        must(0, &format!("{settings}; {script} eth0 10.9.0.2 down"))
    );
    must(1, "kill -TERM -$(cat /run/server)");
}
