//! Memory fences that one thread executes on behalf of all others.
//!
//! A thread that is about to sleep, or to take a lock away from its owner, announces that and looks once more.
//! The other side publishes something and then reads the announcement. One of the two must see the other,
//! which needs a full fence on both sides. Where one side runs a million times more often, the rare side
//! executes [`barrier`] for both, and the frequent side needs only a compiler fence. Not every kernel offers
//! the call, and a seccomp filter may take it away at any time: callers need a way without it.

use std::io;
use std::time::Duration;

/// Whose threads take part.
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

/// Registers this process; a forked child is not registered. False: the system does not have it. Where threads
/// run already, the kernel waits for all processors, which takes some milliseconds.
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

/// In place of a [`barrier`] that the system refuses, while others still count on it. It takes some milliseconds.
pub fn slow_barrier() {
    if !visit_processors() {
        // Nothing is left that fences other processors. A store leaves its processor's buffer within
        // microseconds, and at the latest with the next interrupt.
        crate::clock::sleep(Duration::from_millis(20));
    }
}

/// Where there is no [`barrier`]: visits every processor that this thread may run on, one after the other, so
/// that whatever ran there was switched away from, which is a full fence. It takes some milliseconds. Threads of
/// this process that are confined to other processors by another cpuset are not reached. False: the system does
/// not permit it either.
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
            // Also true of a kernel without the call.
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
