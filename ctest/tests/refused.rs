//! Each system call of the library, of the agent and of devices is refused once, by a filter that counts
//! (`programs/refusing.c`), while two connections live and end. A call of VIPL may fail then, with one of its codes and a
//! line that says why; the process may not be killed, hang or be is_reported something that is not true; and afterwards all works.
//!
//! A sample, from a seed; the test that is ignored refuses every call that occurs, with every error, in an order of the day:
//! as many as `CTEST_SECONDS` allows (`cargo xtask refused`), or all, which takes half an hour. So it goes with memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use vipl_ctest::{Agent, Finished, Program, Run, library_dir, program, skip, source, work_dir};

/// ENOSYS and EPERM of sandboxes; EMFILE and ENOMEM of what is used up.
const ERRORS: [i32; 4] = [libc::ENOSYS, libc::EPERM, libc::EMFILE, libc::ENOMEM];
/// What needs one host only.
const DEVICES: [&str; 4] = ["via_lo", "sim:", "clan:", "ip:127.0.0.1"];
/// Runs of a sample, for each device.
const SAMPLE: usize = 25;
/// What `refusing` ends with where the system has no such filter.
const CANNOT: i32 = 77;
/// Runs at the same time.
const TOGETHER: usize = 2;

/// What is refused: system call, which one of those, error.
type Point = (i64, u64, i32);

/// Who is under the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The program. Its agent, and the devices of that, are not.
    Program,
    /// The program, an agent that serves no other program, and its devices.
    All,
}

/// Two connections under the filter.
fn refused(who: Who, agent: &Path, device: &str, (call, which, error): Point) -> Run {
    let run = Run::compatible(program("refusing")).env("RUST_BACKTRACE", "0");
    let numbers = [call.to_string(), which.to_string(), error.to_string()];
    let run = numbers.iter().fold(run, |run, number| run.arg(number));
    let run = match who {
        Who::Program => run,
        // Not the program's child: it ends with the run's process group.
        Who::All => {
            let start = "\"$1\" --idle-ms 60000 --socket \"$2\" & \
                         while ! test -S \"$2\"; do sleep 0.01; done; shift 2; exec \"$@\"";
            let run = run.arg("sh").arg("-c").arg(start).arg("sh");
            run.arg(library_dir().join("vipkad")).arg(agent)
        }
    };
    let run = run.env("VIPL_AGENT", agent).arg(program("refusable"));
    run.arg("-d").arg(device).arg("twice")
}

/// How often each system call occurs; `None`: the system has no such filter.
fn counted(finished: &Finished) -> Option<BTreeMap<i64, u64>> {
    if finished.status.code() == Some(CANNOT) {
        skip("this system has no seccomp filter that asks");
        return None;
    }
    let lines = finished.stderr.lines();
    let line = lines.rev().find_map(|line| line.strip_prefix("calls:"));
    let calls = line.unwrap_or_else(|| panic!("{}", finished.report("no count")));
    let count = |pair: &str| {
        let (call, count) = pair.split_once(':')?;
        Some((call.parse().ok()?, count.parse().ok()?))
    };
    Some(calls.split_whitespace().filter_map(count).collect())
}

/// As many points as there are, in an order from a seed.
fn points(calls: &BTreeMap<i64, u64>, seed: u64, most: usize) -> Vec<Point> {
    let each = calls.iter().flat_map(|(call, count)| {
        (1..=*count).flat_map(|which| ERRORS.map(|error| (*call, which, error)))
    });
    let mut all: Vec<Point> = each.collect();
    let mut random = seed;
    let mut sample = Vec::new();
    while sample.len() < most && !all.is_empty() {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        sample.push(all.swap_remove((random >> 33) as usize % all.len()));
    }
    sample
}

/// What is wrong with a run, if anything.
fn complaint(finished: &Finished) -> Option<String> {
    // What a descriptor's status tells needs no line.
    let failed = finished
        .stdout
        .lines()
        .any(|line| line.contains(": VIP_") && !line.ends_with(": VIP_DESCRIPTOR_ERROR"));
    let (out, err) = (&finished.stdout, &finished.stderr);
    if finished.timed_out {
        return Some("does not end".to_owned());
    }
    // An agent may end, with a line of its own, if it cannot wait.
    let ended = err.contains("vipkad[") && err.contains("no Kernel Agent answers");
    if ended && !finished.status.success() && finished.status.code().is_some_and(|code| code < 128)
    {
        return None;
    }
    if !finished.status.success() || out.contains("WRONG") || !out.contains("ok:") {
        return Some(format!("ended with {}", finished.status));
    }
    // Rust's runtime panics before `main` if the main thread gets no stack for signals.
    let panicked = |line: &str| line.contains("panicked") && !line.contains("/stack_overflow.rs:");
    if err.lines().any(panicked) || err.contains("a bug in") {
        return Some("a bug".to_owned());
    }
    // The agent and the devices have a log of their own.
    let is_reported = err.lines().any(|line| {
        let level = line
            .split_once("] ")
            .map(|(who, rest)| (who, rest.split(' ').next()));
        level.is_some_and(|(who, level)| {
            who.starts_with("vip") && matches!(level, Some("warn" | "error"))
        })
    });
    (failed && !is_reported).then(|| "failed without a line".into())
}

