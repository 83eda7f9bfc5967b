//! Work of a NIC's handler thread: calls of notify handlers, and asynchronous errors (spec §8.2, §11).
//!
//! Handlers are called one at a time, in order, by one thread per NIC handle (`handlers.rs`), which starts
//! when it is first needed and gets its next step here. While notify requests are open, it also watches the
//! NIC, since the application may not call the library at all; otherwise it sleeps on a condition variable.
//!
//! If a function returns true, the caller must wake the NIC: the thread sleeps in the plug-in.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;
use vipl_sys::clock::Instant;

use vipl_abi::*;
use vipl_sys::thread;

use super::notices::{Notice, Notices};
use crate::error::Error;
use crate::meaning;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Maximum undelivered errors (spec §11).
const ERRORS_MAX: usize = 1024;
/// Maximum lines per second of the default error handler.
const LOG_LINES_PER_SECOND: u32 = 10;

/// Handler of VipSendNotify and VipRecvNotify.
pub(crate) type NotifyHandler =
    unsafe extern "C" fn(VIP_PVOID, VIP_NIC_HANDLE, VIP_VI_HANDLE, *mut VIP_DESCRIPTOR);

/// Handler of VipCQNotify.
pub(crate) type CqNotifyHandler =
    unsafe extern "C" fn(VIP_PVOID, VIP_NIC_HANDLE, VIP_VI_HANDLE, VIP_BOOLEAN);

/// Handler of VipErrorCallback.
pub(crate) type ErrorHandler = unsafe extern "C" fn(VIP_PVOID, *mut VIP_ERROR_DESCRIPTOR);

/// One call of a handler. Pointers of the application are stored as addresses.
pub(crate) enum Job {
    Descriptor {
        handler: NotifyHandler,
        context: usize,
        vi: usize,
        descriptor: usize,
    },
    Entry {
        handler: CqNotifyHandler,
        context: usize,
        cq: usize,
        vi: usize,
        recv: bool,
    },
}

/// One work item, in order of arrival.
enum Item {
    Call(Job),
    Error(ErrorCopy),
}

/// A queued error descriptor.
pub(crate) struct ErrorCopy(pub(crate) VIP_ERROR_DESCRIPTOR);
// SAFETY: its pointers are handles or belong to the application.
unsafe impl Send for ErrorCopy {}

/// The object of a running handler, for threads that must wait until it returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Vi(usize),
    Cq(usize),
    Error,
}

impl Job {
    fn subject(&self) -> Subject {
        match self {
            Job::Descriptor { vi, .. } => Subject::Vi(*vi),
            Job::Entry { cq, .. } => Subject::Cq(*cq),
        }
    }
}

/// The next step of the handler thread.
pub(crate) enum Step {
    /// Calls the handler of a notify request.
    Call(Job),
    /// Calls the error handler with this context.
    Error(ErrorHandler, usize, ErrorCopy),
    /// Raises the errors of due notices.
    Notices(Vec<Notice>),
    /// Watches the NIC, at most until this time.
    Watch(Option<Instant>),
    /// Ends.
    Stop,
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    errors: usize,
    dropped: u64,
    notices: Notices,
    handler: Option<(ErrorHandler, usize)>,
    started: bool,
    /// Id of the handler thread. Not that of the standard library, which panics late in the life of the
    /// calling thread.
    thread: Option<libc::pid_t>,
    running: Option<Subject>,
    open_requests: i32,
    /// Whether the thread sleeps in the plug-in, which must wake it.
    on_bell: bool,
    stop: bool,
    stopped: bool,
    log_second: Option<Instant>,
    log_lines: u32,
}

/// Handlers and errors of one NIC handle.
#[derive(Default)]
pub(crate) struct Events {
    state: Mutex<State>,
    changed: Condvar,
}

