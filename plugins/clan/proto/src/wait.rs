//! Fences that whoever goes to sleep makes for all processors.

/// `MEMBARRIER_CMD_GLOBAL_EXPEDITED`: a fence on every processor that runs a registered process.
const GLOBAL_EXPEDITED: i32 = 1 << 1;
/// Its registration.
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

fn membarrier(command: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// This process takes part in the barriers of others. False: the kernel does not have them.
pub fn join_barriers() -> bool {
    membarrier(REGISTER_GLOBAL_EXPEDITED)
}

/// Makes every processor that runs a registered process execute a fence, this one too.
pub fn barrier() -> bool {
    let done = membarrier(GLOBAL_EXPEDITED);
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    done
}
