//! The processor on which the device runs. A NIC leaves the processor to the application. The kernel wakes a process
//! near its caller, so that both would share one processor while another one is idle.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Wake-ups in a row from one processor after which the device moves to another one. Peers that wake it alternately do
/// not cause a move each.
const CALLS: u32 = 8;

/// A device that has waited for its processor for so long, and for this share of the time, may run anywhere again, in
/// nanoseconds: threads that compute run on the remaining processors.
const WAITED_NS: u64 = 2_000_000;
const WAITED_PART: u64 = 4;
/// How long it may run anywhere after that, in nanoseconds.
const FREE_NS: u64 = 1_000_000_000;

/// The processors on which the device may run, and the one that it leaves to an application.
pub(crate) struct Processor {
    usable: libc::cpu_set_t,
    avoided: Option<usize>,
    caller: usize,
    /// Wake-ups in a row from there.
    calls: u32,
    /// The kernel's statistics of the time in run queues.
    schedstat: Option<File>,
    /// How long the device had waited when that was last read, and the time of reading, in nanoseconds.
    waited: u64,
    read_at: u64,
    /// The device leaves no processor before this time.
    free_until: u64,
}

impl Processor {
    pub(crate) fn new() -> Processor {
        Processor {
            usable: allowed(),
            avoided: None,
            caller: 0,
            calls: 0,
            schedstat: File::open("/proc/self/schedstat").ok(),
            waited: 0,
            read_at: 0,
            free_until: 0,
        }
    }

    /// An application has woken the device and states that it runs on this processor.
    pub(crate) fn called_from(&mut self, cpu: usize, now: u64) {
        if cpu >= libc::CPU_SETSIZE as usize {
            return;
        }
        if self.caller != cpu {
            (self.caller, self.calls) = (cpu, 0);
            if self.avoided.take().is_some() {
                run_on(&self.usable);
            }
        }
        self.calls = self.calls.saturating_add(1);
        if self.calls >= CALLS && self.avoided.is_none() && now >= self.free_until {
            self.avoid(cpu);
            (self.waited, self.read_at) = (self.run_queue_wait(), now);
            if self.avoided.is_none() {
                self.free_until = now + FREE_NS;
            }
        }
    }

    /// Ends the restriction to the other processors if they are busy. Called about every millisecond.
    pub(crate) fn relieve(&mut self, now: u64) {
        if self.avoided.is_none() {
            return;
        }
        let waited = self.run_queue_wait();
        let lately = waited.saturating_sub(self.waited);
        let time = now.saturating_sub(self.read_at);
        if lately >= WAITED_NS && lately >= time / WAITED_PART {
            self.avoided = None;
            run_on(&self.usable);
            self.free_until = now + FREE_NS;
        }
        (self.waited, self.read_at) = (waited, now);
    }

    /// How long the device has been runnable without running, in nanoseconds.
    fn run_queue_wait(&self) -> u64 {
        let mut text = [0; 80];
        let read = self.schedstat.as_ref().map(|f| f.read_at(&mut text, 0));
        let Some(Ok(bytes)) = read else { return 0 };
        let text = std::str::from_utf8(&text[..bytes]).unwrap_or_default();
        let waited = text.split_whitespace().nth(1);
        waited.and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    fn avoid(&mut self, cpu: usize) {
        // The user may have changed the device's processors meanwhile.
        self.usable = allowed();
        let mut others = self.usable;
        // SAFETY: the number is below CPU_SETSIZE.
        let some = unsafe {
            libc::CPU_CLR(cpu, &mut others);
            libc::CPU_COUNT(&others) > 0
        };
        if some && run_on(&others) {
            self.avoided = Some(cpu);
        }
    }
}

/// The processors of the device; an empty set if they are unknown, and then it is not moved.
fn allowed() -> libc::cpu_set_t {
    // SAFETY: all zero is an empty set, and as large as it says.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
        set
    }
}

fn run_on(cpus: &libc::cpu_set_t) -> bool {
    // SAFETY: the set is as large as it says.
    unsafe { libc::sched_setaffinity(0, size_of_val(cpus), cpus) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time that this thread has been runnable without running, by competing with itself for one processor.
    fn starve(processor: &Processor, ns: u64) {
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let before = processor.run_queue_wait();
        while processor.run_queue_wait() < before + ns {
            assert!(std::time::Instant::now() < limit, "never waited");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_device_that_waits_for_its_processor_goes_elsewhere() {
        let usable = allowed();
        // SAFETY: a valid set.
        let cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize)
            .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &usable) })
            .collect();
        if cpus.len() < 2 {
            println!("skipped: one processor only");
            return;
        }
        let mut processor = Processor::new();
        // The file is that of the main thread; this is another one.
        processor.schedstat = File::open("/proc/thread-self/schedstat").ok();
        for _ in 0..CALLS {
            processor.called_from(cpus[0], 1);
        }
        assert_eq!(processor.avoided, Some(cpus[0]));
        // Threads that compute, on every processor that is left.
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 * cpus.len() {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            starve(&processor, 2 * WAITED_NS);
            processor.relieve(WAITED_NS);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(processor.avoided, None);
        // SAFETY: valid sets.
        assert!(unsafe { libc::CPU_EQUAL(&allowed(), &usable) });
        processor.called_from(cpus[0], WAITED_NS + 1);
        assert_eq!(processor.avoided, None, "not at once again");
        processor.called_from(cpus[0], WAITED_NS + FREE_NS);
        assert_eq!(processor.avoided, Some(cpus[0]));
    }
}
