//! Sets up the agent's own process, regardless of what it inherited from the program that started it.

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};

use crate::runtime::error::{Error, trying};

/// Refuses to run with the privileges of one user on behalf of another, as in a set-user-ID program.
fn refuse_mixed_rights() -> Result<(), Error> {
    let users = nix::unistd::getresuid().map_err(trying("getresuid"))?;
    let groups = nix::unistd::getresgid().map_err(trying("getresgid"))?;
    if users.real == users.effective
        && users.saved == users.effective
        && groups.real == groups.effective
        && groups.saved == groups.effective
    {
        return Ok(());
    }
    Err(Error::MixedRights {
        real: users.real.as_raw(),
        effective: users.effective.as_raw(),
    })
}

/// Sets up the process, once, before anything else. The result becomes readable when the agent is asked to
/// exit and when a child has exited.
pub(crate) fn prepare() -> Result<SignalFd, Error> {
    refuse_mixed_rights()?;
    // Ignored signals are inherited. In particular, if SIGCHLD were ignored, the kernel would reap children
    // itself.
    for signal_to_reset in Signal::iterator() {
        // SAFETY: the default action installs no handler. SIGKILL and SIGSTOP have no other.
        let _ = unsafe { signal(signal_to_reset, SigHandler::SigDfl) };
    }
    // SAFETY: ignoring a signal installs no handler.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }.map_err(trying("ignoring SIGPIPE"))?;
    let mut set = SigSet::empty();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGCHLD,
    ] {
        set.add(signal);
    }
    set.thread_set_mask().map_err(trying("blocking signals"))?;
    let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(trying("signalfd"))?;
    umask(Mode::from_bits_truncate(0o077));
    // The name is for process listings; failure does not matter.
    let _ = nix::sys::prctl::set_name(c"vipkad");
    // Every client costs two descriptors and those of its NICs, far more than the usual limit of 1024 allows.
    // That limit exists for select(), which the agent does not use. The other limits were set for the program
    // that started the agent, which also serves others.
    for resource in [
        Resource::RLIMIT_NOFILE,
        Resource::RLIMIT_FSIZE,
        Resource::RLIMIT_AS,
        Resource::RLIMIT_DATA,
        Resource::RLIMIT_CPU,
    ] {
        if let Ok((soft, hard)) = getrlimit(resource)
            && soft < hard
        {
            let _ = setrlimit(resource, hard, hard);
        }
    }
    reset_scheduling();
    nix::unistd::chdir("/").map_err(trying("chdir /"))?;
    Ok(signals)
}

/// Closes inherited descriptors before any are opened: a service that starts the agent may have files open.
/// (The first three are open: the standard library ensures it.)
pub fn close_inherited() {
    let first = if crate::runtime::sockets::activation::activated() {
        4
    } else {
        3
    };
    // SAFETY: nothing in this program owns a descriptor yet.
    unsafe { vipl_sys::fd::close_from(first) };
}

/// Resets the scheduling inherited from the program that started the agent, as far as permitted.
fn reset_scheduling() {
    /// The default of the kernel.
    const TIMER_SLACK_NS: libc::c_ulong = 50_000;
    // SAFETY: system calls on integers and valid structures; a set of processors is plain bits.
    unsafe {
        let usual: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const usual);
        if libc::getpriority(libc::PRIO_PROCESS, 0) > 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        }
        libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        for cpu in 0..libc::CPU_SETSIZE as usize {
            libc::CPU_SET(cpu, &mut all);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const all);
    }
}

/// A secret seed for connection keys.
pub(crate) fn random_seed() -> Result<[u8; 32], Error> {
    let mut seed = [0u8; 32];
    // SAFETY: the buffer has the stated length. So few bytes are returned completely or not at all.
    let got = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    match Errno::result(got) {
        Ok(got) if got as usize == seed.len() => Ok(seed),
        Ok(_) => Err(trying("getrandom")(Errno::EIO)),
        Err(cause) => Err(trying("getrandom")(cause)),
    }
}

/// Detaches from the standard error of the program that started the agent, which reads it only until the
/// agent serves.
pub(crate) fn leave_starter() {
    if std::env::var_os("VIPL_AGENT_STARTED").is_none() {
        return;
    }
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        // SAFETY: both are open; nothing else uses the second one.
        unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ() {
        assert_ne!(random_seed().unwrap(), random_seed().unwrap());
    }
}
