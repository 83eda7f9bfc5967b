//! Which way large data goes: through the ring, with two copies that overlap, or by the kernel, with one.
//!
//! Which is faster depends on the machine and on where the two processors are, and that changes while
//! programs run. So each side measures what it does anyway and tells the other; now and then the slower
//! way is taken once, to learn whether it still is slower.

use std::sync::atomic::Ordering;

use crate::link::Link;

/// Every so many large transfers the other way is tried.
const TRY_PERIOD: u32 = 64;
/// How long an initiator waits for the target's sign of life, in ticks (about a microsecond).
const ANSWER_TICKS: u64 = 4_000;

/// The two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Road {
    /// Through the payload area.
    Ring,
    /// By `process_vm_*`, or a plain copy within one process.
    Kernel,
}

/// A cheap clock; its unit does not matter.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the time stamp counter.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return vipl_plugin_sdk::Host::get().now_ns();
}

impl Link {
    /// Takes a measurement into account and publishes it when it has changed by an eighth.
    pub(crate) fn note(&self, road: Road, ticks: u64, bytes: u32) {
        let own = self.ends.own();
        let cost = if road == Road::Ring {
            &own.ring_cost
        } else {
            &own.kernel_cost
        };
        let fresh = (ticks << 16) / u64::from(bytes.max(1));
        let fresh = fresh.clamp(1, u64::from(u32::MAX >> 3)) as u32;
        let known = cost.load(Ordering::Relaxed);
        let next = if known == 0 {
            fresh
        } else {
            known - known / 4 + fresh / 4
        };
        if known.abs_diff(next) > known / 8 {
            cost.store(next.max(1), Ordering::Relaxed);
        }
    }

    /// The way for a large message: the receiver does the work either way.
    pub(crate) fn road_for_send(&mut self) -> Road {
        let partner = self.ends.partner();
        self.choose(
            partner.ring_cost.load(Ordering::Relaxed),
            partner.kernel_cost.load(Ordering::Relaxed),
        )
    }

    /// The way for a large RDMA Write: this side's kernel, or the target's hands.
    pub(crate) fn road_for_write(&mut self) -> Road {
        let ring = self.ends.partner().ring_cost.load(Ordering::Relaxed);
        let kernel = self.ends.own().kernel_cost.load(Ordering::Relaxed);
        let road = self.choose(ring, kernel);
        if road == Road::Ring && !self.partner_polls() {
            Road::Kernel
        } else {
            road
        }
    }

    fn choose(&mut self, ring: u32, kernel: u32) -> Road {
        self.large = self.large.wrapping_add(1);
        match (ring, kernel) {
            (_, 0) => Road::Kernel,
            (0, _) => Road::Ring,
            _ if (ring < kernel) != self.large.is_multiple_of(TRY_PERIOD) => Road::Ring,
            _ => Road::Kernel,
        }
    }

    /// Whether the partner's program looks at the connection right now.
    fn partner_polls(&self) -> bool {
        let question = self
            .ends
            .own()
            .asked
            .load(Ordering::Relaxed)
            .wrapping_add(1);
        self.ends.own().asked.store(question, Ordering::Release);
        let start = ticks();
        while ticks().wrapping_sub(start) < ANSWER_TICKS {
            if self.ends.partner().answered.load(Ordering::Acquire) == question {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Answers the partner's question, on behalf of the program.
    #[inline(always)]
    pub(crate) fn answer(&self) {
        let question = self.ends.partner().asked.load(Ordering::Relaxed);
        let own = self.ends.own();
        if own.answered.load(Ordering::Relaxed) != question && !crate::watch::is_this_thread() {
            own.answered.store(question, Ordering::Release);
        }
    }
}
