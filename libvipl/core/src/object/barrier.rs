//! Machine-dependent parts of the biased lock: an asymmetric fence, a number for each thread, and waiting for
//! a holder. `ctest/loom` replaces this file.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::time::Duration;

use vipl_sys::membarrier::{Scope, barrier, register, slow_barrier};
use vipl_sys::thread::{self, Thread};

/// Maximum threads that may own a lock during its life. The spare low bits of thread pointers can hold their
/// number.
pub(crate) const OWNERS: usize = 4;

/// Consecutive acquisitions after which a thread owns a lock: the cost of revoking ownership, in
/// acquisitions.
pub(crate) const STREAK: u32 = 32;

/// Whether locks may have owners: `heavy` is cheap.
static WORKS: AtomicBool = AtomicBool::new(false);

fn membarrier() -> bool {
    barrier(Scope::Process)
}

/// Registers the process for `heavy`, at each VipOpenNic, since a forked child is not registered. If threads
/// run already and [`begin`] has not done it, the kernel waits for all processors, some milliseconds, so this
/// runs without a lock and off the data path.
pub(crate) fn prepare() {
    let works = cfg!(all(
        any(target_arch = "x86_64", target_arch = "x86"),
        target_os = "linux"
    )) && register(Scope::Process)
        && membarrier();
    WORKS.fetch_or(works, Ordering::Relaxed);
}

/// Registrations in progress, on separate threads.
pub(crate) struct Registering([Option<Thread>; 2]);

/// Begins to register the process for all barriers, at its first VipOpenNic and before the library starts a
/// thread: with one thread it is free. With more, the kernel waits an RCU grace period for each scope, 5 to
/// 20 ms. Both periods then overlap with loading plug-ins and finding the agent. `begun` belongs to the
/// process, and a forked child does not inherit it.
pub(crate) fn begin(begun: &AtomicBool) -> Registering {
    let scopes = [Scope::Process, Scope::Global];
    if begun.swap(true, Ordering::Relaxed) {
        return Registering([None, None]);
    }
    if thread::is_alone() {
        let _ = scopes.map(register);
        return Registering([None, None]);
    }
    Registering(scopes.map(|scope| {
        let body = move || {
            let _ = register(scope);
        };
        // Without this thread, the first user of the barriers registers, and waits.
        thread::spawn_with_signals_blocked("vipl-register", body).ok()
    }))
}

impl Registering {
    /// Waits until the process is registered, as far as the system permits.
    pub(crate) fn finish(self) {
        for started in self.0.into_iter().flatten() {
            started.join();
        }
        prepare();
    }
}

/// Whether `heavy` works on this system. Used on the data path: no system call.
pub(crate) fn works() -> bool {
    WORKS.load(Ordering::Relaxed)
}

/// A full fence, together with a `heavy` of another thread; a compiler fence by itself.
#[inline(always)]
pub(crate) fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// A full fence on every processor that runs this process.
pub(crate) fn heavy() {
    // After a fork it works once registered again.
    if membarrier() || (register(Scope::Process) && membarrier()) {
        return;
    }
    degrade();
}

/// A sandbox has forbidden `membarrier` while locks have owners. The fence is executed in a slow way, once
/// for each of these locks, and no lock is biased from now on.
#[cold]
fn degrade() {
    if WORKS.swap(false, Ordering::Relaxed) {
        log::warn!(
            target: "core",
            "the system call membarrier is not permitted any more: locks are slower from now on"
        );
    }
    slow_barrier();
}

/// A number unique among living threads, for one load; its low bits are free.
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
    #[cfg(all(target_arch = "x86", target_os = "linux"))]
    {
        let pointer: usize;
        // SAFETY: as above (ELF TLS for IA-32).
        unsafe {
            core::arch::asm!("mov {}, gs:0", out(reg) pointer, options(nostack, pure, readonly));
        }
        pointer
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "x86"), target_os = "linux")))]
    {
        !(OWNERS - 1)
    }
}

/// Spins, then yields, then sleeps: a holder may need this core, or have a lower priority.
pub(crate) fn back_off(rounds: &mut u32) {
    *rounds += 1;
    match *rounds {
        0..=200 => std::hint::spin_loop(),
        201..=2000 => std::thread::yield_now(),
        _ => vipl_sys::clock::sleep(Duration::from_micros(50)),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
pub(super) mod tests {
    use super::*;

    /// Forbids the calling thread to use `membarrier`, as a late sandbox does.
    pub(crate) fn forbid() {
        let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let program = [
            // The system call number is the first word.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                libc::SYS_membarrier as u32,
                0,
                1,
            ),
            statement(libc::BPF_RET | libc::BPF_K, refuse, 0, 0),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let filter = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_ptr().cast_mut(),
        };
        // SAFETY: a valid program; it applies to this thread only.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let mode = libc::SECCOMP_MODE_FILTER as libc::c_ulong;
            assert_eq!(
                libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter),
                0
            );
        }
        assert!(!membarrier());
    }
}
