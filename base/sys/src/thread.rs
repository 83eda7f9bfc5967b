//! Threads in the application's process.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::futex;
use crate::reserve::has_memory;

/// A thread of the library. It continues if this is dropped.
pub struct Thread(libc::pthread_t);

// SAFETY: an identifier of a thread, which any thread may use.
unsafe impl Send for Thread {}
// SAFETY: as above.
unsafe impl Sync for Thread {}

impl Thread {
    /// Joins the thread.
    pub fn join(self) {
        // SAFETY: neither joined nor detached before.
        unsafe { libc::pthread_join(self.0, null_mut()) };
        std::mem::forget(self);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: neither joined nor detached before.
        unsafe { libc::pthread_detach(self.0) };
    }
}

/// Starts a thread with all signals blocked but SIGSEGV and SIGBUS, which the guarded copies need: the
/// application's handlers must not run on a thread that it does not know. A panic ends the body only.
///
/// It does not use the standard library, which aborts the process if it cannot allocate its thread data.
///
/// # Errors
/// The error of the system.
pub fn spawn_with_signals_blocked<F>(name: &str, body: F) -> io::Result<Thread>
where
    F: FnOnce() + Send + 'static,
{
    struct Begin<F> {
        /// Truncated to the kernel's limit, with a terminating zero.
        name: [u8; 16],
        body: F,
        /// Set to 1 once the thread has its data. The creator owns the word and waits.
        begun: *const AtomicU32,
        /// The signals blocked by the application's thread that started the first thread.
        mask: libc::sigset_t,
        /// Given back to the system when the thread needs it for its data.
        room: Room,
    }
    extern "C" fn run<F: FnOnce()>(begin: *mut c_void) -> *mut c_void {
        // SAFETY: allocated below for this call.
        let begin = unsafe { Box::from_raw(begin.cast::<Begin<F>>()) };
        if let Ok(name) = CStr::from_bytes_until_nul(&begin.name) {
            set_name(name);
        }
        drop(begin.room);
        touch_data();
        MASK_OF_STARTER.set(Some(begin.mask));
        // SAFETY: the creator waits until it is 1.
        unsafe {
            (*begin.begun).store(1, Ordering::Release);
        }
        futex::wake_address(begin.begun.addr());
        let _ = catch_unwind(AssertUnwindSafe(begin.body));
        null_mut()
    }
    let begun = AtomicU32::new(0);
    let mut begin = Begin {
        name: [0; 16],
        body,
        begun: &raw const begun,
        mask: MASK_OF_STARTER.get().unwrap_or_else(blocked),
        room: Room::new()?,
    };
    let kept = name.len().min(15);
    begin.name[..kept].copy_from_slice(&name.as_bytes()[..kept]);
    let begin = Box::into_raw(Box::new(begin));
    let made = create(run::<F>, begin.cast(), libc::PTHREAD_CREATE_JOINABLE);
    if made.is_err() {
        // SAFETY: it has no other owner.
        drop(unsafe { Box::from_raw(begin) });
    } else {
        while begun.load(Ordering::Acquire) == 0 {
            futex::wait(&begun, 0, u64::MAX);
        }
    }
    made.map(Thread)
}

/// Address space for the data of a thread that is being made: its stack may take the last there is, and the C library aborts
/// the process if the first access to that data finds none.
struct Room(*mut c_void);

/// The data of the libraries that were loaded later, and the thread's cache of `malloc`, in pages of their own.
const ROOM_BYTES: usize = 256 << 10;

impl Room {
    fn new() -> io::Result<Room> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which takes no memory.
        let at = unsafe { libc::mmap(null_mut(), ROOM_BYTES, libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Room(at))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: its own mapping.
        unsafe { libc::munmap(self.0, ROOM_BYTES) };
    }
}

/// Starts a thread with the signals blocked.
fn create(
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
    state: i32,
) -> io::Result<libc::pthread_t> {
    /// The stack size of the standard library's threads.
    const STACK_BYTES: usize = 2 << 20;
    // Its first access to thread-local data may allocate, and aborts the process on failure.
    if !has_memory() {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    let mut thread = 0;
    // SAFETY: the attributes are initialised before use, and destroyed; the rest guaranteed by the callers.
    let error = unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setdetachstate(&raw mut attributes, state);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES);
        let error = with_signals_blocked(|_| {
            libc::pthread_create(&raw mut thread, &raw const attributes, start, argument)
        });
        libc::pthread_attr_destroy(&raw mut attributes);
        error
    };
    match error {
        0 => Ok(thread),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The signals that the calling thread blocks.
fn blocked() -> libc::sigset_t {
    // SAFETY: a valid set.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        mask
    }
}

thread_local! {
    /// The signals blocked by the thread that started this one.
    static MASK_OF_STARTER: Cell<Option<libc::sigset_t>> = const { Cell::new(None) };
}

/// Unblocks signals, as in the thread that started the calling one.
pub fn take_signals() {
    if let Some(mask) = MASK_OF_STARTER.get() {
        // SAFETY: a valid set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, null_mut()) };
    }
}

