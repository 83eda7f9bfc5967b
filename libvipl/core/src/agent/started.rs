//! An agent that is being started.
//!
//! It becomes a child of init, so that the application sees no SIGCHLD and no result of `wait` for it. Until
//! it answers, an intermediate process watches it: if the agent exits, it reports the status; the agent's
//! standard error has the reason.

use std::ffi::{CString, OsStr, c_char, c_int};
use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use vipl_sys::fd::{close_from, duplicate_from, made};

use crate::settings::Settings;

/// Variables passed to a started agent, mostly for debugging.
const KEPT_VARIABLES: [&[u8]; 10] = [
    b"VIPL_LOG",
    b"VIPL_TEST_TIME",
    // These determine where it listens.
    b"XDG_RUNTIME_DIR",
    b"HOME",
    b"RUST_BACKTRACE",
    b"ASAN_OPTIONS",
    b"LSAN_OPTIONS",
    b"TSAN_OPTIONS",
    b"UBSAN_OPTIONS",
    b"LLVM_PROFILE_FILE",
];

/// Settings of the agent, which may also be in this program's configuration file.
const AGENT_SETTINGS: [&str; 3] = ["udp_port", "udp_from", "secret_file"];

/// Informs the agent that its standard error is read only until it serves.
const STARTED: &[u8] = b"VIPL_AGENT_STARTED=1";
/// Maximum length of the agent's error text in a message.
const WORDS_MAX: usize = 400;

/// A tracer of the application must not trace the agent. For gdb a child without an exit signal is a thread,
/// and with its `execve` the agent would replace the application.
const ALONE: c_int = libc::CLONE_UNTRACED;

/// How an agent has exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// In good order, or unknown.
    Well,
    /// It could not be executed.
    NotExecuted(c_int),
    /// With this nonzero status.
    Exited(c_int),
    /// By this signal.
    Killed(c_int),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Well => f.write_str("with exit status 0"),
            Ended::NotExecuted(error) => {
                write!(
                    f,
                    "since it cannot be executed: {}",
                    io::Error::from_raw_os_error(*error)
                )
            }
            Ended::Exited(status) => write!(f, "with exit status {status}"),
            Ended::Killed(signal) => write!(f, "by signal {signal}"),
        }
    }
}

/// The report of the watching process, written once: one of these, and a number.
type Report = [c_int; 2];
const NOT_EXECUTED: c_int = 1;
const ENDED: c_int = 2;

/// An agent that does not answer yet. Dropping it ends the watch.
pub(super) struct Started {
    watcher: libc::pid_t,
    reports: OwnedFd,
    words: OwnedFd,
}

/// A pipe whose descriptors do not collide with those of the child.
fn pipe() -> io::Result<[OwnedFd; 2]> {
    let mut fds = [-1; 2];
    // SAFETY: room for two descriptors, which are new and owned here.
    let made = unsafe {
        if libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
            return Err(io::Error::last_os_error());
        }
        fds.map(|fd| made(fd))
    };
    let high = |fd: io::Result<OwnedFd>| {
        let fd = fd?;
        duplicate_from(fd.as_raw_fd(), 10)
    };
    let [one, other] = made.map(high);
    Ok([one?, other?])
}

