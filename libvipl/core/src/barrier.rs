//! What the biased lock needs of the machine: a fence that one side of a race pays for both, a number for
//! each thread, and a way to wait for a holder. `ctest/loom` puts its own in place of these.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

/// Times in a row that a thread must take a lock to own it: what taking the ownership away costs, in locks.
pub(crate) const STREAK: u32 = 32;

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` and its registration.
const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(command: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether `heavy` has been prepared.
static WORKS: AtomicBool = AtomicBool::new(false);

/// Registers the process for `heavy`, at each VipOpenNic: a forked child is not registered. Where threads run
/// already, the kernel waits for all processors, some milliseconds, so no lock is held and nobody's data waits.
pub(crate) fn prepare() {
    let works = cfg!(all(target_arch = "x86_64", target_os = "linux"))
        && membarrier(REGISTER_PRIVATE_EXPEDITED)
        && membarrier(PRIVATE_EXPEDITED);
    // Never taken back: a lock that has an owner needs it, and would say so.
    WORKS.fetch_or(works, Ordering::Relaxed);
}

/// Whether there is a `heavy` on this system. Asked on the data path: no system call.
pub(crate) fn works() -> bool {
    WORKS.load(Ordering::Relaxed)
}

/// A full fence, together with a `heavy` of another thread; costs nothing by itself.
#[inline(always)]
pub(crate) fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// A full fence on every processor that runs this process. Only where `works` says so.
pub(crate) fn heavy() {
    if membarrier(PRIVATE_EXPEDITED) {
        return;
    }
    // It worked before. Registered anew it works after a fork; if not, two threads would be inside.
    let again = membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED);
    if !again {
        log::error!(target: "core", "membarrier has been taken away from this process; cannot go on");
        std::process::abort();
    }
}

/// A number that no two living threads share and that costs one load; its low bits are free.
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let pointer: usize;
        // SAFETY: the thread control block begins with its own address (ELF TLS for x86-64).
        unsafe {
            core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, pure, readonly));
        }
        pointer
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    {
        !(crate::lock::OWNERS - 1)
    }
}

/// Spins, then yields, then sleeps: a holder may need this very core, or have a lower priority.
pub(crate) fn back_off(rounds: &mut u32) {
    *rounds += 1;
    match *rounds {
        0..=200 => std::hint::spin_loop(),
        201..=2000 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}
