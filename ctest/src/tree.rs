//! All processes of a run, wherever they have gone: they inherit a variable from it. A process group loses those that called
//! `setsid`, and parents those whose parent has ended.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The variable.
const VARIABLE: &str = "CTEST_RUN";
/// For processes to end after SIGKILL, and for those that they started meanwhile.
const ENDING: Duration = Duration::from_secs(10);

/// The processes of one run.
pub(crate) struct Tree(String);

/// A process of it.
struct Member {
    pid: libc::pid_t,
    /// Ticks of processor time, with those of its children that have ended.
    ticks: u64,
    /// It has ended, and no process has waited for it.
    is_zombie: bool,
}

impl Tree {
    pub(crate) fn new() -> Tree {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        Tree(format!("{}.{number}", std::process::id()))
    }

    /// What its first process has to have in its environment.
    pub(crate) fn variable(&self) -> (&'static str, &str) {
        (VARIABLE, &self.0)
    }

    fn members(&self) -> Vec<Member> {
        let line = format!("{VARIABLE}={}", self.0);
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let all = pids.filter_map(|pid: libc::pid_t| {
            // Those of other users cannot be read; a zombie has none.
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let mut variables = environment.split(|byte| *byte == 0);
            variables.find(|variable| *variable == line.as_bytes())?;
            member(pid)
        });
        all.collect()
    }

    /// Processor time of those that run.
    pub(crate) fn processor_time(&self) -> Duration {
        let ticks: u64 = self.members().iter().map(|member| member.ticks).sum();
        // SAFETY: no memory is involved.
        let second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
        Duration::from_millis(ticks * 1000 / second)
    }

    /// Ends them all, also those that they start meanwhile.
    pub(crate) fn end(&self) {
        let begun = Instant::now();
        loop {
            let mut alive = self.members();
            alive.retain(|member| !member.is_zombie);
            if alive.is_empty() || begun.elapsed() > ENDING {
                return;
            }
            for member in alive {
                // SAFETY: no memory is involved; the process is of this run.
                unsafe { libc::kill(member.pid, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn member(pid: libc::pid_t) -> Option<Member> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may hold anything: state, then numbers; times are the fields 14 to 17.
    let after = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::ffi::OsStr::from_bytes(&text[after + 1..]).to_str()?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let times = fields.get(11..15)?.iter();
    Some(Member {
        pid,
        ticks: times.filter_map(|time| time.parse::<u64>().ok()).sum(),
        is_zombie: matches!(fields.first(), Some(&"Z" | &"X")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_that_has_left_its_group_and_its_parent_ends_too() {
        let (tree, other) = (Tree::new(), Tree::new());
        let (name, value) = tree.variable();
        let status = Command::new("sh")
            .args(["-c", "setsid sleep 1000 & exit 0"])
            .env(name, value)
            .stdout(Stdio::null())
            .status();
        assert!(status.expect("sh").success());
        assert!(other.members().is_empty());
        // `setsid` may still be about to become `sleep`.
        assert_eq!(tree.members().len(), 1);
        tree.end();
        assert!(tree.members().iter().all(|member| member.is_zombie));
    }

    #[test]
    fn processor_time_is_counted() {
        let tree = Tree::new();
        assert_eq!(tree.processor_time(), Duration::ZERO);
        let own = member(std::process::id() as libc::pid_t).expect("this process");
        assert!(!own.is_zombie);
    }
}
