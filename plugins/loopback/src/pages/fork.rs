//! What a forked child finds where pages were shared: copies, as of every other memory.
//!
//! The child makes them itself, before the call that forked returns there, and the parent waits for that, so that the
//! copies are of the moment of the fork. A child that runs no handlers (`vfork`, `clone`) finds nothing there.

use std::cell::UnsafeCell;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use vipl_sys::clock::Instant;

use vipl_sys::mutex::MutexGuard;

use super::moving::private_copy;
use super::{PAGE, PAGES, Pages};

/// How long the parent waits for a child that makes copies.
const COPY_TIME_MAX: Duration = Duration::from_secs(1);

/// On a page that both share: 1 when the child has its copies.
static COPIED: OnceLock<&'static AtomicU32> = OnceLock::new();

/// The lock, from before a fork until after it.
struct Held(UnsafeCell<Option<MutexGuard<'static, Pages>>>);

// SAFETY: only the thread that forks touches it, while it holds the lock that is in it.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Has forks of this process watched from now on.
///
/// # Errors
/// There is no memory.
pub(super) fn prepare() -> io::Result<()> {
    if COPIED.get().is_some() {
        return Ok(());
    }
    // SAFETY: a new mapping, which stays; zeroes are an atomic word.
    let copied = unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            PAGE as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        AtomicU32::from_ptr(page.cast())
    };
    if COPIED.set(copied).is_ok() {
        // SAFETY: the functions stay: a plug-in is never unloaded.
        let status = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        if status != 0 {
            return Err(io::Error::from_raw_os_error(status));
        }
    }
    Ok(())
}

/// What the handlers say to each other.
fn copied() -> Option<&'static AtomicU32> {
    COPIED.get().copied()
}

extern "C" fn before() {
    let pages = PAGES.lock();
    if let Some(copied) = copied() {
        let nothing = pages.spans.0.is_empty();
        copied.store(u32::from(nothing), Ordering::Relaxed);
    }
    // SAFETY: this thread has the lock.
    unsafe { *HELD.0.get() = Some(pages) };
}

extern "C" fn in_parent() {
    let end = Instant::now() + COPY_TIME_MAX;
    if let Some(copied) = copied() {
        // The child of a fork that failed never answers: hence the end.
        while copied.load(Ordering::Acquire) == 0 && Instant::now() < end {
            std::thread::yield_now();
        }
    }
    // SAFETY: this thread took the lock before the fork.
    drop(unsafe { (*HELD.0.get()).take() });
}

extern "C" fn in_child() {
    // SAFETY: the child's only thread is the one that took the lock before the fork.
    let held = unsafe { (*HELD.0.get()).take() };
    let Some(mut pages) = held else { return };
    if let Ok(memory) = super::number(&pages) {
        for (&start, span) in &pages.spans.0 {
            let place = std::ptr::with_exposed_provenance_mut(start as usize);
            private_copy(memory, start, (span.end - start) as usize, place);
        }
    }
    pages.spans.0.clear();
    // Nothing of the parent's is the child's to use; its descriptor is closed.
    pages.memory = None;
    if let Some(copied) = copied() {
        copied.store(1, Ordering::Release);
    }
}
