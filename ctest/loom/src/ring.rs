//! The ring of loopback in small: two slots, each with a word that is written last, and the consumed count
//! that frees them. The orders of `publish`, `arrival`, `acknowledge` and `learn_consumed`, with cells whose
//! every access loom checks in place of raw shared memory.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) const SLOTS: u32 = 2;

#[derive(Default)]
struct Slot {
    /// Ready bits: the number of the wrap; written last.
    word: AtomicU64,
    payload: UnsafeCell<u64>,
}

/// One direction, and the other side's count.
#[derive(Default)]
pub(crate) struct Ring {
    slots: [Slot; SLOTS as usize],
    consumed: AtomicU32,
    /// Why the sender has left.
    closed: AtomicU32,
}

impl Ring {
    fn slot(&self, number: u32) -> &Slot {
        &self.slots[(number % SLOTS) as usize]
    }

    /// Whether the sender may write the slot with this number.
    pub(crate) fn has_slot(&self, sent: u32) -> bool {
        // Acquire pairs with the release in `acknowledge`.
        sent.wrapping_sub(self.consumed.load(Ordering::Acquire)) < SLOTS
    }

    /// Writes a message and announces it.
    pub(crate) fn publish(&self, number: u32, message: u64) {
        let slot = self.slot(number);
        // SAFETY: loom checks that no other thread accesses it.
        slot.payload
            .with_mut(|payload| unsafe { *payload = message });
        slot.word
            .store(u64::from(number / SLOTS + 1), Ordering::Release);
    }

    /// The message with this number, if it has arrived.
    pub(crate) fn arrival(&self, number: u32) -> Option<u64> {
        let slot = self.slot(number);
        if slot.word.load(Ordering::Acquire) != u64::from(number / SLOTS + 1) {
            return None;
        }
        // SAFETY: as above.
        Some(slot.payload.with(|payload| unsafe { *payload }))
    }

    /// Frees all slots below this number.
    pub(crate) fn acknowledge(&self, arrived: u32) {
        self.consumed.store(arrived, Ordering::Release);
    }

    /// The sender leaves.
    pub(crate) fn close(&self, reason: u32) {
        self.closed.store(reason, Ordering::SeqCst);
    }

    /// Why it left, or 0. What it sent before has arrived.
    pub(crate) fn closed(&self) -> u32 {
        self.closed.load(Ordering::Acquire)
    }
}