impl Started {
    /// Starts the program.
    pub(super) fn start(
        settings: &Settings,
        program: &Path,
        arguments: &[&OsStr],
    ) -> io::Result<Started> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
        let mut argv = vec![text(program.as_os_str().as_bytes())?];
        for argument in arguments {
            argv.push(text(argument.as_bytes())?);
        }
        let mut environment = vec![text(STARTED)?];
        for (key, value) in std::env::vars_os() {
            let name = key.as_bytes();
            // It also serves other applications, so it inherits nothing of this one.
            if KEPT_VARIABLES.contains(&name) {
                environment.push(text(&[name, b"=", value.as_bytes()].concat())?);
            }
        }
        for name in AGENT_SETTINGS {
            let value = settings.text(name);
            if !value.is_empty() && value != "0" {
                let line = format!("VIPL_{}={value}", name.to_ascii_uppercase());
                environment.push(text(line.as_bytes())?);
            }
        }
        let pointers = |list: &[CString]| -> Vec<*const c_char> {
            list.iter()
                .map(|text| text.as_ptr())
                .chain([std::ptr::null()])
                .collect()
        };
        let (argv, environment) = (pointers(&argv), pointers(&environment));
        let [reports, report] = pipe()?;
        let [words, word] = pipe()?;
        // SAFETY: the child only makes system calls. Without an exit signal it is invisible to the application's `wait`.
        let watcher = unsafe {
            let child = libc::syscall(libc::SYS_clone, ALONE, 0, 0, 0, 0);
            if child == 0 {
                let fds = [word.as_raw_fd(), report.as_raw_fd()];
                run_and_watch(argv.as_ptr(), environment.as_ptr(), fds);
            }
            child as libc::pid_t
        };
        if watcher < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Started {
            watcher,
            reports,
            words,
        })
    }

    /// How the agent has exited, if it has.
    pub(super) fn ended(&self) -> Option<Ended> {
        let mut report: Report = [0; 2];
        // SAFETY: room for so many bytes.
        let got = unsafe {
            let room = size_of_val(&report);
            libc::read(self.reports.as_raw_fd(), report.as_mut_ptr().cast(), room)
        };
        if got < 0 {
            let error = io::Error::last_os_error().kind();
            let is_running = matches!(
                error,
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            );
            return (!is_running).then_some(Ended::Well);
        }
        let [what, number] = report;
        Some(match what {
            NOT_EXECUTED => Ended::NotExecuted(number),
            ENDED if libc::WIFSIGNALED(number) => Ended::Killed(libc::WTERMSIG(number)),
            ENDED if libc::WEXITSTATUS(number) != 0 => Ended::Exited(libc::WEXITSTATUS(number)),
            _ => Ended::Well,
        })
    }

    /// The last line that it has written, after a colon; empty if there is none.
    pub(super) fn words(&self) -> String {
        let mut bytes = Vec::new();
        let mut pipe = match self.words.try_clone() {
            Ok(pipe) => std::fs::File::from(pipe),
            Err(_) => return String::new(),
        };
        // Reads to the end: an agent that has exited writes no more.
        let _ = pipe.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let last = text
            .lines()
            .rev()
            .map(str::trim)
            .find(|line| !line.is_empty());
        last.map_or_else(String::new, |line| {
            let line: String = line.chars().take(WORDS_MAX).collect();
            format!(": {line}")
        })
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // SAFETY: it is our child, and has not been waited for.
        unsafe {
            libc::kill(self.watcher, libc::SIGKILL);
            while libc::waitpid(self.watcher, std::ptr::null_mut(), libc::__WALL) < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}

/// The watching process: starts the agent, waits for its exit, and reports it.
///
/// # Safety
/// Only in a fresh child; the arrays end with NULL.
unsafe fn run_and_watch(
    argv: *const *const c_char,
    environment: *const *const c_char,
    [words, reports]: [RawFd; 2],
) -> ! {
    const REPORTS: RawFd = 3;
    // SAFETY: system calls on valid pointers; this process shares nothing with its parent.
    unsafe {
        libc::setsid();
        // No handler of the application runs here.
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut mask);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        libc::dup2(null, 0);
        libc::dup2(null, 1);
        libc::dup2(words, 2);
        libc::dup3(reports, REPORTS, libc::O_CLOEXEC);
        close_from(REPORTS + 1);
        let agent = libc::syscall(libc::SYS_clone, ALONE, 0, 0, 0, 0) as libc::pid_t;
        let report = |what: c_int, number: c_int| {
            let report: Report = [what, number];
            libc::write(REPORTS, report.as_ptr().cast(), size_of_val(&report));
        };
        match agent {
            -1 => report(NOT_EXECUTED, *libc::__errno_location()),
            0 => {
                libc::setsid();
                libc::sigemptyset(&raw mut mask);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
                libc::execve(*argv, argv, environment);
                report(NOT_EXECUTED, *libc::__errno_location());
                libc::_exit(127);
            }
            _ => {
                let mut status = 0;
                while libc::waitpid(agent, &raw mut status, libc::__WALL) < 0
                    && *libc::__errno_location() == libc::EINTR
                {}
                report(ENDED, status);
            }
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn end_of(program: &str, arguments: &[&str]) -> (Ended, String) {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let started = Started::start(&Settings::default(), Path::new(program), &arguments).unwrap();
        loop {
            if let Some(ended) = started.ended() {
                return (ended, started.words());
            }
            vipl_sys::clock::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn an_agent_that_ends_says_how_and_why() {
        let sh = |script: &str| end_of("/bin/sh", &["-c", script]);
        assert_eq!(sh("exit 0"), (Ended::Well, String::new()));
        let wrong = sh("echo first >&2; echo 'no such thing' >&2; exit 7");
        assert_eq!(wrong, (Ended::Exited(7), ": no such thing".to_owned()));
        assert_eq!(sh("kill -9 $$").0, Ended::Killed(9));
        let (missing, _) = end_of("/nowhere/vipkad", &[]);
        assert_eq!(missing, Ended::NotExecuted(libc::ENOENT));
        let no_script = end_of("/dev/null", &[]).0;
        assert_eq!(no_script, Ended::NotExecuted(libc::EACCES));
    }

    #[test]
    fn one_that_lives_is_watched_until_it_answers_and_inherits_nothing() {
        let folder = std::env::temp_dir().join(format!("vipl-started-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("shown");
        // The shell itself uses 10.
        let look = "for fd in 3 4 5 6 7 8 9 11 12; do [ -e /proc/$$/fd/$fd ] && echo $fd; done";
        let name = file.display();
        let script = format!("({look}) > {name}.new; mv {name}.new {name}; sleep 60");
        let arguments = ["-c", &script].map(OsStr::new);
        let started =
            Started::start(&Settings::default(), Path::new("/bin/sh"), &arguments).unwrap();
        while !file.exists() {
            assert_eq!(started.ended(), None);
            vipl_sys::clock::sleep(Duration::from_millis(1));
        }
        let watcher = started.watcher;
        let children = format!("/proc/{watcher}/task/{watcher}/children");
        let agent: i32 = std::fs::read_to_string(children)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        drop(started);
        // SAFETY: only asks, and ends what was started here.
        unsafe {
            assert_eq!(libc::kill(watcher, 0), -1, "the watcher has gone");
            assert_eq!(libc::kill(agent, libc::SIGKILL), 0, "the agent has not");
        }
        let shown = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(shown, "");
    }
}
