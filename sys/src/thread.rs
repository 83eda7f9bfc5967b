//! Threads in somebody else's process.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread with all signals blocked but SIGSEGV and SIGBUS, which the guarded copies need: the
/// application's handlers must not run on a thread that it does not know.
///
/// # Errors
/// The system has no room for it.
pub fn spawn_with_signals_blocked<F>(name: &str, body: F) -> io::Result<JoinHandle<()>>
where
    F: FnOnce() + Send + 'static,
{
    // SAFETY: both sets are valid; a new thread inherits the mask of the one that makes it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigdelset(&raw mut all, libc::SIGSEGV);
        libc::sigdelset(&raw mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = Builder::new().name(name.into()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        started
    }
}

/// Whether the calling thread is the only one of its process. False also where the system does not tell.
pub fn is_alone() -> bool {
    use std::os::unix::fs::MetadataExt;
    // A folder has two links and one for each folder in it.
    std::fs::metadata("/proc/self/task").is_ok_and(|tasks| tasks.nlink() == 3)
}

/// Asks for short time slices for the calling thread, which has little to do when it is woken, while programs
/// wait for it: the scheduler then lets it preempt a thread with longer ones. Kernels before 6.12 ignore this.
/// Its timed waits end on time, too. A thread of another scheduling class stays as it is.
pub fn ask_for_short_turns() {
    /// `struct sched_attr` of the kernel, as it was at first.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const TURN_NS: u64 = 100_000;
    // SAFETY: no pointers but to a valid structure, which says how large it is.
    unsafe {
        if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
            return;
        }
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
        let attributes = Attributes {
            size: size_of::<Attributes>() as u32,
            policy: libc::SCHED_OTHER as u32,
            flags: 0,
            nice: libc::getpriority(libc::PRIO_PROCESS, 0),
            priority: 0,
            runtime: TURN_NS,
            deadline: 0,
            period: 0,
        };
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_beside_another_one_is_not_alone() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ended.recv());
        assert!(!is_alone());
        drop(end);
        let _ = other.join();
        // SAFETY: the child only makes system calls and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(is_alone()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(libc::WEXITSTATUS(status), 1);
        }
    }

    #[test]
    fn it_takes_the_signals_of_bad_memory_only() {
        let (tell, told) = std::sync::mpsc::channel();
        let body = move || {
            // SAFETY: the set is valid.
            let open = unsafe {
                let mut mask: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
                (1..32)
                    .filter(|signal| libc::sigismember(&raw const mask, *signal) == 0)
                    .collect()
            };
            let _ = tell.send(open);
        };
        spawn_with_signals_blocked("test", body)
            .unwrap()
            .join()
            .unwrap();
        let open: Vec<i32> = told.recv().unwrap();
        // The kernel takes these two out of every mask.
        let always = [libc::SIGKILL, libc::SIGSTOP];
        let mut expected = vec![libc::SIGBUS, libc::SIGSEGV];
        expected.extend(always);
        expected.sort_unstable();
        assert_eq!(open, expected);
    }
}
