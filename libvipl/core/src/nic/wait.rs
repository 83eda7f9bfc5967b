//! Waiting for events: polls for a short time, then sleeps in the plug-in.

use std::time::Duration;
use vipl_sys::clock::Instant;

use crate::nic::Nic;
use crate::nic::idle::{self, Yielded};
use crate::settings::Settings;
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicU32, Ordering};

/// A wait sleeps once other threads have kept the processor for this long: they compute. One round of 16
/// polling threads takes 0.1 ms.
const TURN_MAX: Duration = Duration::from_micros(500);
/// Step of a sleep if the plug-in cannot wake threads.
const STEP: Duration = Duration::from_micros(50);

/// Calls `check` until it returns something or the deadline passes. `polls`: the wait begins, so it polls
/// before it sleeps.
pub(crate) fn until<R>(
    nic: &Nic,
    end: Instant,
    polls: bool,
    mut check: impl FnMut() -> Option<R>,
) -> Option<R> {
    let mut found = check();
    if found.is_none() && polls {
        found = poll(&nic.process.settings, Some(end), &mut check);
    }
    if found.is_some() {
        return found;
    }
    while Instant::now() < end {
        if let Some(result) = step(nic, Some(end), &mut check) {
            return Some(result);
        }
    }
    check()
}

/// The polling phase of a wait. It yields the processor like a polling application (`idle`), and time used by
/// other threads does not count: waiting for the processor costs no more than sleeping, and no wake-up is
/// needed. Empty polls of several waits are counted together, because a single one may have too few. A short
/// sleep is skipped here, since the sleep of the wait follows.
fn poll<R>(
    settings: &Settings,
    deadline: Option<Instant>,
    check: &mut impl FnMut() -> Option<R>,
) -> Option<R> {
    let begin = Instant::now();
    let (mut now, mut end) = (begin, begin + spin_time(settings));
    while now < end && deadline.is_none_or(|deadline| now < deadline) {
        std::hint::spin_loop();
        if let Some(result) = (0..idle::OFTEN).find_map(|_| check()) {
            if EMPTY_WAITS.load(Ordering::Relaxed) != 0 {
                EMPTY_WAITS.store(0, Ordering::Relaxed);
            }
            return Some(result);
        }
        match idle::yield_in_wait(settings) {
            Yielded::For(turn) if turn >= TURN_MAX => break,
            Yielded::For(turn) => end += turn,
            Yielded::No | Yielded::Sleep => {}
        }
        now = Instant::now();
    }
    if now > begin {
        EMPTY_WAITS.fetch_add(1, Ordering::Relaxed);
    }
    None
}

/// One sleep: announce it, check again, sleep.
pub(crate) fn step<R>(
    nic: &Nic,
    deadline: Option<Instant>,
    check: &mut impl FnMut() -> Option<R>,
) -> Option<R> {
    let (Some(arm), Some(sleep)) = (nic.ops.arm, nic.ops.sleep) else {
        let left = deadline.map_or(STEP, |end| end.saturating_duration_since(Instant::now()));
        vipl_sys::clock::sleep(left.min(STEP));
        return check();
    };
    let _asleep = nic.fall_asleep();
    // SAFETY: the NIC is open while a thread waits on an object of it.
    let epoch = unsafe { arm(nic.abi()) };
    let result = check();
    let left = match (&result, deadline) {
        (Some(_), _) => 0,
        (None, None) => u64::MAX,
        (None, Some(end)) => end
            .saturating_duration_since(Instant::now())
            .as_nanos()
            .min(u64::MAX.into()) as u64,
    };
    // SAFETY: as above; every `arm` is followed by one `sleep`.
    unsafe { sleep(nic.abi(), epoch, left) };
    result
}

/// Maximum duration of a short sleep. It bounds the delay of events that do not end one: an RDMA Write
/// without immediate data, or a message that arrived on another VI before it began.
const SHORT_SLEEP: Duration = Duration::from_micros(200);

/// Sleeps until the NIC has an event, `has_something` returns true, or 0.2 ms have passed. For polling
/// threads (`idle`).
pub(crate) fn short_sleep(nic: &Nic, has_something: impl Fn() -> bool) {
    let end = Instant::now() + SHORT_SLEEP;
    step(nic, Some(end), &mut || has_something().then_some(()));
}

/// Consecutive unsuccessful polling phases after which a thread confined to one processor stops polling.
const EMPTY_MAX: u32 = 8;
/// Period in waits after which such a thread polls nevertheless: the peer may have moved.
const RETRY_PERIOD: u32 = 64;

/// Waits that have polled without success, or not at all, since polling last succeeded.
static EMPTY_WAITS: AtomicU32 = AtomicU32::new(0);

/// Duration of this wait's polling phase: `spin_us`, unless polling keeps the peer from running, as it does
/// beside computing threads if both processes are confined to the same processor. This cannot be queried; it
/// shows in polls that never succeed. A process that is pinned while its peer runs elsewhere polls like any
/// other.
fn spin_time(settings: &Settings) -> Duration {
    static TIME: OnceLock<Duration> = OnceLock::new();
    let time = *TIME.get_or_init(|| Duration::from_micros(settings.number("spin_us")));
    if EMPTY_WAITS.load(Ordering::Relaxed) < EMPTY_MAX || !is_confined() {
        return time;
    }
    match EMPTY_WAITS.fetch_add(1, Ordering::Relaxed) % RETRY_PERIOD {
        0 => time,
        _ => Duration::ZERO,
    }
}

/// Whether the calling thread may run on one processor only.
fn is_confined() -> bool {
    // SAFETY: the set has the stated size; all zero is an empty set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0
            && libc::CPU_COUNT(&set) == 1
    }
}
