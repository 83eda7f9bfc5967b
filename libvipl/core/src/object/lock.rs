//! Biased spin lock for a slot: cheap for one thread that acquires it repeatedly.
//!
//! An atomic operation waits until every earlier store of its processor is visible, and on the data path an
//! earlier store is a message on its way to another processor. Therefore a lock that one thread has acquired
//! often enough is *biased* to it: that thread then marks itself inside with plain stores. Another thread
//! that wants the lock revokes the bias: it clears the owner and makes the kernel execute a fence on every
//! processor that runs this process (`membarrier`). Afterwards either the owner's mark is visible, and the
//! other thread waits for it, or the owner will see that it is not the owner any more.
//!
//! ```text
//!   owner thread                           other thread (holds `spin`)
//!   own sequence = odd                     owner = none  
//!   compiler fence                         membarrier
//!   owner still me?  yes: inside           sequence odd?  wait until it is even
//!                    no: sequence = even, take `spin`
//! ```
//!
//! A thread may be descheduled between its two loads of the owner and resume when the lock has another owner.
//! Its stores must not overwrite that owner's mark, so each thread that ever owned the lock has its own
//! sequence, whose number is part of the owner's word. There is room for a few; further threads use the spin
//! lock.
//!
//! Revoking a bias costs about a microsecond. After each revocation the next bias requires more acquisitions,
//! so that threads that share a lock end up with a spin lock.

use super::barrier::{self, OWNERS, STREAK, back_off, this_thread};
use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Maximum doublings of [`STREAK`], one for each revoked bias.
const PENALTY_MAX: u32 = 8;
const NO_OWNER: usize = 0;

/// A lock that may be all zero. The fields that its owner needs come last, beside the guarded value; the rest
/// fills a cache line of a 64-bit host.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Lock {
    /// The threads of the sequences; guarded by `spin`.
    owners: [AtomicUsize; OWNERS],
    /// The thread that last acquired `spin`, how often in a row, and how often a bias was revoked; guarded by
    /// `spin`.
    last: AtomicUsize,
    streak: AtomicU32,
    penalty: AtomicU32,
    /// Number of acquisitions of `spin`, except by watchers; guarded by `spin`.
    uses: AtomicU32,
    /// The owner's sequence, or `uses`, at a watcher's last check, and how often it has spared the owner
    /// since.
    watched: AtomicU32,
    spared: AtomicU32,
    spin: AtomicU32,

    /// The owner's thread pointer, and the number of its sequence in the low bits.
    owner: AtomicUsize,
    /// Odd while its thread is inside as owner; each is written by one thread only.
    sequences: [AtomicU32; OWNERS],
}

/// How a lock is held: by its owner, if this is 1 + the number of the owner's sequence; otherwise by `spin`,
/// and this is the owner's word to store at the end. It is one word so that it stays in a register from
/// `lock` to `unlock`; an `enum` went through the stack, by stores and loads of different widths, each of
/// which cost a poll five nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Held(pub(crate) usize);

impl Held {
    /// The owner's sequence, if its owner holds it.
    #[inline(always)]
    fn sequence(self) -> Option<usize> {
        let number = self.0.wrapping_sub(1);
        (number < OWNERS).then_some(number)
    }
}

impl Lock {
    #[inline(always)]
    pub(crate) fn lock(&self) -> Held {
        self.lock_as_owner()
            .unwrap_or_else(|| self.lock_shared(this_thread()))
    }

    /// Acquires the lock if this thread owns it and no thread is revoking that.
    #[inline(always)]
    pub(crate) fn lock_as_owner(&self) -> Option<Held> {
        let owner = self.owner.load(Ordering::Relaxed);
        // If this thread is the owner, what is left is the number of its sequence.
        let number = owner ^ this_thread();
        let own = self.sequences.get(number)?;
        let sequence = own.load(Ordering::Relaxed);
        own.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // The other thread's `membarrier` is the processor's fence.
        barrier::light();
        // Acquire pairs with the release of a watcher.
        if self.owner.load(Ordering::Acquire) == owner {
            return Some(Held(1 + number));
        }
        own.store(sequence.wrapping_add(2), Ordering::Release);
        None
    }

