//! Runs programs under a watchdog, and judges what they did.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::library::{Build, library_dir};
use crate::tree::Tree;

/// How long a program may take unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long some process of it may be stopped. Programs that stop a peer let it go on after a few seconds.
const STOPPED: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often the processor time of a run with [`Limits`] is.
const LOOK_AT_TIME: Duration = Duration::from_secs(1);
/// Share of a processor that threads of the library use while a program does nothing, and more: two processes whose device is
/// asked a thousand times a second take 2 to 4 %, on a busy machine up to 10.
const IDLE_SHARE: f64 = 0.1;
/// How long its pipes may stay open after its end.
const AFTERMATH: Duration = Duration::from_secs(5);

/// What the log says of calls and descriptors that fail. Programs make such on purpose, and check return codes and
/// Status; what the log must say of them is in tests/words.rs and tests/mistakes.rs. All else at `warn` is no part of that.
const FAILURES: &[&str] = &[
    ") = VIP_",
    "] warn desc: VI 0x",
    "] warn desc: cannot post",
    "] warn mem: Vip",
    "] warn mem: MemAttribs is NULL",
    "] warn cm: no server for discriminator",
    "] warn cm: no connection to",
    "] warn cm: no peer-to-peer connection",
    "] warn cq: a CQ has 1 to",
    "] warn cq: no more than",
    "] warn vi: no more than",
    "] warn ns: the table of hosts has no address",
    "VipCloseNic refused",
    "VipDestroyVi refused",
    "VipDestroyCQ refused",
    "VipResizeCQ refused",
    "] warn desc: a send was posted on VI 0x",
    "cannot request a connection",
    "cannot open",
    "cannot register",
];

/// When a run has lost its way, however busy the machine is: not by the time that passes, but by what it does.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Processor time of all of its processes.
    pub processor_time: Duration,
    /// How long they may do nothing at all.
    pub idle: Duration,
}

/// Why a run was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Its seconds were over.
    Late,
    /// This process of it was stopped, and did not go on.
    Stopped(libc::pid_t),
    /// Its processor time was used up.
    Busy(Duration),
    /// It did nothing for so long.
    Idle(Duration),
}

/// One run of one program.
pub struct Run {
    command: Command,
    shown: String,
    patience: Duration,
    stopped_max: Duration,
    limits: Option<(Limits, Tree)>,
    allowed: Vec<String>,
    build: Build,
    preload: Vec<PathBuf>,
}

/// What came of it.
#[derive(Debug)]
pub struct Finished {
    /// The command line.
    pub shown: String,
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it, the library and the system complained about.
    pub stderr: String,
    /// The watchdog ended it.
    pub timed_out: bool,
    /// Why it did.
    why: Option<Ended>,
    /// Some process still holds its standard output or error, though it has ended.
    pub held: bool,
    allowed: Vec<String>,
}

impl Run {
    /// Of a program, with the library under test, in strict mode.
    pub fn strict(program: impl AsRef<Path>) -> Run {
        Run::compatible(program).env("VIPL_STRICT", "1")
    }

