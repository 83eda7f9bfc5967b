//! Hints to the processor about cache lines that both sides of a connection use.
//!
//! They change no memory, order nothing and never fault, so they need no pairing with the other side. A processor
//! without them executes them as no-operations; other architectures have none.

/// One of them, by the name of its instruction.
macro_rules! hint {
    ($instruction:literal, $at:expr) => {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint is valid for every address.
        unsafe {
            core::arch::asm!(
                concat!($instruction, " [{}]"),
                in(reg) $at,
                options(nostack, preserves_flags)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = $at;
    };
}

/// Fetches the line of this address for writing, because a store to it follows soon. The other side's copy is
/// invalidated now and not when the store waits for it.
#[inline(always)]
pub(crate) fn fetch_to_write(at: *const u8) {
    hint!("prefetchw", at);
}

/// Fetches the line of this address for reading, because it is read soon after the other side has written it.
#[inline(always)]
pub(crate) fn fetch_to_read(at: *const u8) {
    hint!("prefetcht0", at);
}

/// Moves a line that has been written from this processor's own caches to the one that all share, where the other
/// side finds it sooner.
#[inline(always)]
pub(crate) fn demote(at: *const u8) {
    hint!("cldemote", at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_change_nothing_and_bear_every_address() {
        let memory: Vec<u8> = (0..=255).collect();
        for at in (0..256).map(|offset| &raw const memory[offset]) {
            fetch_to_write(at);
            fetch_to_read(at);
            demote(at);
        }
        assert!(std::hint::black_box(&memory).iter().copied().eq(0..=255));
        for address in [0, 1, 4096, usize::MAX, 1 << (usize::BITS - 1)] {
            fetch_to_write(std::ptr::without_provenance(address));
            fetch_to_read(std::ptr::without_provenance(address));
            demote(std::ptr::without_provenance(address));
        }
    }
}
