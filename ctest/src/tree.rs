//! All processes of a run, wherever they have gone: they inherit a variable from it. A process group loses those that called
//! `setsid`, and parents those whose parent has ended.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The variable: the name of the process that made the run, a dot, and the number of the run.
const VARIABLE: &str = "CTEST_RUN";
/// For processes to end after SIGKILL, and for those that they started meanwhile.
const ENDING: Duration = Duration::from_secs(10);

/// The processes of one run, or of all runs of a process.
pub struct Tree {
    /// That process.
    whose: String,
    /// None: all of its runs.
    number: Option<u64>,
}

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
        Tree {
            whose: Tree::of_this_process().to_owned(),
            number: Some(number),
        }
    }

    /// A name of this process that no other one has had.
    pub fn of_this_process() -> &'static str {
        static NAME: OnceLock<String> = OnceLock::new();
        NAME.get_or_init(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.map_or(0, |now| now.as_nanos());
            format!("{}-{now}", std::process::id())
        })
    }

    /// Of all runs of a process, and of its agents; it may have ended.
    pub fn of(whose: &str) -> Tree {
        Tree {
            whose: whose.to_owned(),
            number: None,
        }
    }

    /// What the first process of a run has to have in its environment.
    pub(crate) fn variable(&self) -> (&'static str, String) {
        let number = self.number.unwrap_or(0);
        (VARIABLE, format!("{}.{number}", self.whose))
    }

    /// Whether a process with this variable, `NAME=VALUE`, belongs to it.
    fn has(&self, variable: &[u8]) -> bool {
        let text = std::str::from_utf8(variable).ok();
        let value = text.and_then(|text| text.strip_prefix(VARIABLE)?.strip_prefix('='));
        value.is_some_and(|value| match (value.rsplit_once('.'), self.number) {
            (Some((whose, number)), Some(own)) => whose == self.whose && number.parse() == Ok(own),
            (Some((whose, _)), None) => whose == self.whose,
            (None, _) => false,
        })
    }

    fn members(&self) -> Vec<Member> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let all = pids.filter_map(|pid: libc::pid_t| {
            // Those of other users cannot be read; a zombie has none.
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let mut variables = environment.split(|byte| *byte == 0);
            variables.find(|variable| self.has(variable))?;
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
    pub fn end(&self) {
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
    fn the_runs_of_one_process_are_not_those_of_another() {
        let (one, two, all) = (Tree::new(), Tree::new(), Tree::of(Tree::of_this_process()));
        let line = |tree: &Tree| {
            let (name, value) = tree.variable();
            format!("{name}={value}").into_bytes()
        };
        assert!(one.has(&line(&one)) && !one.has(&line(&two)));
        assert!(all.has(&line(&one)) && all.has(&line(&two)));
        assert!(!Tree::of("1-1").has(&line(&one)));
        assert!(!all.has(b"CTEST_RUN=") && !all.has(b"CTEST_RUNS=1.1") && !all.has(b"\xff"));
    }

    #[test]
    fn processor_time_is_counted() {
        let tree = Tree::new();
        assert_eq!(tree.processor_time(), Duration::ZERO);
        let own = member(std::process::id() as libc::pid_t).expect("this process");
        assert!(!own.is_zombie);
    }
}
