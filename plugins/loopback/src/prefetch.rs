//! Cache hints for lines that both sides of a connection use.
//!
//! They change no memory, order nothing and never fault, so they need no pairing with the peer. Processors without
//! them execute no-operations; other architectures have none.

/// A hint, by the name of its instruction.
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

/// Prefetches the line of this address for writing, because a store to it follows soon. The peer's copy is invalidated
/// now and not when the store waits for it.
#[inline(always)]
pub(crate) fn for_write(at: *const u8) {
    hint!("prefetchw", at);
}

/// Prefetches the line of this address for reading, because it is read soon after the peer has written it.
#[inline(always)]
pub(crate) fn for_read(at: *const u8) {
    hint!("prefetcht0", at);
}

/// Demotes a written line from this processor's own caches to the one that all processors share, where the peer finds it
/// sooner.
#[inline(always)]
pub(crate) fn demote(at: *const u8) {
    hint!("cldemote", at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_change_nothing_and_accept_every_address() {
        let memory: Vec<u8> = (0..=255).collect();
        for at in (0..256).map(|offset| &raw const memory[offset]) {
            for_write(at);
            for_read(at);
            demote(at);
        }
        assert!(std::hint::black_box(&memory).iter().copied().eq(0..=255));
        for address in [0, 1, 4096, usize::MAX, 1 << (usize::BITS - 1)] {
            for_write(std::ptr::without_provenance(address));
            for_read(std::ptr::without_provenance(address));
            demote(std::ptr::without_provenance(address));
        }
    }
}
