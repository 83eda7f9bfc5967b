//! On which processor the device runs. A NIC leaves the processor to the program; the kernel, which wakes a
//! process where it was called from, would rather have them take turns on one and leave another idle.

/// Calls in a row from one processor after which the device goes elsewhere. Partners that wake it by turns
/// are not worth a move each.
const CALLS: u32 = 8;

/// The processors on which the device may run, and the one that it leaves to a program.
pub(crate) struct Processor {
    usable: libc::cpu_set_t,
    avoided: Option<usize>,
    caller: usize,
    /// Calls in a row from there.
    calls: u32,
}

impl Processor {
    pub(crate) fn new() -> Processor {
        Processor {
            usable: allowed(),
            avoided: None,
            caller: 0,
            calls: 0,
        }
    }

    /// A program that runs on this processor, as it says, has woken the device.
    pub(crate) fn called_from(&mut self, cpu: usize) {
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
        if self.calls == CALLS {
            self.avoid(cpu);
        }
    }

    fn avoid(&mut self, cpu: usize) {
        // Somebody else may have said meanwhile where the device shall run.
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

/// Where the device may run; an empty set if that cannot be told, and it stays where it is.
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