    #[inline(never)]
    fn lock_shared(&self, me: usize) -> Held {
        // Acquire pairs with the release in `unlock`.
        if self.spin.swap(1, Ordering::Acquire) != 0 {
            self.contended();
        }
        let uses = self.uses.load(Ordering::Relaxed);
        self.uses.store(uses.wrapping_add(1), Ordering::Relaxed);
        let owner = self.owner.load(Ordering::Relaxed);
        if owner & !(OWNERS - 1) == me {
            // A watcher had borrowed it. While `spin` is held, no other thread is inside.
            return Held(owner);
        }
        if owner != NO_OWNER {
            self.revoke_bias();
            self.streak.store(0, Ordering::Relaxed);
            let penalty = self.penalty.load(Ordering::Relaxed);
            self.penalty
                .store((penalty + 1).min(PENALTY_MAX), Ordering::Relaxed);
        }
        if self.last.load(Ordering::Relaxed) != me {
            self.last.store(me, Ordering::Relaxed);
            self.streak.store(0, Ordering::Relaxed);
            return Held(NO_OWNER);
        }
        let streak = self.streak.load(Ordering::Relaxed);
        if streak < STREAK << self.penalty.load(Ordering::Relaxed) {
            self.streak.store(streak + 1, Ordering::Relaxed);
            return Held(NO_OWNER);
        }
        match self.sequence_of(me) {
            Some(number) if barrier::works() => Held(me | number),
            _ => Held(NO_OWNER),
        }
    }

    /// Acquires the lock for a watcher, which does so rarely: the owner keeps its bias, and no streak is
    /// interrupted.
    pub(crate) fn borrow(&self) -> Held {
        if self.spin.swap(1, Ordering::Acquire) != 0 {
            self.contended();
        }
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != NO_OWNER {
            self.revoke_bias();
        }
        // If revoking has become slow, the bias is not restored.
        Held(if barrier::works() { owner } else { NO_OWNER })
    }

    /// The sequence of a thread, if one is available. Under `spin`.
    #[cold]
    fn sequence_of(&self, me: usize) -> Option<usize> {
        let mine = |known: &AtomicUsize| {
            matches!(known.load(Ordering::Relaxed), NO_OWNER) || known.load(Ordering::Relaxed) == me
        };
        let number = self.owners.iter().position(mine)?;
        self.owners[number].store(me, Ordering::Relaxed);
        Some(number)
    }

    #[cold]
    fn revoke_bias(&self) {
        let number = self.owner.swap(NO_OWNER, Ordering::SeqCst) % OWNERS;
        barrier::heavy();
        let mut rounds = 0;
        // Acquire pairs with the release of the owner's `unlock`.
        while !self.sequences[number]
            .load(Ordering::Acquire)
            .is_multiple_of(2)
        {
            back_off(&mut rounds);
        }
    }

    #[cold]
    fn contended(&self) {
        let mut rounds = 0;
        loop {
            while self.spin.load(Ordering::Relaxed) != 0 {
                back_off(&mut rounds);
            }
            if self.spin.swap(1, Ordering::Acquire) == 0 {
                return;
            }
        }
    }

    #[inline(always)]
    pub(crate) fn unlock(&self, held: Held) {
        if let Some(number) = held.sequence() {
            let own = &self.sequences[number];
            let sequence = own.load(Ordering::Relaxed);
            own.store(sequence.wrapping_add(1), Ordering::Release);
            return;
        }
        // Release: an owner whose bias is restored sees the changes of the watcher.
        self.owner.store(held.0, Ordering::Release);
        self.spin.store(0, Ordering::Release);
    }

    /// For a watcher: whether a thread is inside, or has been since the last check, so that the watcher may
    /// skip the lock. An active owner is not skipped for ever: it may not do the work that the watcher does.
    pub(crate) fn owner_is_active(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        let (inside, now) = if owner == NO_OWNER {
            let taken = self.spin.load(Ordering::Relaxed) != 0;
            (taken, self.uses.load(Ordering::Relaxed))
        } else {
            let sequence = self.sequences[owner % OWNERS].load(Ordering::Relaxed);
            (!sequence.is_multiple_of(2), sequence)
        };
        if inside {
            return true;
        }
        let before = self.watched.swap(now, Ordering::Relaxed);
        let spared = self.spared.load(Ordering::Relaxed);
        let active = now != before && spared < SPARED_MAX;
        self.spared
            .store(if active { spared + 1 } else { 0 }, Ordering::Relaxed);
        active
    }
}

