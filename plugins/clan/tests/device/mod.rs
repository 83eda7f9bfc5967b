//! The device that an agent has started, for tests that signal it.

#![allow(dead_code, reason = "no test uses all of it")]

use std::path::Path;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that must happen.
pub(crate) fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < PATIENCE, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn find(agent: &Path) -> Option<i32> {
    let text = |pid: i32, file: &str| std::fs::read(format!("/proc/{pid}/{file}")).ok();
    let pids = std::fs::read_dir("/proc").expect("/proc").flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .find(|pid| {
            let parent = || {
                let stat = String::from_utf8(text(*pid, "stat")?).ok()?;
                let (_, rest) = stat.rsplit_once(')')?;
                let parent: i32 = rest.split_whitespace().nth(1)?.parse().ok()?;
                text(parent, "cmdline")
            };
            let socket = agent.as_os_str().as_encoded_bytes();
            text(*pid, "comm").is_some_and(|comm| comm == b"vipl-clan\n")
                && parent().is_some_and(|line| line.windows(socket.len()).any(|w| w == socket))
        })
}

/// A device. If it was stopped, it continues when this is dropped.
pub(crate) struct Device(i32);

impl Device {
    /// The device of the agent with this socket.
    pub(crate) fn of(agent: &Path) -> Device {
        let mut found = None;
        wait_for("the device", || {
            found = find(agent);
            found.is_some()
        });
        Device(found.expect("a device"))
    }

    pub(crate) fn kill(&self) {
        self.signal(libc::SIGKILL);
    }

    /// Stops it; nothing runs any more when this returns.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        wait_for("a device that stands still", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).expect("stat");
            let (_, rest) = stat.rsplit_once(')').expect("stat");
            rest.trim_start().starts_with('T')
        });
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a process that our own agent has started.
        unsafe { libc::kill(self.0, signal) };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
    }
}