/// Runs a function with all signals blocked but SIGSEGV and SIGBUS; passes it the previously blocked signals.
/// A new thread inherits the mask.
pub fn with_signals_blocked<R>(body: impl FnOnce(libc::sigset_t) -> R) -> R {
    // SAFETY: both sets are valid.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigdelset(&raw mut all, libc::SIGSEGV);
        libc::sigdelset(&raw mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = body(before);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        result
    }
}

/// The start function of a thread without frames of the standard library.
pub type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// Starts a detached thread with the same signals blocked, and without frames of the standard library below `start`: code of
/// the application that runs on it may end it by `pthread_exit`.
///
/// # Errors
/// The error of the system.
///
/// # Safety
/// `start` may be called with this argument on another thread.
pub unsafe fn spawn_bare(start: Start, argument: *mut c_void) -> io::Result<()> {
    // SAFETY: both have the calling convention of C; a C frame can be unwound.
    let start: extern "C" fn(*mut c_void) -> *mut c_void = unsafe { std::mem::transmute(start) };
    create(start, argument, libc::PTHREAD_CREATE_DETACHED).map(drop)
}

/// Allocates the calling thread's thread-local data of this library or plug-in, one allocation; without
/// memory the C library aborts the process at the first access.
pub fn touch_data() {
    thread_local! {
        static DATA: Cell<bool> = const { Cell::new(false) };
    }
    DATA.with(|data| std::hint::black_box(data).set(true));
}

/// Names the calling thread.
pub fn set_name(name: &CStr) {
    // SAFETY: a NUL-terminated name.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Number of the calling thread. Unlike that of the standard library, it is available until the thread's end,
/// in destructors of thread-specific data.
pub fn id() -> libc::pid_t {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::gettid() }
}

/// Runs a function with enough stack: a thread of the application may have 16 KiB, and the C library's
/// resolver and `getifaddrs` need more. If no thread can be started, the calling one runs it.
pub fn with_stack<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    struct Work<B, R>(Option<B>, Option<R>);
    extern "C" fn run<B: FnOnce() -> R, R>(work: *mut c_void) -> *mut c_void {
        // SAFETY: owned by the caller, which waits.
        let work = unsafe { &mut *work.cast::<Work<B, R>>() };
        let body = work.0.take();
        work.1 = catch_unwind(AssertUnwindSafe(|| body.map(|body| body())))
            .ok()
            .flatten();
        null_mut()
    }
    fn thunk<B: FnOnce() -> R, R>(_: &Work<B, R>) -> extern "C" fn(*mut c_void) -> *mut c_void {
        run::<B, R>
    }
    let mut work = Work(Some(body), None);
    let run = thunk(&work);
    let argument = (&raw mut work).cast();
    match create(run, argument, libc::PTHREAD_CREATE_JOINABLE) {
        Ok(thread) => Thread(thread).join(),
        Err(_) => drop(run(argument)),
    }
    match work.1 {
        Some(result) => result,
        None => panic!("a lookup has panicked"),
    }
}

/// Whether the calling thread is the only one of its process. False also if the system does not report it.
pub fn is_alone() -> bool {
    crate::left::count() == Some(1)
}

/// Requests short time slices for the calling thread, which has little work per wake-up, while applications
/// wait for it: the scheduler then lets it preempt a thread with longer ones. Kernels before 6.12 ignore
/// this. It also makes timed waits end on time. A thread of another scheduling class is not changed.
pub fn ask_for_short_turns() {
    /// `struct sched_attr` of the kernel, in its first version.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const TURN_NS: u64 = 100_000;
    // SAFETY: the only pointer is to a valid structure, which states its size.
    unsafe {
        if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
            return;
        }
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
        let attributes = Attributes {
            size: size_of::<Attributes>() as u32,
            policy: libc::SCHED_OTHER as u32,
            flags: 0,
            nice: libc::getpriority(libc::PRIO_PROCESS, 0),
            priority: 0,
            runtime: TURN_NS,
            deadline: 0,
            period: 0,
        };
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_beside_another_one_is_not_alone() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ended.recv());
        assert!(!is_alone());
        drop(end);
        let _ = other.join();
        // SAFETY: the child only makes system calls and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(is_alone()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(libc::WEXITSTATUS(status), 1);
        }
    }

    #[test]
    fn it_takes_the_signals_of_bad_memory_only() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let body = move || {
            // SAFETY: the set is valid.
            let open = unsafe {
                let mut mask: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
                (1..32)
                    .filter(|signal| libc::sigismember(&raw const mask, *signal) == 0)
                    .collect()
            };
            let _ = sender.send(open);
        };
        spawn_with_signals_blocked("test", body).unwrap().join();
        let open: Vec<i32> = receiver.recv().unwrap();
        // The kernel removes these two from every mask.
        let always = [libc::SIGKILL, libc::SIGSTOP];
        let mut expected = vec![libc::SIGBUS, libc::SIGSEGV];
        expected.extend(always);
        expected.sort_unstable();
        assert_eq!(open, expected);
    }
}
