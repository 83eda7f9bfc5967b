//! Where the lines go: a buffer for each thread, and a file for all processes that are given the same name.
//!
//! The file is in Chrome's trace format as a list whose end is open: each process appends whole lines, so one file shows both
//! sides of a connection, and a process that is killed leaves a file that can be read. While a NIC is open, a thread of its own
//! writes what threads that call no more have left, and in which call they are.
//!
//! A disk may stand still, and a file of it takes nothing. Who writes then waits in the kernel; the others go on without the file, and
//! the log says so.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use vipl_plugin_sdk::abi::{VIPL_LOG_INFO, VIPL_LOG_WARN};
use vipl_plugin_sdk::layer::Host;
use vipl_sys::clock;
use vipl_sys::file::{Output, is_of_this_user_alone};
use vipl_sys::thread::{id, spawn_with_signals_blocked};

use crate::mine::Mine;
use crate::ticks::{Speed, ticks};

/// Bytes of a buffer that are written together.
const BUFFER_BYTES: usize = 64 << 10;
/// A line stays in its buffer for this long, or twice as long if its thread makes no further call.
const HOLD_NS: u64 = 100_000_000;
/// How long the end of a thread or of the process waits for another thread that writes.
const LOCKED_NS: u64 = 100_000_000;
/// How long a write may take before the other threads go on without the file.
const STUCK_NS: u64 = 5_000_000_000;
/// Between two looks of a call at a buffer that another thread writes.
const LOOK: Duration = Duration::from_micros(100);

/// The file or the log, and the buffers of all threads.
pub(crate) struct Sink {
    host: Host,
    file: Option<Output>,
    failed: AtomicBool,
    speed: Speed,
    threads: Mutex<Vec<Arc<Mutex<Mine>>>>,
    /// NIC handles of the process.
    nics: AtomicU32,
    /// Whether the writing thread runs.
    writer: Mutex<bool>,
    /// When the oldest write began that has not ended; 0: there is none.
    writing_ns: AtomicU64,
    stuck: AtomicBool,
    pid: u32,
}

thread_local! {
    /// The thread's buffer, and the sink that it belongs to: another one in a child made by `fork`.
    static MINE: RefCell<Option<(*const Sink, Leaving)>> = const { RefCell::new(None) };
}

/// Locks what another thread holds for a moment. `None`: it stays locked, perhaps by a call that a signal handler has interrupted
/// on this very thread.
fn lock_soon<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let deadline = clock::now_ns() + LOCKED_NS;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::WouldBlock) if clock::now_ns() < deadline => std::thread::yield_now(),
            Err(_) => return None,
        }
    }
}

/// Writes what is left when its thread ends.
struct Leaving(Arc<Mutex<Mine>>, *const Sink, u32);

impl Drop for Leaving {
    fn drop(&mut self) {
        // In a child the lines are the parent's.
        if std::process::id() != self.2 {
            return;
        }
        // SAFETY: sinks of this process are never freed.
        let sink = unsafe { &*self.1 };
        if let Some(mut mine) = lock_soon(&self.0) {
            sink.flush(&mut mine);
        }
        if let Some(mut threads) = lock_soon(&sink.threads) {
            threads.retain(|known| !Arc::ptr_eq(known, &self.0));
        }
    }
}

impl Sink {
    /// Opens the file with this name, in which `%p` is the process id; without one lines go to the log.
    pub(crate) fn open(host: Host, name: Option<&str>) -> Result<Sink, String> {
        let pid = std::process::id();
        let name = name.filter(|name| !name.is_empty());
        let name = name.map(|name| name.replace("%p", &pid.to_string()));
        let (file, begun) = match name.map(|name| create(&name)).transpose()? {
            Some((file, begun)) => (Some(file), begun),
            None => (None, Ok(())),
        };
        let sink = Sink {
            host,
            file,
            failed: AtomicBool::new(false),
            speed: Speed::measure(),
            threads: Mutex::new(Vec::new()),
            nics: AtomicU32::new(0),
            writer: Mutex::new(false),
            writing_ns: AtomicU64::new(0),
            stuck: AtomicBool::new(false),
            pid,
        };
        sink.check(begun);
        Ok(sink)
    }

    /// Works on the buffer of the calling thread.
    #[inline]
    pub(crate) fn with(&self, work: impl FnOnce(&mut Mine)) {
        // A thread that is ending has none any more.
        let _ = MINE.try_with(|slot| {
            let Ok(mut slot) = slot.try_borrow_mut() else {
                return;
            };
            if !slot.as_ref().is_some_and(|(of, _)| std::ptr::eq(*of, self)) {
                *slot = Some((self, self.join()));
            }
            let Some((_, leaving)) = slot.as_ref() else {
                return;
            };
            let Some(mut mine) = self.lock_for_call(&leaving.0) else {
                return;
            };
            work(&mut mine);
            if self.is_due(&mut mine) {
                self.write(&mut mine);
            }
        });
    }

