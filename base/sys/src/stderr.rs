//! Standard error of the application's process.
//!
//! A program may have been started without descriptor 2, or may have closed it; its next file then gets that
//! number, and a line of the library would corrupt that file. Therefore a line is only written while 2 refers
//! to the same file as when the library was loaded ([decision
//! 77](../../docs/decisions/0077-standard-error-of-others.md)).
//!
//! A line neither kills the program, by SIGPIPE or SIGXFSZ, nor blocks it for ever: a pipe without a reading
//! process costs one second once, and lines are dropped until it is read again.
//!
//! It uses only system calls and atomics, so it may be called in a signal handler.

use std::mem::zeroed;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::{cancel, clock};

const FD: RawFd = libc::STDERR_FILENO;
/// Time for which the first line waits for a reader.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes that a writable pipe accepts at once (PIPE_BUF).
const PIECE: usize = 4096;

const UNKNOWN: u32 = 0;
const CLOSED: u32 = 1;
const OPEN: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
/// Whether the last line was dropped.
static JAMMED: AtomicBool = AtomicBool::new(false);
/// Number of dropped lines.
static LOST: AtomicU32 = AtomicU32::new(0);

/// Records the file of descriptor 2. Called when the library is loaded, before the program runs, or by the
/// first line.
pub extern "C" fn remember() {
    if STATE.load(Ordering::Relaxed) != UNKNOWN {
        return;
    }
    let state = match look() {
        Some(file) => {
            DEVICE.store(file.st_dev, Ordering::Relaxed);
            INODE.store(file.st_ino, Ordering::Relaxed);
            OPEN
        }
        None => CLOSED,
    };
    // Release pairs with the acquire in `mode`.
    STATE.store(state, Ordering::Release);
}

fn look() -> Option<libc::stat64> {
    // SAFETY: the result is valid memory; all zero is a valid value.
    unsafe {
        let mut file: libc::stat64 = zeroed();
        (libc::fstat64(FD, &raw mut file) == 0).then_some(file)
    }
}

/// Kind of the file, if it is the initial one, or a pipe that replaced it.
fn mode() -> Option<libc::mode_t> {
    remember();
    if STATE.load(Ordering::Acquire) != OPEN {
        return None;
    }
    let file = look()?;
    let same = file.st_dev == DEVICE.load(Ordering::Relaxed)
        && file.st_ino == INODE.load(Ordering::Relaxed);
    let mode = file.st_mode & libc::S_IFMT;
    // A pipe does not store data: it was put there to receive standard error.
    (same || mode == libc::S_IFIFO).then_some(mode)
}

/// Writes a line to standard error, if it is unchanged and accepts the line.
pub fn write(line: &[u8]) {
    let _off = cancel::Off::new();
    let Some(mode) = mode() else { return };
    let patience = match JAMMED.load(Ordering::Relaxed) {
        true => Duration::ZERO,
        false => PATIENCE,
    };
    let lost = LOST.load(Ordering::Relaxed);
    if lost > 0
        && put_all(
            mode,
            b"vipl: lines of the log were lost, nobody read them\n",
            Duration::ZERO,
        )
    {
        LOST.fetch_sub(lost, Ordering::Relaxed);
    }
    let written = LOST.load(Ordering::Relaxed) == 0 && put_all(mode, line, patience);
    JAMMED.store(!written, Ordering::Relaxed);
    if !written {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes all bytes. False on timeout. Bytes that can never be written count as written.
fn put_all(mode: libc::mode_t, mut bytes: &[u8], patience: Duration) -> bool {
    // Other writers may repeatedly take the room.
    let mut attempts = 16;
    while !bytes.is_empty() {
        if mode != libc::S_IFREG && !has_room(patience) {
            return false;
        }
        let piece = &bytes[..bytes.len().min(PIECE)];
        match put(mode, piece) {
            Ok(count) => bytes = &bytes[count.clamp(1, piece.len())..],
            Err(libc::EINTR) => {}
            Err(libc::EAGAIN) if !patience.is_zero() && attempts > 0 => attempts -= 1,
            Err(libc::EAGAIN) => return false,
            Err(_) => return true,
        }
    }
    true
}

/// Waits until standard error is writable.
fn has_room(patience: Duration) -> bool {
    let entry = libc::pollfd {
        fd: FD,
        events: libc::POLLOUT,
        revents: 0,
    };
    clock::poll(&mut [entry], Some(patience)) > 0
}

fn put(mode: libc::mode_t, bytes: &[u8]) -> Result<usize, i32> {
    let (at, count) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the bytes live; a part of an array of one is passed to `pwritev2`.
    let put = unsafe {
        match mode {
            libc::S_IFSOCK => libc::send(FD, at, count, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT),
            libc::S_IFIFO => {
                return without_signal(libc::SIGPIPE, libc::EPIPE, || put_into_pipe(bytes));
            }
            _ => {
                return without_signal(libc::SIGXFSZ, libc::EFBIG, || {
                    usize::try_from(libc::write(FD, at, count)).map_err(|_| errno())
                });
            }
        }
    };
    usize::try_from(put).map_err(|_| errno())
}

fn put_into_pipe(bytes: &[u8]) -> Result<usize, i32> {
    let part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: one valid part.
    let put = unsafe { libc::pwritev2(FD, &raw const part, 1, -1, libc::RWF_NOWAIT) };
    if let Ok(count) = usize::try_from(put) {
        return Ok(count);
    }
    match errno() {
        // Kernels whose pipes lack the flag. There is room, unless another writer has just taken it.
        libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::EPERM => {
            // SAFETY: as above.
            let put = unsafe { libc::write(FD, bytes.as_ptr().cast(), bytes.len()) };
            usize::try_from(put).map_err(|_| errno())
        }
        error => Err(error),
    }
}

/// Runs a write whose failure with this error raises this signal, and keeps the signal from the program:
/// SIGPIPE with EPIPE, and SIGXFSZ with EFBIG, if a file would exceed RLIMIT_FSIZE.
pub fn without_signal<T>(
    signal: i32,
    error: i32,
    body: impl FnOnce() -> Result<T, i32>,
) -> Result<T, i32> {
    // SAFETY: all sets are valid, and the calls are permitted in a signal handler.
    unsafe {
        let (mut only, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            (zeroed(), zeroed(), zeroed());
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, signal);
        libc::sigpending(&raw mut pending);
        let was_pending = libc::sigismember(&raw const pending, signal) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const only, &raw mut before);
        let result = body();
        if result.as_ref().is_err_and(|found| *found == error) && !was_pending {
            let now: libc::timespec = zeroed();
            libc::sigtimedwait(&raw const only, std::ptr::null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

fn errno() -> i32 {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() }
}
