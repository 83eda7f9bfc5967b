//! Safe names for the few system calls that the standard library lacks.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::{Error, Result};

/// Where `ip netns` keeps the network namespaces that have names.
pub const NETWORKS: &str = "/var/run/netns";

fn last_error(what: &str) -> Error {
    Error::io(what, std::io::Error::last_os_error())
}

/// Sets an environment variable unless it is set. Only at the start of `main`, before the library is
/// opened.
pub fn default_env(name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        // SAFETY: the tools have one thread until the library is opened.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Ends the program without a message when its output has no reader any more (`vip_perf | head`).
pub fn end_with_the_reader() {
    // SAFETY: the default action, set before there is another thread.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Allows as many open files as the system lets us have: a connection may need some.
pub fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` has room.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` is filled. If it fails, the old limit stays.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// Ends this process after so many seconds.
pub fn end_after(seconds: u32) {
    // SAFETY: plain arguments; the default action ends the process.
    unsafe {
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::alarm(seconds);
    }
}

/// Whether a process ended as [`end_after`] ends one.
#[must_use]
pub fn is_alarm(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGALRM)
}

/// Makes the kernel kill this process when the thread that started it ends.
pub fn die_with_parent() {
    // SAFETY: plain arguments.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Makes the kernel kill the process that a command starts when this thread ends, however it does.
pub fn end_with_this(command: &mut Command) {
    let parent = std::process::id();
    let follow = move || {
        die_with_parent();
        // SAFETY: no arguments.
        let has_parent = unsafe { libc::getppid() } as u32 == parent;
        has_parent
            .then_some(())
            .ok_or(std::io::ErrorKind::Interrupted.into())
    };
    // SAFETY: it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(follow) };
}

/// Makes a command run in the network namespace that `ip netns add` gave this name. Only root may start
/// such a command.
///
/// # Errors
/// There is no such namespace.
pub fn run_in_network(command: &mut Command, name: &str) -> Result<()> {
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(Error::Usage(format!(
            "{name:?} is not a valid name of a network namespace"
        )));
    }
    let file = File::open(Path::new(NETWORKS).join(name))
        .map_err(|error| Error::io(format!("network namespace {name:?}"), error))?;
    let enter = move || {
        // SAFETY: an open file, which the closure keeps open.
        match unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: it makes one system call, and allocates nothing.
    unsafe { command.pre_exec(enter) };
    Ok(())
}

/// Whether a descriptor survives exec.
///
/// # Errors
/// `fd` is not open.
pub fn set_inherited(fd: RawFd, inherited: bool) -> Result<()> {
    let flags = if inherited { 0 } else { libc::FD_CLOEXEC };
    // SAFETY: plain arguments.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, flags) } < 0 {
        return Err(last_error("fcntl"));
    }
    Ok(())
}

/// Takes over a descriptor that the parent process passed by number.
///
/// # Errors
/// `fd` is not open.
pub fn adopt(fd: RawFd) -> Result<OwnedFd> {
    set_inherited(fd, false)?;
    // SAFETY: open, as the call above found, and passed to this process for this very purpose.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An anonymous file of this many zero bytes, to be mapped by several processes.
///
/// # Errors
/// The system refuses.
pub fn anonymous_file(bytes: usize) -> Result<File> {
    vipl_sys::shm::create(c"vip_perf", bytes)
        .map(File::from)
        .map_err(|error| Error::io("memfd_create", error))
}

/// Maps `bytes` of memory, zeroed: of a file, shared, or private. It stays mapped until the process
/// ends, so that a pointer into it is never stale.
///
/// # Errors
/// The system refuses.
pub fn map(bytes: usize, file: Option<&File>) -> Result<NonNull<u8>> {
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
        ),
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd, 0) };
    if address == libc::MAP_FAILED {
        return Err(last_error("mmap"));
    }
    NonNull::new(address.cast()).ok_or_else(|| last_error("mmap"))
}

/// Seconds of processor time that this process has used, with the kernel's part.
#[must_use]
pub fn cpu_seconds() -> f64 {
    // SAFETY: all zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` has room.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// This process's user.
#[must_use]
pub fn user() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::getuid() }
}

/// The CPUs that this thread may run on.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: the all-zero set is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` has room for its own size.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return vec![0];
    }
    let all = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: `cpu` is below CPU_SETSIZE.
    all.filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect()
}

/// Keeps the calling thread on one CPU.
///
/// # Errors
/// There is no such CPU, or it is not allowed.
pub fn run_on(cpu: usize) -> Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(Error::Usage(format!("there is no CPU {cpu}")));
    }
    ALLOWED.get_or_init(allowed_cpus);
    pin(Some(cpu)).map_err(|error| Error::io(format!("pinning to CPU {cpu}"), error))
}

/// The CPUs of the first thread that was kept on one of them, before it was.
static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();

/// Lets the calling thread run on all CPUs again that it might use before `run_on`.
///
/// # Errors
/// They are no longer allowed.
pub fn run_on_all() -> Result<()> {
    let cpus = ALLOWED.get_or_init(allowed_cpus);
    bind(cpus.iter().copied()).map_err(|error| Error::io("leaving one CPU", error))
}

/// Makes a command run on one CPU from its first instruction on; with None on all of the machine, whatever
/// this process is restricted to.
pub fn start_on(command: &mut Command, cpu: Option<usize>) {
    // SAFETY: it makes one system call, and allocates nothing.
    unsafe { command.pre_exec(move || pin(cpu)) };
}

fn pin(cpu: Option<usize>) -> std::io::Result<()> {
    let most = libc::CPU_SETSIZE as usize;
    let wanted = cpu.map_or(0..most, |cpu| cpu..cpu + 1);
    if wanted.end > most {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    bind(wanted)
}

/// Keeps the calling thread on these CPUs, all below CPU_SETSIZE.
fn bind(wanted: impl Iterator<Item = usize>) -> std::io::Result<()> {
    // SAFETY: the all-zero set is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in wanted {
        // SAFETY: `cpu` is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is filled and has this size.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_there_is_an_error() {
        let refused = |name: &str| {
            let mut command = Command::new("true");
            run_in_network(&mut command, name).unwrap_err().to_string()
        };
        assert!(refused("vipl-no-such-host").contains("vipl-no-such-host"));
        for name in ["", "..", "../../proc/self/ns/net"] {
            assert!(refused(name).contains("not a valid name"), "{name}");
        }
    }
}