    /// Locks the buffer of the calling thread. `None`: another thread writes it, and the file takes nothing; the call is lost.
    #[inline]
    fn lock_for_call<'a>(&self, mine: &'a Mutex<Mine>) -> Option<MutexGuard<'a, Mine>> {
        loop {
            match mine.try_lock() {
                Ok(mine) => return Some(mine),
                Err(TryLockError::WouldBlock) if !self.is_stuck() => clock::sleep(LOOK),
                Err(_) => return None,
            }
        }
    }

    /// Whether a write has not ended for long, with a line in the log for the first time.
    fn is_stuck(&self) -> bool {
        let began = self.writing_ns.load(Ordering::Relaxed);
        let is_stuck = began != 0 && clock::now_ns().saturating_sub(began) >= STUCK_NS;
        if is_stuck && !self.stuck.swap(true, Ordering::Relaxed) {
            let seconds = STUCK_NS / 1_000_000_000;
            let text = format!(
                "trace: the file has taken nothing for {seconds} s; calls are lost until it does, and a thread that writes waits"
            );
            self.host.log(VIPL_LOG_WARN, &text);
        }
        is_stuck
    }

    fn is_due(&self, mine: &mut Mine) -> bool {
        if self.file.is_none() || mine.text.0.len() >= BUFFER_BYTES {
            return true;
        }
        let now = mine.anchor.now();
        now.saturating_sub(mine.written_ns) >= HOLD_NS
    }

    /// A buffer for the calling thread.
    fn join(&self) -> Leaving {
        let mut mine = Mine::new(self.speed, self.pid, id() as u32);
        if self.file.is_some() {
            self.introduce(&mut mine);
            self.wake_writer();
        }
        let mine = Arc::new(Mutex::new(mine));
        if let Ok(mut threads) = self.threads.lock() {
            threads.push(mine.clone());
        }
        Leaving(mine, self, self.pid)
    }

    /// A NIC handle is opened.
    pub(crate) fn nic_opened(&self) {
        self.nics.fetch_add(1, Ordering::Relaxed);
    }

    /// It is closed.
    pub(crate) fn nic_closed(&self) {
        self.nics.fetch_sub(1, Ordering::Relaxed);
    }

    /// Starts the thread that writes for threads that make no further call, unless it runs. Without it their lines wait for the end.
    /// It ends with the last NIC, as threads of the library do: a process without a NIC ends with the last thread of its program.
    pub(crate) fn wake_writer(&self) {
        let Ok(mut runs) = self.writer.lock() else {
            return;
        };
        if std::mem::replace(&mut *runs, true) || self.file.is_none() {
            return;
        }
        // SAFETY: sinks of this process are never freed.
        let sink = unsafe { &*std::ptr::from_ref(self) };
        let write = move || {
            loop {
                clock::sleep(Duration::from_nanos(HOLD_NS));
                sink.write_old();
                if sink.may_rest() {
                    return;
                }
            }
        };
        if let Err(error) = spawn_with_signals_blocked("vipl-trace", write) {
            let text = format!(
                "trace: no thread: {error}; what a thread calls before it waits is written later"
            );
            self.host.log(VIPL_LOG_WARN, &text);
        }
    }

    /// Whether there is no NIC, and nothing to write: then the writing thread ends.
    fn may_rest(&self) -> bool {
        let Ok(mut runs) = self.writer.lock() else {
            return true;
        };
        let Ok(threads) = self.threads.lock() else {
            return true;
        };
        let is_quiet = |mine: &Arc<Mutex<Mine>>| {
            let mine = mine.try_lock();
            mine.is_ok_and(|mine| mine.open.is_none() && mine.text.0.is_empty())
        };
        *runs = self.nics.load(Ordering::Relaxed) > 0 || !threads.iter().all(is_quiet);
        !*runs
    }

    /// Writes what threads have not written for a while, and in which calls they are.
    fn write_old(&self) {
        let threads: Vec<_> = match self.threads.lock() {
            Ok(threads) => threads.clone(),
            Err(_) => return,
        };
        for mine in threads {
            let Ok(mut mine) = mine.try_lock() else {
                // It may be in a write that does not end.
                self.is_stuck();
                continue;
            };
            mine.report_open(HOLD_NS, ticks());
            if mine.anchor.now().saturating_sub(mine.written_ns) >= HOLD_NS {
                self.flush(&mut mine);
            }
        }
    }

    /// The names of the process and the thread.
    fn introduce(&self, mine: &mut Mine) {
        let name = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        for (what, name) in [
            ("process_name", name("/proc/self/comm")),
            ("thread_name", name("/proc/thread-self/comm")),
        ] {
            let head = std::mem::take(&mut mine.head);
            mine.text.put(&head);
            mine.head = head;
            mine.text.put("\"ph\":\"M\",\"name\":\"");
            mine.text.put(what);
            mine.text.put("\",\"args\":{\"name\":");
            mine.text.quoted(name.trim_end().as_bytes());
            mine.text.put("}},\n");
        }
    }

    /// Writes the buffers of all threads that are not using theirs, also one that the thread of `write_old` is writing.
    pub(crate) fn flush_all(&self) {
        // Not locked meanwhile: the thread of `write_old` says that a write does not end.
        let threads = lock_soon(&self.threads).map_or_else(Vec::new, |threads| threads.clone());
        for mine in threads {
            if let Some(mut mine) = lock_soon(&mine) {
                self.flush(&mut mine);
            }
        }
    }

    fn flush(&self, mine: &mut Mine) {
        mine.end_polls();
        self.write(mine);
    }

    fn write(&self, mine: &mut Mine) {
        let text = std::mem::take(&mut mine.text.0);
        match &self.file {
            Some(file) if !self.failed.load(Ordering::Relaxed) => self.append(file, &text),
            Some(_) => {}
            None => {
                for line in text.split(|byte| *byte == b'\n') {
                    let line = String::from_utf8_lossy(line);
                    if !line.is_empty() {
                        self.host.log(VIPL_LOG_INFO, line.trim_end_matches(','));
                    }
                }
            }
        }
        mine.text.0 = text;
        mine.text.0.clear();
        mine.written_ns = mine.anchor.now();
    }

    /// Appends whole lines; after an error nothing more, with one line in the log. They are lost while the file takes nothing.
    fn append(&self, file: &Output, text: &[u8]) {
        if self.is_stuck() {
            return;
        }
        let now = clock::now_ns();
        let relaxed = Ordering::Relaxed;
        let is_oldest = self.writing_ns.compare_exchange(0, now, relaxed, relaxed);
        let written = file.write_lines(text);
        if is_oldest.is_ok() {
            self.writing_ns.store(0, relaxed);
        }
        self.check(written);
    }

    fn check(&self, written: io::Result<()>) {
        if let Err(error) = written
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            let text = format!("trace: the file cannot be written any more: {error}");
            self.host.log(VIPL_LOG_WARN, &text);
        }
    }
}

