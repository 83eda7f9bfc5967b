//! Times of calls. A clock of the system takes twenty nanoseconds, and each call needs two times; so they are in ticks of the
//! processor, and each thread reads the clock now and then.

use vipl_sys::clock;

/// Between two looks of a thread at the clock. Ticks are known to a few millionths, so times are off by less than the clock's
/// own nanoseconds then.
const LOOK_NS: u64 = 1_000_000;
/// What the speed of the ticks is measured over.
const MEASURE_NS: u64 = 2_000_000;

/// The time in ticks.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the time stamp counter.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return clock::now_ns();
}

/// Ticks and nanoseconds of the same instant: of some readings the one that took the shortest time, since the thread may
/// have to wait for the processor between the two.
fn both() -> (u64, u64) {
    let one = || {
        let before = ticks();
        let ns = clock::now_ns();
        let took = ticks().wrapping_sub(before);
        (took, before.wrapping_add(took / 2), ns)
    };
    let best = (0..4).map(|_| one()).min_by_key(|(took, _, _)| *took);
    best.map_or((0, 0), |(_, ticks, ns)| (ticks, ns))
}

/// The speed of the ticks: nanoseconds of one, times 2^32.
#[derive(Clone, Copy)]
pub(crate) struct Speed(u64);

impl Speed {
    /// Measures it, for two milliseconds.
    pub(crate) fn measure() -> Speed {
        let (ticks_then, then) = both();
        loop {
            let (ticks, now) = both();
            if now - then >= MEASURE_NS {
                let passed = u128::from(ticks.wrapping_sub(ticks_then)).max(1);
                return Speed(((u128::from(now - then) << 32) / passed) as u64);
            }
        }
    }

    /// Nanoseconds of so many ticks.
    pub(crate) fn ns(self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.0)) >> 32) as u64
    }
}

/// One thread's reading of the clock.
pub(crate) struct Anchor {
    speed: Speed,
    ticks: u64,
    ns: u64,
}

impl Anchor {
    pub(crate) fn new(speed: Speed) -> Anchor {
        let (ticks, ns) = both();
        Anchor { speed, ticks, ns }
    }

    /// Nanoseconds of so many ticks.
    pub(crate) fn ns(&self, ticks: u64) -> u64 {
        self.speed.ns(ticks)
    }

    /// The time now, to a millisecond.
    pub(crate) fn now(&mut self) -> u64 {
        self.at(ticks())
    }

    /// The time on the system's clock, which all processes of a host share.
    pub(crate) fn at(&mut self, ticks: u64) -> u64 {
        let since = ticks.wrapping_sub(self.ticks) as i64;
        if since >= 0 && self.speed.ns(since as u64) > LOOK_NS {
            *self = Anchor::new(self.speed);
            return self.at(ticks);
        }
        match since {
            0.. => self.ns + self.speed.ns(since as u64),
            // A wait that began before the last look.
            _ => self.ns.saturating_sub(self.speed.ns(since.unsigned_abs())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_a_look_are_in_order() {
        let mut anchor = Anchor {
            speed: Speed(1 << 31),
            ticks: 1000,
            ns: 5000,
        };
        assert_eq!(anchor.at(1000), 5000);
        assert_eq!(anchor.at(1010), 5005);
        assert_eq!(anchor.at(990), 4995);
    }
}