impl Events {
    /// Starts the handler thread unless it runs.
    pub(crate) fn start(&self, spawn: impl FnOnce() -> io::Result<()>) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.started {
            return Ok(());
        }
        // The NIC has been closed since the lookup: no thread outlives it.
        if state.stop {
            return Err(Error::InvalidParameter);
        }
        spawn().map_err(|error| {
            log::error!(target: "core", "cannot start the handler thread: {error}");
            Error::Resource
        })?;
        state.started = true;
        Ok(())
    }

    /// Handles that a handler has ended the thread. `spawn` starts another one, unless the NIC is being
    /// closed.
    pub(crate) fn thread_left(&self, spawn: impl FnOnce() -> io::Result<()>) {
        let mut state = self.state.lock();
        (state.running, state.thread) = (None, None);
        state.started = false;
        self.changed.notify_all();
        drop(state);
        let _ = self.start(spawn);
    }

    /// Ends the last step of the handler thread and waits for the next one.
    pub(crate) fn next(&self) -> Step {
        let mut state = self.state.lock();
        state.thread = Some(thread::id());
        state.on_bell = false;
        if state.running.take().is_some() {
            self.changed.notify_all();
        }
        loop {
            if state.stop {
                state.stopped = true;
                self.changed.notify_all();
                return Step::Stop;
            }
            let due = state.notices.take_due(Instant::now());
            if !due.is_empty() {
                return Step::Notices(due);
            }
            if let Some(item) = state.items.pop_front() {
                match begin(&mut state, item) {
                    Some(step) => return step,
                    None => continue,
                }
            }
            let due = state.notices.next_due();
            if state.open_requests > 0 {
                state.on_bell = true;
                return Step::Watch(due);
            }
            match due {
                Some(due) => self.changed.wait_until(&mut state, due),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Whether the thread that watches the NIC until `due` has other work.
    pub(crate) fn ends_watch(&self, due: Option<Instant>) -> bool {
        let state = self.state.lock();
        let next = state.notices.next_due();
        state.stop
            || state.open_requests <= 0
            || !state.items.is_empty()
            || next.is_some_and(|next| due.is_none_or(|due| next < due))
    }

    fn wake(&self, state: &State) -> bool {
        self.changed.notify_all();
        state.on_bell
    }

    /// Adds calls of handlers.
    #[must_use]
    pub(super) fn push(&self, jobs: Vec<Job>) -> bool {
        let mut state = self.state.lock();
        state.items.extend(jobs.into_iter().map(Item::Call));
        self.wake(&state)
    }

    /// Counts open notify requests.
    #[must_use]
    pub(super) fn count_requests(&self, change: i32) -> bool {
        if change == 0 {
            return false;
        }
        let mut state = self.state.lock();
        state.open_requests += change;
        change > 0 && self.wake(&state)
    }

    pub(crate) fn on_handler_thread(&self) -> bool {
        self.state.lock().thread == Some(thread::id())
    }

    /// Adds an asynchronous error.
    #[must_use]
    pub(super) fn raise(&self, error: VIP_ERROR_DESCRIPTOR) -> bool {
        let mut state = self.state.lock();
        if state.handler.is_none() {
            log_error(&mut state, &error);
            return false;
        }
        if state.errors >= ERRORS_MAX {
            state.dropped += 1;
            if state.dropped == 1 {
                log::warn!(target: "error", "more than {ERRORS_MAX} undelivered errors, dropping new ones");
            }
            return false;
        }
        state.errors += 1;
        state.items.push_back(Item::Error(ErrorCopy(error)));
        self.wake(&state)
    }

    /// Records that the application has taken a descriptor that failed when the connection of this VI ended.
    pub(crate) fn saw_failure(&self, vi: VIP_VI_HANDLE) {
        self.state.lock().notices.note_seen(vi.addr());
    }

    /// Logs undelivered errors when the process ends: applications exit on the first error that they see. A
    /// disconnect of the peer is an error if the application has taken a descriptor that it failed.
    pub(crate) fn log_undelivered(&self, nic: VIP_NIC_HANDLE) {
        // The thread that holds the lock may never run again.
        let Some(mut state) = self.state.try_lock() else {
            return;
        };
        for item in std::mem::take(&mut state.items) {
            if let Item::Error(error) = item {
                log_error(&mut state, &error.0);
            }
        }
        for notice in state.notices.take_all() {
            if notice.seen {
                let lost = VIP_ERROR_DESCRIPTOR {
                    NicHandle: nic,
                    ViHandle: std::ptr::with_exposed_provenance_mut(notice.vi),
                    CQHandle: std::ptr::null_mut(),
                    DescriptorPtr: std::ptr::null_mut(),
                    OpCode: 0,
                    ResourceCode: VIP_RESOURCE_CODE::VIP_RESOURCE_VI,
                    ErrorCode: VIP_ERROR_CODE::VIP_ERROR_CONN_LOST,
                };
                log_error(&mut state, &lost);
            }
        }
    }

    #[must_use]
    pub(super) fn add_notice(&self, notice: Notice) -> bool {
        let mut state = self.state.lock();
        // Before a later one the thread wakes up anyway.
        state.notices.add(notice) && self.wake(&state)
    }

    /// Sets the error handler. On return the previous one is not running any more, unless it is the caller.
    pub(crate) fn set_error_handler(&self, handler: Option<(ErrorHandler, usize)>) {
        let mut state = self.state.lock();
        state.handler = handler;
        self.wait_out(&mut state, Subject::Error);
    }

    /// Drops pending errors about the connection of a VI (spec §9.6).
    pub(crate) fn forget_breaks(&self, vi: VIP_VI_HANDLE) {
        use VIP_ERROR_CODE::{VIP_ERROR_CATASTROPHIC, VIP_ERROR_POST_DESC, VIP_ERROR_VI_OVERRUN};
        let mut state = self.state.lock();
        let before = state.items.len();
        state.items.retain(|item| match item {
            Item::Error(ErrorCopy(error)) if error.ViHandle == vi => matches!(
                error.ErrorCode,
                VIP_ERROR_POST_DESC | VIP_ERROR_VI_OVERRUN | VIP_ERROR_CATASTROPHIC
            ),
            _ => true,
        });
        state.errors -= before - state.items.len();
        state.notices.forget(vi.addr());
    }

    /// Cancels pending calls for a VI, and waits for a running one.
    pub(crate) fn forget_vi(&self, vi: VIP_VI_HANDLE) {
        let vi = vi.addr();
        self.forget(Subject::Vi(vi));
    }

    /// The same for a CQ.
    pub(crate) fn forget_cq(&self, cq: VIP_CQ_HANDLE) {
        let cq = cq.addr();
        self.forget(Subject::Cq(cq));
    }

    fn forget(&self, subject: Subject) {
        let mut state = self.state.lock();
        if !state.started {
            return;
        }
        let about = |item: &Item| matches!(item, Item::Call(job) if job.subject() == subject);
        state.items.retain(|item| !about(item));
        self.wait_out(&mut state, subject);
    }

    /// Waits until no handler for `subject` is running, unless the caller is that handler.
    fn wait_out(&self, state: &mut MutexGuard<'_, State>, subject: Subject) {
        while state.running == Some(subject) && state.thread != Some(thread::id()) {
            self.changed.wait(state);
        }
    }

    /// Ends the thread; no handler runs after this returns. `wake` wakes the NIC.
    pub(crate) fn stop(&self, wake: impl Fn()) {
        let mut state = self.state.lock();
        state.stop = true;
        loop {
            self.changed.notify_all();
            if state.on_bell {
                wake();
            }
            if !state.started || state.stopped {
                return;
            }
            // The wake-up may have preceded the sleep of the thread.
            self.changed.wait_for(&mut state, Duration::from_millis(10));
        }
    }
}

/// Begins a call of a handler. `None` if it was an error without a handler.
fn begin(state: &mut State, item: Item) -> Option<Step> {
    let (subject, step) = match item {
        Item::Call(job) => (job.subject(), Step::Call(job)),
        Item::Error(error) => {
            state.errors -= 1;
            let Some((handler, context)) = state.handler else {
                log_error(state, &error.0);
                return None;
            };
            (Subject::Error, Step::Error(handler, context, error))
        }
    };
    state.running = Some(subject);
    Some(step)
}

/// The meaning of an error, with advice.
fn meant(code: VIP_ERROR_CODE) -> String {
    let text = meaning::of_error(code as i32).to_string_lossy();
    let meaning = text.split_once(": ").map_or("", |(_, meaning)| meaning);
    let remedy = match code {
        VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY => "; post receives before the peer sends",
        VIP_ERROR_CODE::VIP_ERROR_VI_OVERRUN => "; MaxDescriptorsPerQueue is the limit (vipinfo)",
        VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT | VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT => {
            "; check EnableRdmaWrite and EnableRdmaRead of this VI and of the region, and the protection tags"
        }
        _ => "",
    };
    format!(": {meaning}{remedy}")
}

/// The default handler: one line each, rate-limited.
fn log_error(state: &mut State, error: &VIP_ERROR_DESCRIPTOR) {
    let now = Instant::now();
    if state
        .log_second
        .is_none_or(|second| now - second >= Duration::from_secs(1))
    {
        state.log_second = Some(now);
        state.log_lines = 0;
    }
    state.log_lines += 1;
    if state.log_lines <= LOG_LINES_PER_SECOND {
        log::warn!(
            target: "error",
            "{:?} vi {:?} nic {:?}{}", error.ErrorCode, error.ViHandle, error.NicHandle, meant(error.ErrorCode)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn handler(_: VIP_PVOID, _: *mut VIP_ERROR_DESCRIPTOR) {}

    unsafe extern "C" fn notified(
        _: VIP_PVOID,
        _: VIP_NIC_HANDLE,
        _: VIP_VI_HANDLE,
        _: *mut VIP_DESCRIPTOR,
    ) {
    }

    fn error(code: VIP_ERROR_CODE, vi: usize) -> VIP_ERROR_DESCRIPTOR {
        VIP_ERROR_DESCRIPTOR {
            NicHandle: std::ptr::null_mut(),
            ViHandle: std::ptr::without_provenance_mut(vi),
            CQHandle: std::ptr::null_mut(),
            DescriptorPtr: std::ptr::null_mut(),
            OpCode: 0,
            ResourceCode: VIP_RESOURCE_CODE::VIP_RESOURCE_VI,
            ErrorCode: code,
        }
    }

    fn call(vi: usize) -> Job {
        Job::Descriptor {
            handler: notified,
            context: 0,
            vi,
            descriptor: 64,
        }
    }

    #[test]
    fn calls_come_in_order_and_a_vi_removes_its_own() {
        let events = Events::default();
        assert_eq!(events.start(|| Ok(())), Ok(()));
        assert!(!events.push(vec![call(1), call(2), call(3)]));
        events.forget_vi(std::ptr::without_provenance_mut(2));
        for expected in [1, 3] {
            let Step::Call(Job::Descriptor { vi, .. }) = events.next() else {
                panic!("another step");
            };
            assert_eq!(vi, expected);
        }
    }

    #[test]
    fn errors_need_a_handler_and_are_bounded() {
        let events = Events::default();
        let lost = || error(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST, 5);
        assert!(!events.raise(lost()));
        assert!(events.state.lock().items.is_empty(), "the log had it");
        events.set_error_handler(Some((handler, 9)));
        for _ in 0..ERRORS_MAX + 2 {
            let _ = events.raise(lost());
        }
        assert_eq!(events.state.lock().dropped, 2);
        assert!(matches!(events.next(), Step::Error(_, 9, _)));
        let post = error(VIP_ERROR_CODE::VIP_ERROR_POST_DESC, 5);
        let _ = events.raise(post);
        events.forget_breaks(std::ptr::without_provenance_mut(5));
        let Step::Error(_, _, ErrorCopy(left)) = events.next() else {
            panic!("another step");
        };
        assert_eq!(left.ErrorCode, VIP_ERROR_CODE::VIP_ERROR_POST_DESC);
        assert_eq!(events.state.lock().errors, 0);
    }

    #[test]
    fn an_open_request_makes_the_thread_watch_and_wakes_it_by_the_nic() {
        let events = Events::default();
        assert!(!events.count_requests(1), "no thread sleeps yet");
        assert!(matches!(events.next(), Step::Watch(None)));
        assert!(!events.ends_watch(None));
        assert!(events.push(vec![call(1)]), "it sleeps on the NIC");
        assert!(events.ends_watch(None));
        assert!(matches!(events.next(), Step::Call(_)));
        assert!(!events.push(Vec::new()), "it is awake");
    }

    /// The wake-up may precede the sleep.
    #[test]
    fn a_notice_ends_a_watch_that_would_last_longer() {
        let events = Events::default();
        let _ = events.count_requests(1);
        let due = Instant::now();
        let _ = events.add_notice(Notice {
            due,
            vi: 7,
            epoch: 3,
            seen: false,
        });
        assert!(events.ends_watch(None));
        assert!(events.ends_watch(Some(due + std::time::Duration::from_nanos(1))));
        assert!(!events.ends_watch(Some(due)));
    }

    #[test]
    fn a_notice_that_is_due_comes_before_calls() {
        let events = Events::default();
        let notice = Notice {
            due: Instant::now(),
            vi: 7,
            epoch: 3,
            seen: false,
        };
        let _ = events.push(vec![call(1)]);
        let _ = events.add_notice(notice);
        let Step::Notices(due) = events.next() else {
            panic!("another step");
        };
        assert_eq!(due, [notice]);
        assert!(matches!(events.next(), Step::Call(_)));
    }

    /// A handler may call `pthread_exit`.
    #[test]
    fn a_thread_that_has_left_is_replaced() {
        let events = Events::default();
        assert_eq!(events.start(|| Ok(())), Ok(()));
        let _ = events.push(vec![call(1), call(2)]);
        assert!(matches!(events.next(), Step::Call(_)));
        assert!(events.on_handler_thread());
        let mut replaced = false;
        events.thread_left(|| {
            replaced = true;
            Ok(())
        });
        assert!(replaced && !events.on_handler_thread());
        // Does not wait for a handler that has ended its thread.
        events.forget_vi(std::ptr::without_provenance_mut(1));
        assert!(matches!(events.next(), Step::Call(_)), "the other call");
    }

    #[test]
    fn after_the_stop_no_thread_starts() {
        let events = Events::default();
        events.stop(|| panic!("nobody sleeps"));
        assert_eq!(events.start(|| Ok(())), Err(Error::InvalidParameter));
        assert!(matches!(events.next(), Step::Stop));
    }
}
