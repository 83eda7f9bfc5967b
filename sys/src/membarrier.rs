//! Memory fences that one thread executes on behalf of all others.
//!
//! A thread that is about to sleep, or to take a lock away from its owner, announces that and looks once more.
//! The other side publishes something and then reads the announcement. One of the two must see the other,
//! which needs a full fence on both sides. Where one side runs a million times more often, the rare side
//! executes [`barrier`] for both, and the frequent side needs only a compiler fence. Not every kernel offers
//! the call, and a seccomp filter may take it away at any time: callers need a way without it.

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
}
