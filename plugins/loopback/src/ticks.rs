//! A cheap clock.

#[cfg(target_arch = "x86")]
use core::arch::x86::_rdtsc;
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::_rdtsc;

/// The time in ticks of the processor, some billions a second. Both sides of a connection use the same unit, also where one is a
/// 32-bit program.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    // SAFETY: reads the time stamp counter.
    return unsafe { _rdtsc() };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    return vipl_plugin_sdk::Host::get().now_ns();
}
