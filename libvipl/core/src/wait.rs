//! Sleeping until something may have happened: poll for a short time, then sleep with the plug-in's help.

use std::time::{Duration, Instant};

use crate::nic::Nic;
use crate::process;

/// Step of a sleep when the plug-in cannot wake anybody.
const STEP: Duration = Duration::from_micros(50);

/// Calls `check` until it gives something or the deadline passes.
pub(crate) fn until<R>(
    nic: &Nic,
    deadline: Option<Instant>,
    mut check: impl FnMut() -> Option<R>,
) -> Option<R> {
    let spin_end = Instant::now() + spin_time();
    loop {
        if let Some(result) = check() {
            return Some(result);
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return None;
        }
        if now >= spin_end {
            break;
        }
        std::hint::spin_loop();
    }
    loop {
        if let Some(result) = step(nic, deadline, &mut check) {
            return Some(result);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return check();
        }
    }
}

/// One sleep: announce it, look again, sleep.
pub(crate) fn step<R>(
    nic: &Nic,
    deadline: Option<Instant>,
    check: &mut impl FnMut() -> Option<R>,
) -> Option<R> {
    let (Some(arm), Some(sleep)) = (nic.ops.arm, nic.ops.sleep) else {
        let left = deadline.map_or(STEP, |end| end.saturating_duration_since(Instant::now()));
        std::thread::sleep(left.min(STEP));
        return check();
    };
    // SAFETY: the NIC is open while somebody waits on an object of it.
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

/// How long a wait polls. With one processor whoever polls keeps the partner from running.
fn spin_time() -> Duration {
    static TIME: crate::sync::OnceLock<Duration> = crate::sync::OnceLock::new();
    *TIME.get_or_init(|| {
        let alone = std::thread::available_parallelism().is_ok_and(|count| count.get() == 1);
        let spin_us = process::get().settings.number("spin_us", 0..=10_000_000);
        Duration::from_micros(if alone { 0 } else { spin_us })
    })
}