    /// Of a program, with the library under test, in the compatible mode.
    pub fn compatible(program: impl AsRef<Path>) -> Run {
        let program = program.as_ref();
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("VIPL_") && !text.starts_with("VIPL_TEST_") {
                command.env_remove(name);
            }
        }
        command.env("LD_LIBRARY_PATH", library_dir());
        command.env("VIPL_CONFIG", "/dev/null");
        // Settings with which all programs are to run once, such as `VIPL_FLIGHT=true`.
        let settings = std::env::var("CTEST_SETTINGS").unwrap_or_default();
        command.envs(
            settings
                .split_whitespace()
                .filter_map(|one| one.split_once('=')),
        );
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.process_group(0);
        let shown = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Run {
            command,
            shown,
            patience: PATIENCE,
            stopped_max: STOPPED,
            limits: None,
            allowed: Vec::new(),
            build: Build::Own,
            preload: Vec::new(),
        }
    }

    /// Says of which build the program is.
    pub fn of(mut self, build: Build) -> Run {
        self.build = build;
        self
    }

    /// Of which build the program is.
    pub fn build(&self) -> Build {
        self.build
    }

    /// With a library loaded before all others, one more.
    pub fn preload(mut self, library: &Path) -> Run {
        self.preload.push(library.to_owned());
        let list = std::env::join_paths(&self.preload).expect("paths without a colon");
        self.env("LD_PRELOAD", list)
    }

    /// With an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Run {
        self.shown += &format!(" {}", argument.as_ref().to_string_lossy());
        self.command.arg(argument);
        self
    }

    /// With several arguments.
    pub fn args(self, arguments: &[&str]) -> Run {
        arguments.iter().fold(self, Run::arg)
    }

    /// With a variable.
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Run {
        let value = value.into();
        self.shown = format!("{name}={} {}", value.to_string_lossy(), self.shown);
        self.command.env(name, value);
        self
    }

    /// Without a variable.
    pub fn without(mut self, name: &str) -> Run {
        self.command.env_remove(name);
        self
    }

    /// With a number of seconds to end in.
    pub fn seconds(mut self, seconds: u64) -> Run {
        self.patience = Duration::from_secs(seconds);
        self
    }

    /// With limits; all of its processes end with it, also those that have left its process group.
    pub fn limits(self, limits: Limits) -> Run {
        let tree = Tree::new();
        let (name, value) = tree.variable();
        let mut run = self;
        run.command.env(name, value);
        run.limits = Some((limits, tree));
        run
    }

    /// Log lines with this text are no failure.
    pub fn allow(mut self, text: &str) -> Run {
        self.allowed.push(text.to_owned());
        self
    }

    /// Runs it, whatever comes of it.
    pub fn finish(self) -> Finished {
        self.start().finish()
    }

    /// Runs it; it must succeed, say `ok:` and nothing else of note.
    pub fn pass(self) -> Finished {
        let finished = self.finish();
        finished.expect_pass();
        finished
    }

    /// Starts it; it ends at the latest when its seconds are over and [`Started::finish`] is called.
    pub fn start(mut self) -> Started {
        end_with_parent(&mut self.command);
        let mut child = self
            .command
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", self.shown));
        let stdout = collect(child.stdout.take().expect("a pipe"));
        let stderr = collect(child.stderr.take().expect("a pipe"));
        let begun = Instant::now();
        Started {
            run: self,
            child,
            stdout,
            stderr,
            begun,
        }
    }
}

/// The command's process ends when the thread that starts it does: a test that is killed leaves no process behind that goes
/// on alone.
pub fn end_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let follow = move || {
        // SAFETY: plain arguments, and calls that a child may make between fork and exec.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // It may have ended before that.
            if libc::getppid() as u32 != parent {
                libc::_exit(1);
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(follow) };
}

/// Runs several programs at the same time, all of which must pass.
pub fn start_together(runs: Vec<Run>) -> Vec<Finished> {
    let started: Vec<Started> = runs.into_iter().map(Run::start).collect();
    let finished: Vec<Finished> = started.into_iter().map(Started::finish).collect();
    for one in &finished {
        one.expect_pass();
    }
    finished
}

/// A run under way.
pub struct Started {
    run: Run,
    child: Child,
    stdout: mpsc::Receiver<Vec<u8>>,
    stderr: mpsc::Receiver<Vec<u8>>,
    begun: Instant,
}

