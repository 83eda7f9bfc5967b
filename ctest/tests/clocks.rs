//! One module of the product reads clocks and sleeps: `vipl_sys::clock`. Text against text; nothing is run.

use vipl_ctest::product_sources;

/// Ways to learn the time, to let it pass, and to tell the kernel of it.
const WAYS: [&str; 20] = [
    "time::Instant",
    "time::{Duration, Instant",
    "SystemTime::now",
    "UNIX_EPOCH",
    "rdtsc",
    "clock_gettime",
    "gettimeofday",
    "thread::sleep",
    "nanosleep",
    "usleep(",
    "park_timeout",
    ".wait_timeout",
    "recv_timeout",
    "set_read_timeout",
    "set_write_timeout",
    "FUTEX_WAIT",
    "tv_sec",
    "epoll_wait(",
    "libc::poll(",
    "libc::ppoll(",
];

/// Files that may name one of them.
const ALLOWED: [(&str, &str); 6] = [
    // A cheap clock to order events by; nothing waits for it.
    ("plugins/loopback/src/ticks.rs", "rdtsc"),
    // Two times of each call, which a clock would double; the file is written with times of the module.
    ("plugins/layers/trace/src/ticks.rs", "rdtsc"),
    // They give it times of the module.
    ("base/sys/src/mutex.rs", ".wait_timeout"),
    ("base/sys/src/futex.rs", "FUTEX_WAIT"),
    // Without limit, or not at all; its alarm has a time of the module.
    ("plugins/clan/device/src/events.rs", "epoll_wait("),
    ("base/sys/src/clock.rs", ""),
];

#[test]
fn only_one_module_reads_clocks_and_sleeps() {
    let sources = product_sources(&["libvipl", "plugins", "kagent", "mpi", "base"]);
    assert!(sources.len() > 150, "only {} sources", sources.len());
    let mut found = Vec::new();
    for (path, text) in &sources {
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for way in WAYS.iter().filter(|way| code.contains(**way)) {
                let allowed = |(file, what): &(&str, &str)| {
                    path.ends_with(file) && (what.is_empty() || what == way)
                };
                if !ALLOWED.iter().any(allowed) {
                    let path = path.display();
                    found.push(format!("{path}:{}: {}", number + 1, line.trim()));
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "vipl_sys::clock has this, with the factor of tests:\n{}",
        found.join("\n")
    );
}
