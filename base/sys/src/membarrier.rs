//! Memory fences that one thread executes on behalf of all others.
//!
//! A thread that is about to sleep, or to revoke the bias of a lock, announces that and checks once more. The
//! other side publishes data and then reads the announcement. One of the two must see the other, which
//! requires a full fence on both sides. If one side runs far more often, the rare side executes [`barrier`]
//! for both, and the frequent side only needs a compiler fence. Not every kernel has the call, and a seccomp
//! filter may forbid it at any time, so callers need an alternative.

use std::io;
use std::time::Duration;

/// The threads that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of this process.
    Process,
    /// Those of all processes that have registered.
    Global,
}

fn call(command: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process; a forked child is not registered. False if the system does not support it. If
/// other threads run, the kernel waits for all processors, which takes some milliseconds.
pub fn register(scope: Scope) -> bool {
    call(match scope {
        Scope::Process => libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
        Scope::Global => libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED,
    })
}

/// Executes a full fence on every processor that runs a thread of the scope, and on this one. False: none was
/// executed.
#[must_use]
pub fn barrier(scope: Scope) -> bool {
    call(match scope {
        Scope::Process => libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED,
        Scope::Global => libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED,
    })
}

/// Substitute for a [`barrier`] that the system refuses while other threads still rely on it. It takes some
/// milliseconds.
pub fn slow_barrier() {
    if !visit_processors() {
        // No other method executes fences on other processors. A store leaves its processor's buffer within
        // microseconds, at the latest with the next interrupt.
        crate::clock::sleep(Duration::from_millis(20));
    }
}

/// Without [`barrier`]: visits every processor on which this thread may run, one after the other, so that the
/// thread running there is switched, which is a full fence. It takes some milliseconds. Threads of this
/// process confined to other processors by another cpuset are not reached. False if the system does not
/// permit it either.
#[must_use]
fn visit_processors() -> bool {
    /// Room for 8192 processors.
    type Set = [u64; 128];
    let bytes = size_of::<Set>();
    let move_to = |set: &Set| -> io::Result<()> {
        // SAFETY: a valid set of that size; 0 is the calling thread.
        match unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, bytes, set.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let mut before: Set = [0; 128];
    // SAFETY: room for a set of that size.
    let known =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, bytes, before.as_mut_ptr()) };
    let Ok(known @ 1..) = usize::try_from(known) else {
        return false;
    };
    let mut visited = 0;
    for processor in 0..known * 8 {
        let mut only: Set = [0; 128];
        only[processor / 64] = 1 << (processor % 64);
        match move_to(&only) {
            Ok(()) => visited += 1,
            // It is not there, or no thread of our cpuset may run on it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(_) => return false,
        }
    }
    let _ = move_to(&before);
    visited > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registered_process_has_barriers() {
        for scope in [Scope::Process, Scope::Global] {
            // Also holds for a kernel without the call.
            assert_eq!(register(scope), barrier(scope), "{scope:?}");
        }
    }

    #[test]
    fn a_visit_leaves_the_thread_where_it_may_run() {
        let allowed = || {
            // SAFETY: a valid set.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                let bytes = size_of::<libc::cpu_set_t>();
                libc::sched_getaffinity(0, bytes, &raw mut set);
                set
            }
        };
        let before = allowed();
        assert!(visit_processors());
        // SAFETY: both sets are valid.
        assert!(unsafe { libc::CPU_EQUAL(&allowed(), &before) });
    }
}