impl Started {
    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Finished {
        let pause = Duration::from_millis(5);
        let (mut looked, mut halted) = (self.begun, None);
        let mut pace = Pace::new(self.begun);
        let (status, why) = loop {
            if let Some(status) = self.child.try_wait().expect("wait for a program") {
                break (status, None);
            }
            if looked.elapsed() > LOOK {
                looked = Instant::now();
                // One process and the same, from one look to the next.
                halted = stopped(self.child.id()).map(|pid| match halted {
                    Some((known, since)) if known == pid => (known, since),
                    _ => (pid, looked),
                });
            }
            let stuck = halted.filter(|(_, since)| since.elapsed() > self.run.stopped_max);
            let lost = self.run.limits.as_ref();
            let why = stuck
                .map(|(pid, _)| Ended::Stopped(pid))
                .or_else(|| lost.and_then(|(limits, tree)| pace.look(limits, tree)))
                .or_else(|| (self.begun.elapsed() > self.run.patience).then_some(Ended::Late));
            if why.is_some() {
                self.kill();
                break (self.child.wait().expect("wait for a program"), why);
            }
            thread::sleep(pause);
        };
        let ended = Instant::now();
        let (stdout, one) = drain(&self.stdout, ended);
        let (stderr, two) = drain(&self.stderr, ended);
        self.kill(); // children that outlived it
        Finished {
            shown: self.run.shown,
            status,
            stdout,
            stderr,
            timed_out: why.is_some(),
            why,
            held: one || two,
            allowed: self.run.allowed,
        }
    }

    /// Ends the program and what it has started: its process group, and with limits the rest as well.
    fn kill(&self) {
        let group = self.child.id() as libc::pid_t;
        // SAFETY: no memory is involved; the group is the one made for this child.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        if let Some((_, tree)) = &self.run.limits {
            tree.end();
        }
    }
}

/// How fast a run uses processor time.
struct Pace {
    begun: Instant,
    looked: Instant,
    /// When it was last seen to do something, and what it had used then.
    since: Instant,
    used: Duration,
}

impl Pace {
    fn new(begun: Instant) -> Pace {
        Pace {
            begun,
            looked: begun,
            since: begun,
            used: Duration::ZERO,
        }
    }

    /// Whether a run has lost its way.
    fn look(&mut self, limits: &Limits, tree: &Tree) -> Option<Ended> {
        if self.looked.elapsed() < LOOK_AT_TIME {
            return None;
        }
        self.looked = Instant::now();
        let used = tree.processor_time();
        if used > limits.processor_time {
            return Some(Ended::Busy(self.begun.elapsed()));
        }
        // Less than before: a process has ended for which no other waits.
        let more = used.abs_diff(self.used);
        if more > self.since.elapsed().mul_f64(IDLE_SHARE) {
            (self.since, self.used) = (self.looked, used);
        }
        let idle = self.since.elapsed();
        (idle > limits.idle).then_some(Ended::Idle(idle))
    }
}

impl Ended {
    fn said(self) -> String {
        match self {
            Ended::Late => "it did not end in time".to_owned(),
            Ended::Stopped(pid) => format!(
                "its process {pid} was stopped by a signal (SIGSTOP or the like) and did not go on"
            ),
            Ended::Busy(time) => {
                format!("it used up its processor time within {} s", time.as_secs())
            }
            Ended::Idle(time) => {
                let seconds = time.as_secs();
                format!(
                    "none of its processes did anything for {seconds} s: they wait for each other, or for what does not come"
                )
            }
        }
    }
}

/// The first process of a group that a signal has stopped.
fn stopped(group: u32) -> Option<libc::pid_t> {
    let mut all: Vec<libc::pid_t> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // After the name, which may hold anything: state, parent, group.
            let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
            let mut fields = fields.split_whitespace();
            let is_stopped = fields.next() == Some("T");
            is_stopped && fields.nth(1).and_then(|field| field.parse().ok()) == Some(group)
        })
        .collect();
    all.sort_unstable();
    all.first().copied()
}