/// Runs all of them, or as many as there is time for; the complaints, and how many are left.
fn judge(
    points: Vec<Point>,
    end: Option<Instant>,
    run: impl Fn(Point) -> Option<String> + Sync,
) -> usize {
    let (left, complaints) = (Mutex::new(points), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                while end.is_none_or(|end| Instant::now() < end) {
                    let Some(point) = left.lock().expect("unpoisoned").pop() else {
                        return;
                    };
                    if let Some(complaint) = run(point) {
                        let mut all = complaints.lock().expect("unpoisoned");
                        all.push(format!("{point:?}: {complaint}"));
                    }
                }
            });
        }
    });
    let complaints = complaints.into_inner().expect("unpoisoned");
    let count = complaints.len();
    assert!(complaints.is_empty(), "{count}:\n{}", complaints.join("\n"));
    left.into_inner().expect("unpoisoned").len()
}

/// A sample.
fn on(who: Who, device: &str, seed: u64) {
    refuse(who, device, seed, SAMPLE, None);
}

fn refuse(who: Who, device: &str, seed: u64, most: usize, time: Option<Duration>) {
    let folder = tempfile::tempdir().expect("a folder");
    let outside = match who {
        Who::Program => Some(Agent::start_in(folder.path()).expect("an agent")),
        Who::All => None,
    };
    let numbers = AtomicU32::new(0);
    let run = |point| {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let own = folder.path().join(format!("agent{number}"));
        let agent = outside.as_ref().map_or(&*own, |agent| agent.socket());
        refused(who, agent, device, point).seconds(100).finish()
    };
    let finished = run((-1, 0, 0));
    let Some(calls) = counted(&finished) else {
        return;
    };
    let nothing = complaint(&finished);
    assert_eq!(nothing, None, "{}", finished.report("nothing is refused"));
    let points = points(&calls, seed, most);
    let count = points.len();
    let end = time.map(|time| Instant::now() + time);
    let left = judge(points, end, |point| {
        let finished = run(point);
        complaint(&finished).map(|what| finished.report(&what))
    });
    println!("{device}, {who:?}: {} of {count} refused", count - left);
}

#[test]
fn by_the_library_on_loopback() {
    on(Who::Program, "via_lo", 1);
}

#[test]
fn by_the_library_on_sim() {
    on(Who::Program, "sim:", 2);
}

#[test]
fn by_the_library_on_clan() {
    on(Who::Program, "clan:", 3);
}

#[test]
fn by_the_library_on_ip() {
    on(Who::Program, "ip:127.0.0.1", 4);
}

#[test]
fn by_the_agent_and_its_devices_too() {
    on(Who::All, "via_lo", 5);
    on(Who::All, "clan:", 6);
    on(Who::All, "ip:127.0.0.1", 7);
}

#[test]
#[ignore = "takes minutes: cargo xtask refused"]
fn all() {
    let cases = DEVICES
        .map(|device| (Who::Program, device))
        .into_iter()
        .chain([(Who::All, "via_lo"), (Who::All, "clan:")]);
    let seconds = std::env::var("CTEST_SECONDS").ok();
    let time = seconds.map(|seconds| {
        Duration::from_secs(seconds.parse().expect("a number of seconds"))
            / cases.clone().count() as u32
    });
    let day = UNIX_EPOCH
        .elapsed()
        .map_or(0, |time| time.as_secs() / 86_400);
    println!("seed {day}");
    for (who, device) in cases {
        refuse(who, device, day, usize::MAX, time);
    }
}

/// Calls fail when there is no address space, wherever that happens.
#[test]
fn no_address_space_from_any_point_on() {
    for device in DEVICES {
        // Less than a NIC needs, up to more than two connections need.
        for bytes in (0..60_000_000).step_by(2_345_678) {
            let run = Run::compatible(program("refusable")).arg("-d").arg(device);
            let finished = run.arg(format!("space:{bytes}")).seconds(100).finish();
            if let Some(what) = complaint(&finished) {
                panic!("{}", finished.report(&what));
            }
        }
    }
}

/// Messages of any length need no memory of the heap.
#[test]
fn no_heap_for_messages() {
    let library = work_dir().join("libstarving.so");
    Program::new(source("programs/starving.c"))
        .shared()
        .build(&library);
    for device in DEVICES {
        let run = Run::compatible(program("refusable")).preload(&library);
        let run = run.env("STARVE_FROM", "1").arg("-d").arg(device);
        run.arg("messages").pass();
    }
}
