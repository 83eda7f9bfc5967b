//! A cheap clock.

/// The time in a unit of the machine's own: some billions a second.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the time stamp counter.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return vipl_plugin_sdk::Host::get().now_ns();
}