/// Opens a file for appending, also one of ours that exists. What others may have put into the folder, to read what is written, is refused:
/// a symbolic link, a file with another owner or a second name. Who creates it writes the beginning of the list: the result of
/// that is the second value.
fn create(name: &str) -> Result<(Output, io::Result<()>), String> {
    let kept = |file| Output::new(file).map_err(|error| format!("{name}: {error}"));
    let path = Path::new(name);
    let mut options = File::options();
    options
        .append(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    if let Ok(file) = options.clone().create_new(true).open(path) {
        let file = kept(file)?;
        let begun = file.write_all(b"[\n");
        return Ok((file, begun));
    }
    let file = options
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => format!("{name}: it is a symbolic link, which is not followed"),
            Some(libc::ENXIO) => format!("{name}: it is a FIFO or a device that nobody reads"),
            _ => format!("{name}: {error}"),
        })?;
    let about = file
        .metadata()
        .map_err(|error| format!("{name}: {error}"))?;
    // Devices belong to root, and are what they are. A FIFO would end the program when its reader does.
    let is_ours =
        about.is_file() && is_of_this_user_alone(&about) || about.file_type().is_char_device();
    match is_ours {
        true => Ok((kept(file)?, Ok(()))),
        false => Err(format!(
            "{name}: it exists and is no file of this user's alone"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_link_is_followed_and_a_file_that_exists_is_appended_to() {
        let dir = std::env::temp_dir().join(format!("vipl-trace-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (file, link) = (dir.join("t.json"), dir.join("link.json"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for _ in 0..2 {
            let error = create(link.to_str().unwrap()).unwrap_err();
            assert!(error.contains("it is a symbolic link"), "{error}");
            let (opened, begun) = create(file.to_str().unwrap()).unwrap();
            begun.and_then(|()| opened.write_all(b"x")).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[\nxx");
        let second = dir.join("second.json");
        std::fs::hard_link(&file, &second).unwrap();
        let (fifo, c_name) = (dir.join("fifo"), dir.join("fifo").into_os_string());
        let c_name = std::ffi::CString::new(c_name.into_encoded_bytes()).unwrap();
        // SAFETY: a system call with a text that lives as long as it does.
        assert_eq!(unsafe { libc::mkfifo(c_name.as_ptr(), 0o600) }, 0);
        assert!(create(fifo.to_str().unwrap()).is_err(), "nobody reads it");
        let _reader = File::options().read(true).write(true).open(&fifo).unwrap();
        for name in [&file, &second, &dir, &fifo] {
            assert!(create(name.to_str().unwrap()).is_err(), "{name:?}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[\nxx");
        create("/dev/null").unwrap().1.unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