/// Maximum consecutive checks for which a watcher spares an active owner.
const SPARED_MAX: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    struct Counter {
        lock: Lock,
        value: std::cell::UnsafeCell<u64>,
    }
    // SAFETY: the value is only touched under the lock.
    unsafe impl Sync for Counter {}
    // SAFETY: as above.
    unsafe impl Send for Counter {}

    fn add(counter: &Counter, times: u64) -> u64 {
        let mut biased = 0;
        for _ in 0..times {
            let held = counter.lock.lock();
            biased += u64::from(held.sequence().is_some());
            // SAFETY: under the lock.
            unsafe { *counter.value.get() += 1 };
            counter.lock.unlock(held);
        }
        biased
    }

    /// Serialises tests that rely on `membarrier` with the one that forbids it.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn alone() -> std::sync::MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn no_update_is_lost_when_membarrier_is_forbidden() {
        let _alone = alone();
        barrier::prepare();
        let counter = Arc::new(Counter {
            lock: Lock::default(),
            value: 0.into(),
        });
        add(&counter, 1000);
        // So that the other thread must revoke it.
        let owned = counter.lock.owner.load(Ordering::Relaxed) != NO_OWNER;
        assert!(owned || !barrier::works());
        let other = {
            let counter = counter.clone();
            std::thread::spawn(move || {
                barrier::tests::forbid();
                add(&counter, 100_000)
            })
        };
        add(&counter, 100_000);
        other.join().unwrap();
        // SAFETY: the other thread has ended.
        assert_eq!(unsafe { *counter.value.get() }, 201_000);
    }

    #[test]
    fn one_thread_comes_to_own_the_lock() {
        let _alone = alone();
        barrier::prepare();
        let counter = Counter {
            lock: Lock::default(),
            value: 0.into(),
        };
        let biased = add(&counter, 1000);
        if barrier::works() {
            assert!(biased > 900, "{biased}");
        }
    }

    #[test]
    fn a_lock_is_active_while_a_thread_is_inside() {
        let _alone = alone();
        barrier::prepare();
        for times in [1, 1000] {
            let counter = Counter {
                lock: Lock::default(),
                value: 0.into(),
            };
            add(&counter, times);
            let lock = &counter.lock;
            let held = lock.lock();
            for _ in 0..3 * SPARED_MAX {
                assert!(lock.owner_is_active());
            }
            lock.unlock(held);
            // Once more, for the changes since the last check.
            lock.owner_is_active();
            assert!(!lock.owner_is_active());
        }
    }

    #[test]
    fn a_watcher_leaves_the_bias_and_loses_no_update() {
        let _alone = alone();
        barrier::prepare();
        let counter = Arc::new(Counter {
            lock: Lock::default(),
            value: 0.into(),
        });
        let owner = {
            let counter = counter.clone();
            std::thread::spawn(move || add(&counter, 400_000))
        };
        let mut borrowed = 0;
        while !owner.is_finished() {
            let held = counter.lock.borrow();
            // SAFETY: under the lock.
            unsafe { *counter.value.get() += 1 };
            counter.lock.unlock(held);
            borrowed += 1;
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        let biased = owner.join().unwrap();
        if barrier::works() {
            assert!(biased > 300_000, "{biased}");
        }
        // SAFETY: the other thread has ended.
        assert_eq!(unsafe { *counter.value.get() }, 400_000 + borrowed);
    }

    #[test]
    fn no_update_is_lost_with_changing_owners() {
        let counter = Arc::new(Counter {
            lock: Lock::default(),
            value: 0.into(),
        });
        let threads: Vec<_> = (0..4u64)
            .map(|number| {
                let counter = counter.clone();
                std::thread::spawn(move || {
                    for round in 0..50 {
                        add(&counter, 200 + 37 * number);
                        // Long pauses let another thread acquire the bias.
                        if (round + number) % 5 == 0 {
                            std::thread::sleep(std::time::Duration::from_micros(300));
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let expected: u64 = (0..4u64).map(|number| 50 * (200 + 37 * number)).sum();
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *counter.value.get() }, expected);
    }
}
