//! `vipl-clan`: the clan device. The Kernel Agent starts it with a socket as standard input, on which it announces
//! processes; when that socket ends, the device exits.

use std::io::Write as _;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use vipl_sys::thread::ask_for_short_turns;

/// Leaves the processor to which an application, and thus the agent that it started, may be bound.
fn leave_processor() {
    // SAFETY: a set of processors is plain bits.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        for cpu in 0..libc::CPU_SETSIZE as usize {
            libc::CPU_SET(cpu, &mut all);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const all);
    }
}

fn main() -> ExitCode {
    leave_processor();
    ask_for_short_turns();
    // SAFETY: system calls without pointers to anything but a valid structure. Descriptor 0 is ours alone:
    // nothing else in this program uses the standard input.
    let agent = unsafe {
        // Under the system's agent the device runs in the job of a service: its user must not be able to make it run
        // other code.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::setsid();
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        OwnedFd::from_raw_fd(0)
    };
    match vipl_clan_device::Device::new(agent).and_then(|mut device| device.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not `eprintln`, which panics if the standard error cannot be written.
            let why = error.to_string();
            let _ = writeln!(
                std::io::stderr(),
                "vipl-clan: {}",
                vipl_sys::text::lines(&why)
            );
            ExitCode::FAILURE
        }
    }
}
