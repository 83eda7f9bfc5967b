//! The signal handler, which continues a faulting routine at its fixup address. It only reads the tables and
//! the ranges.

use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use crate::table::{Entry, table};

/// Maximum number of libraries and plug-ins with the routines.
const TABLES_MAX: usize = 64;
static TABLES: [(AtomicPtr<Entry>, AtomicUsize); TABLES_MAX] =
    [const { (AtomicPtr::new(std::ptr::null_mut()), AtomicUsize::new(0)) }; TABLES_MAX];

/// Adds a table; `false` if there is no room.
pub fn register(table: &'static [Entry]) -> bool {
    let first = table.as_ptr().cast_mut();
    for (entries, count) in &TABLES {
        let null = std::ptr::null_mut();
        match entries.compare_exchange(null, first, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // Release: a handler that sees the count sees the table.
                count.store(table.len(), Ordering::Release);
                return true;
            }
            Err(taken) if taken == first => return true,
            Err(_) => {}
        }
    }
    false
}

/// Instructions that may fault, and their fixup address, for code without a table.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Address of the first instruction.
    pub start: usize,
    /// Address after the last one.
    pub end: usize,
    /// The fixup address.
    pub fixup: usize,
}

struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    fixup: AtomicUsize,
}

const RANGES_MAX: usize = 64;
static RANGES: [Slot; RANGES_MAX] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        fixup: AtomicUsize::new(0),
    }
}; RANGES_MAX];

/// Adds a range; `false` if there is no room.
///
/// # Safety
/// Its instructions may fault at any time, and the program may then go on at the fixup.
pub unsafe fn register_range(range: Range) -> bool {
    for slot in &RANGES {
        match slot
            .start
            .compare_exchange(0, range.start, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {
                slot.fixup.store(range.fixup, Ordering::Relaxed);
                // Release: a handler that sees the end sees the fixup too.
                slot.end.store(range.end, Ordering::Release);
                return true;
            }
            Err(taken) if taken == range.start => return true,
            Err(_) => {}
        }
    }
    false
}

/// The fixup address of a faulting instruction.
#[cfg(all(
    not(miri),
    any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")
))]
fn landing(at: usize) -> Option<usize> {
    let tables = TABLES.iter().map(|(entries, count)| {
        // Acquire pairs with the release in `register`; before it the table is empty.
        let count = count.load(Ordering::Acquire);
        match entries.load(Ordering::Relaxed) {
            first if first.is_null() || count == 0 => &[],
            // SAFETY: a table that was registered, and lives as long as the process.
            first => unsafe { std::slice::from_raw_parts(first, count) },
        }
    });
    let mut ranges = RANGES.iter().filter_map(|slot| {
        // Acquire pairs with the release in `register_range`; before it the range is empty.
        let end = slot.end.load(Ordering::Acquire);
        (slot.start.load(Ordering::Relaxed)..end)
            .contains(&at)
            .then(|| slot.fixup.load(Ordering::Relaxed))
    });
    tables
        .flatten()
        .find_map(|entry| entry.landing(at))
        .or_else(|| ranges.next())
}

#[cfg(all(
    not(miri),
    any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")
))]
mod fault {
    use std::sync::atomic::{AtomicPtr, Ordering};

    /// The previous action of each signal; leaked, because a handler may run for ever.
    pub(super) static BEFORE: [AtomicPtr<libc::sigaction>; 2] =
        [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

    pub(super) extern "C" fn on_fault(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        let ucontext = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel passes a valid context.
        let next = unsafe { next_instruction(&mut *ucontext) };
        match super::landing(*next as usize) {
            Some(landing) => *next = landing as _,
            None => pass_on(signal, info, context),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn next_instruction(context: &mut libc::ucontext_t) -> &mut libc::greg_t {
        &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
    }

    #[cfg(target_arch = "x86")]
    fn next_instruction(context: &mut libc::ucontext_t) -> &mut libc::greg_t {
        &mut context.uc_mcontext.gregs[libc::REG_EIP as usize]
    }

    #[cfg(target_arch = "aarch64")]
    fn next_instruction(context: &mut libc::ucontext_t) -> &mut libc::c_ulonglong {
        &mut context.uc_mcontext.pc
    }

    /// Passes the fault to the previous handler.
    fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        super::accuse();
        let index = usize::from(signal == libc::SIGBUS);
        let before = BEFORE[index].load(Ordering::Acquire);
        // SAFETY: set before the handler was installed, never freed.
        let Some(before) = (unsafe { before.as_ref() }) else {
            return;
        };
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: restores the previous disposition; the instruction then faults again.
                unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
                // SAFETY: the kernel passes valid information. A signal that was sent by a process does not
                // recur by itself.
                if unsafe { (*info).si_code } <= 0 {
                    // SAFETY: no pointers.
                    unsafe { libc::raise(signal) };
                }
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                // SAFETY: SA_SIGINFO says that the handler has this signature.
                let handler: Action = unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: without SA_SIGINFO the handler takes the signal number.
                let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        }
    }
}

/// The line printed if the thread with this number faults, and its length.
static LINE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LINE_BYTES: AtomicUsize = AtomicUsize::new(0);
static LINE_THREAD: AtomicI32 = AtomicI32::new(0);
/// The function that prints it.
static PRINTER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Prints a line, in a signal handler.
pub type Printer = fn(&[u8]);

/// Ends the time in which a line is printed.
struct FaultLine;

/// Runs `body`. If this thread faults meanwhile, `print`, which only makes system calls, prints the line before the process
/// ends, or before the application's own handler runs. One at a time per process.
pub fn on_fault<R>(line: &str, print: Printer, body: impl FnOnce() -> R) -> R {
    PRINTER.store(print as *mut c_void, Ordering::Relaxed);
    LINE.store(line.as_ptr().cast_mut(), Ordering::Relaxed);
    LINE_BYTES.store(line.len(), Ordering::Relaxed);
    // SAFETY: no arguments.
    LINE_THREAD.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    let _end = FaultLine;
    body()
}

impl Drop for FaultLine {
    fn drop(&mut self) {
        LINE_THREAD.store(0, Ordering::Relaxed);
    }
}

/// Prints the line if the calling thread has set it. Called in the handler: only system calls.
#[cfg(all(
    not(miri),
    any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")
))]
fn accuse() {
    // SAFETY: the call is safe in a handler. The line lives while the calling thread is
    // in `on_fault`, which stored it and its printer, so the order of the loads does not matter.
    unsafe {
        if LINE_THREAD.load(Ordering::Relaxed) == libc::gettid() {
            let (line, bytes) = (&LINE, &LINE_BYTES);
            let line = std::slice::from_raw_parts(
                line.load(Ordering::Relaxed),
                bytes.load(Ordering::Relaxed),
            );
            let print: Printer = std::mem::transmute(PRINTER.load(Ordering::Relaxed));
            print(line);
        }
    }
}

/// Installs the handler, once per process, and registers this library's own table.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        register(table());
        #[cfg(all(
            not(miri),
            any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")
        ))]
        for (index, signal) in [libc::SIGSEGV, libc::SIGBUS].into_iter().enumerate() {
            // SAFETY: plain system calls on valid structures; the old action is deliberately leaked.
            unsafe {
                let mut before: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal, std::ptr::null(), &raw mut before) != 0 {
                    continue;
                }
                fault::BEFORE[index].store(Box::into_raw(Box::new(before)), Ordering::Release);
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = fault::on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
    });
}