/// Reads a pipe on a thread of its own; a piece at a time, so that nothing read is lost.
fn collect(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(bytes @ 1..) = pipe.read(&mut piece) {
            if sender.send(piece[..bytes].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The name of a signal that ends programs by itself.
fn name_of(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGALRM => " (SIGALRM)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGPIPE => " (SIGPIPE)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGSYS => " (SIGSYS)",
        libc::SIGTERM => " (SIGTERM)",
        libc::SIGTRAP => " (SIGTRAP)",
        _ => "",
    }
}

/// What was read; true when the pipe has not come to its end in time.
fn drain(pipe: &mpsc::Receiver<Vec<u8>>, ended: Instant) -> (String, bool) {
    let mut bytes = Vec::new();
    let held = loop {
        let left = AFTERMATH.saturating_sub(ended.elapsed());
        match pipe.recv_timeout(left) {
            Ok(piece) => bytes.extend(piece),
            Err(mpsc::RecvTimeoutError::Disconnected) => break false,
            Err(mpsc::RecvTimeoutError::Timeout) => break true,
        }
    };
    (String::from_utf8_lossy(&bytes).into_owned(), held)
}

impl Finished {
    /// Fails the test unless the program did what it should.
    pub fn expect_pass(&self) {
        if let Some(complaint) = self.complaint() {
            panic!("{}", self.report(&complaint));
        }
    }

    /// What the program did that it should not, if anything.
    pub fn complaint(&self) -> Option<String> {
        if !self.status.success() || self.timed_out {
            return Some(self.ending());
        }
        if !self.stdout.lines().any(|line| line.starts_with("ok:")) {
            return Some("said no ok".to_owned());
        }
        let unexpected = self.unexpected_log();
        if !unexpected.is_empty() {
            return Some(format!("log: {unexpected:?}"));
        }
        self.held
            .then(|| "another process holds its standard output or error".to_owned())
    }

    fn ending(&self) -> String {
        match (self.why, self.status.signal()) {
            (Some(why), _) => format!("was ended by the watchdog, since {}", why.said()),
            (None, Some(signal)) => format!("was ended by signal {signal}{}", name_of(signal)),
            _ => format!("ended with {:?}", self.status.code()),
        }
    }

    /// All that is known, for people.
    pub fn report(&self, what: &str) -> String {
        format!(
            "{}: {what}\n-- stdout\n{}\n-- stderr\n{}",
            self.shown, self.stdout, self.stderr
        )
    }

    /// Warnings and errors of the library that are not about failing calls and descriptors and that the test did not allow.
    fn unexpected_log(&self) -> Vec<&str> {
        let allowed = self.allowed.iter().map(String::as_str);
        let allowed: Vec<&str> = allowed.chain(FAILURES.iter().copied()).collect();
        self.log(&["warn", "error"])
            .into_iter()
            .filter(|line| !allowed.iter().any(|text| line.contains(text)))
            .collect()
    }

    /// The library's log lines of these levels.
    pub fn log(&self, levels: &[&str]) -> Vec<&str> {
        let level_of = |line: &str| {
            let rest = line.strip_prefix("vipl[")?.split_once("] ")?.1;
            Some(rest.split(' ').next()?.to_owned())
        };
        self.stderr
            .lines()
            .filter(|line| level_of(line).is_some_and(|level| levels.contains(&level.as_str())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Finished {
        let mut run = Run::compatible("/bin/sh").arg("-c").arg(script);
        run.stopped_max = Duration::ZERO;
        run.finish()
    }

    #[test]
    fn a_process_that_is_stopped_is_ended_and_named() {
        let complaint = shell("kill -STOP $$").complaint().unwrap_or_default();
        assert!(complaint.contains("was stopped by a signal"), "{complaint}");
        // A child of the program, which waits for it.
        let complaint = shell("sh -c 'kill -STOP $$'; true")
            .complaint()
            .unwrap_or_default();
        assert!(complaint.contains("was stopped by a signal"), "{complaint}");
    }

    #[test]
    fn the_signal_that_ended_a_program_is_named() {
        let complaint = shell("kill -SEGV $$").complaint().unwrap_or_default();
        assert_eq!(complaint, "was ended by signal 11 (SIGSEGV)");
    }
}
