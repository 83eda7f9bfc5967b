//! The handler thread of a NIC handle: notify handlers and asynchronous errors (spec §8.2, §11).
//!
//! One thread per NIC handle calls the program's handlers, one at a time, in order. It starts when it is
//! first needed. While notify requests are open it also watches the NIC, since the program may well make
//! no call at all; otherwise it sleeps on a condition variable and costs nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex, MutexGuard};
use vipl_abi::*;

use crate::cq::CqNotifyHandler;
use crate::error::Error;
use crate::nic::wait;
use crate::nic::{self, Nic};
use crate::vi;
use crate::vi::Vi;
use crate::vi::queue::NotifyHandler;
use crate::vi::state::ERROR;

/// Undelivered errors that are kept (spec §11).
const ERRORS_MAX: usize = 1024;
/// Lines per second of the default error handler.
const LOG_LINES_PER_SECOND: u32 = 10;

type ErrorFunction = unsafe extern "C" fn(VIP_PVOID, *mut VIP_ERROR_DESCRIPTOR);

/// One call of a handler. Pointers are kept as addresses: they belong to the program.
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
    Error(ErrorCopy),
}

/// An error descriptor on its way.
pub(crate) struct ErrorCopy(VIP_ERROR_DESCRIPTOR);
// SAFETY: the pointers in it are handles and the program's own.
unsafe impl Send for ErrorCopy {}

/// What a running handler is about, for those who must wait for its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Vi(usize),
    Cq(usize),
    Error,
}

/// CONN_LOST after an orderly disconnect, for those who do not disconnect soon (spec §17).
struct Notice {
    due: Instant,
    vi: usize,
    epoch: u64,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    errors: usize,
    dropped: u64,
    notices: Vec<Notice>,
    handler: Option<(ErrorFunction, usize)>,
    started: bool,
    thread: Option<ThreadId>,
    running: Option<Subject>,
    watching: i32,
    /// The thread sleeps with the plug-in's help and must be woken by it.
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
    /// Makes sure that the thread runs.
    pub(crate) fn start(&self, nic: &Arc<Nic>) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.started {
            return Ok(());
        }
        // The NIC has been closed since the caller found it: no thread outlives it.
        if state.stop {
            return Err(Error::InvalidParameter);
        }
        let nic = nic.clone();
        vipl_sys::thread::spawn_with_signals_blocked("vipl-handler", move || run(&nic)).map_err(
            |error| {
                log::error!(target: "core", "cannot start the handler thread: {error}");
                Error::Resource
            },
        )?;
        state.started = true;
        Ok(())
    }

    /// Adds calls of handlers.
    pub(crate) fn push(&self, jobs: Vec<Job>, nic: &Nic) {
        let mut state = self.state.lock();
        state.jobs.extend(jobs);
        self.wake(&state, nic);
    }

    fn wake(&self, state: &State, nic: &Nic) {
        self.changed.notify_all();
        if state.on_bell {
            nic.wake();
        }
    }

    /// Counts open notify requests.
    pub(crate) fn watch(&self, change: i32, nic: &Nic) {
        if change == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.watching += change;
        if change > 0 {
            self.wake(&state, nic);
        }
    }

    pub(crate) fn on_handler_thread(&self) -> bool {
        self.state.lock().thread == Some(std::thread::current().id())
    }

    /// Raises an asynchronous error.
    pub(crate) fn raise(&self, error: VIP_ERROR_DESCRIPTOR, nic: &Nic) {
        let mut state = self.state.lock();
        if state.handler.is_none() {
            log_error(&mut state, &error);
            return;
        }
        if state.errors >= ERRORS_MAX {
            state.dropped += 1;
            if state.dropped == 1 {
                log::warn!(target: "error", "more than {ERRORS_MAX} undelivered errors, dropping new ones");
            }
            return;
        }
        state.errors += 1;
        state.jobs.push_back(Job::Error(ErrorCopy(error)));
        self.wake(&state, nic);
    }

    fn notice(&self, notice: Notice, nic: &Arc<Nic>) {
        let _ = self.start(nic);
        let mut state = self.state.lock();
        state.notices.push(notice);
        self.wake(&state, nic);
    }

    /// Errors about the connection that a VI had are raised no more (spec §9.6).
    pub(crate) fn forget_breaks(&self, vi: VIP_VI_HANDLE) {
        use VIP_ERROR_CODE::{VIP_ERROR_CATASTROPHIC, VIP_ERROR_POST_DESC, VIP_ERROR_VI_OVERRUN};
        let mut state = self.state.lock();
        let before = state.jobs.len();
        state.jobs.retain(|job| match job {
            Job::Error(ErrorCopy(error)) if error.ViHandle == vi => matches!(
                error.ErrorCode,
                VIP_ERROR_POST_DESC | VIP_ERROR_VI_OVERRUN | VIP_ERROR_CATASTROPHIC
            ),
            _ => true,
        });
        state.errors -= before - state.jobs.len();
    }

    /// Cancels what was to be called for a VI, and waits for a call that is under way.
    pub(crate) fn forget_vi(&self, vi: VIP_VI_HANDLE) {
        let vi = vi.addr();
        self.forget(
            Subject::Vi(vi),
            |job| matches!(job, Job::Descriptor { vi: of, .. } if *of == vi),
        );
    }

    /// The same for a CQ.
    pub(crate) fn forget_cq(&self, cq: VIP_CQ_HANDLE) {
        let cq = cq.addr();
        self.forget(
            Subject::Cq(cq),
            |job| matches!(job, Job::Entry { cq: of, .. } if *of == cq),
        );
    }

    fn forget(&self, subject: Subject, concerned: impl Fn(&Job) -> bool) {
        let mut state = self.state.lock();
        if !state.started {
            return;
        }
        state.jobs.retain(|job| !concerned(job));
        self.wait_out(&mut state, subject);
    }

    /// Waits until no handler for `subject` runs, unless the caller is inside it.
    fn wait_out(&self, state: &mut MutexGuard<'_, State>, subject: Subject) {
        while state.running == Some(subject) && state.thread != Some(std::thread::current().id()) {
            self.changed.wait(state);
        }
    }

    /// Ends the thread; no handler runs after the return.
    pub(crate) fn stop(&self, nic: &Nic) {
        let mut state = self.state.lock();
        state.stop = true;
        self.wake(&state, nic);
        while state.started && !state.stopped {
            // The bell may have rung before the thread listened.
            self.changed.wait_for(&mut state, Duration::from_millis(10));
            if state.on_bell {
                nic.wake();
            }
        }
    }
}

/// VipErrorCallback.
pub fn set_error_handler(
    nic: VIP_NIC_HANDLE,
    context: VIP_PVOID,
    handler: Option<ErrorFunction>,
) -> Result<(), Error> {
    let nic = nic::resolve(nic)?;
    if handler.is_some() {
        nic.events.start(&nic)?;
    }
    let mut state = nic.events.state.lock();
    state.handler = handler.map(|handler| (handler, context.addr()));
    nic.events.wait_out(&mut state, Subject::Error);
    Ok(())
}

/// The default handler: one line, not too many of them.
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
            "{:?} vi {:?} nic {:?}", error.ErrorCode, error.ViHandle, error.NicHandle
        );
    }
}

/// The handler thread.
fn run(nic: &Arc<Nic>) {
    let events = &nic.events;
    let mut state = events.state.lock();
    state.thread = Some(std::thread::current().id());
    while !state.stop {
        raise_due_notices(&mut state, nic);
        if let Some(job) = state.jobs.pop_front() {
            call(&mut state, events, nic, job);
            continue;
        }
        let due = state.notices.iter().map(|notice| notice.due).min();
        if state.watching > 0 {
            state.on_bell = true;
            MutexGuard::unlocked(&mut state, || watch_nic(nic, due));
            state.on_bell = false;
        } else if let Some(due) = due {
            events.changed.wait_until(&mut state, due);
        } else {
            events.changed.wait(&mut state);
        }
    }
    state.stopped = true;
    events.changed.notify_all();
}

/// Sleeps until something arrives on the NIC, and lets the VIs take it.
fn watch_nic(nic: &Arc<Nic>, due: Option<Instant>) {
    wait::step(nic, due, &mut || {
        nic.progress();
        let state = nic.events.state.lock();
        (state.stop || state.watching <= 0 || !state.jobs.is_empty()).then_some(())
    });
}

/// Calls one handler, unlocked.
fn call(state: &mut MutexGuard<'_, State>, events: &Events, nic: &Arc<Nic>, job: Job) {
    let pointer = |address: usize| -> VIP_PVOID { std::ptr::with_exposed_provenance_mut(address) };
    match job {
        Job::Descriptor {
            handler,
            context,
            vi,
            descriptor,
        } => {
            state.running = Some(Subject::Vi(vi));
            let descriptor = pointer(descriptor).cast();
            // SAFETY: the program's handler with what it asked for.
            MutexGuard::unlocked(state, || unsafe {
                handler(pointer(context), nic.handle, pointer(vi), descriptor);
            });
        }
        Job::Entry {
            handler,
            context,
            cq,
            vi,
            recv,
        } => {
            state.running = Some(Subject::Cq(cq));
            // SAFETY: as above.
            MutexGuard::unlocked(state, || unsafe {
                handler(
                    pointer(context),
                    nic.handle,
                    pointer(vi),
                    VIP_BOOLEAN::from(recv),
                );
            });
        }
        Job::Error(ErrorCopy(mut error)) => {
            state.errors -= 1;
            let Some((handler, context)) = state.handler else {
                log_error(state, &error);
                return;
            };
            state.running = Some(Subject::Error);
            // SAFETY: as above; the descriptor lives during the call.
            MutexGuard::unlocked(state, || unsafe {
                handler(pointer(context), &raw mut error);
            });
        }
    }
    state.running = None;
    events.changed.notify_all();
}

/// Raises CONN_LOST for VIs that are still in Error.
fn raise_due_notices(state: &mut MutexGuard<'_, State>, nic: &Arc<Nic>) {
    let now = Instant::now();
    let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut state.notices)
        .into_iter()
        .partition(|notice| notice.due <= now);
    state.notices = later;
    if due.is_empty() {
        return;
    }
    MutexGuard::unlocked(state, || {
        for notice in due {
            let handle = std::ptr::with_exposed_provenance_mut(notice.vi);
            let Ok(mut vi) = vi::lock(handle) else {
                continue;
            };
            if vi.abi.state == ERROR && vi.epoch == notice.epoch && Arc::ptr_eq(&vi.nic, nic) {
                vi.raise(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST, 0, std::ptr::null_mut());
            }
        }
    });
}

impl Vi {
    /// Raises an asynchronous error about this VI (table of spec §11).
    pub(crate) fn raise(
        &mut self,
        code: VIP_ERROR_CODE,
        opcode: u32,
        descriptor: *mut VIP_DESCRIPTOR,
    ) {
        let resource = match code {
            VIP_ERROR_CODE::VIP_ERROR_POST_DESC | VIP_ERROR_CODE::VIP_ERROR_COMP_PROT => {
                VIP_RESOURCE_CODE::VIP_RESOURCE_DESCRIPTOR
            }
            VIP_ERROR_CODE::VIP_ERROR_CATASTROPHIC => VIP_RESOURCE_CODE::VIP_RESOURCE_NIC,
            _ => VIP_RESOURCE_CODE::VIP_RESOURCE_VI,
        };
        let error = VIP_ERROR_DESCRIPTOR {
            NicHandle: self.nic.handle,
            ViHandle: self.handle,
            CQHandle: std::ptr::null_mut(),
            DescriptorPtr: descriptor,
            OpCode: opcode as VIP_ULONG,
            ResourceCode: resource,
            ErrorCode: code,
        };
        self.nic.events.raise(error, &self.nic);
    }

    /// Tells the program why its connection broke.
    pub(crate) fn report_break(
        &mut self,
        cause: i32,
        opcode: u32,
        descriptor: *mut VIP_DESCRIPTOR,
    ) {
        if cause == vipl_plugin_abi::VIPL_CAUSE_TOLD {
            return;
        }
        if cause == vipl_plugin_abi::VIPL_CAUSE_DISCONNECTED {
            let after = self.nic.process.settings.disconnect_notice_ms();
            if after > 0 {
                let due = Instant::now() + Duration::from_millis(after);
                let notice = Notice {
                    due,
                    vi: self.handle.expose_provenance(),
                    epoch: self.epoch,
                };
                self.nic.events.notice(notice, &self.nic);
                return;
            }
        }
        let code = error_code(cause).unwrap_or(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST);
        self.raise(code, opcode, descriptor);
    }
}

/// The error code with this number.
pub(crate) fn error_code(number: i32) -> Option<VIP_ERROR_CODE> {
    use VIP_ERROR_CODE::*;
    const CODES: [VIP_ERROR_CODE; 11] = [
        VIP_ERROR_POST_DESC,
        VIP_ERROR_CONN_LOST,
        VIP_ERROR_RECVQ_EMPTY,
        VIP_ERROR_VI_OVERRUN,
        VIP_ERROR_RDMAW_PROT,
        VIP_ERROR_RDMAW_DATA,
        VIP_ERROR_RDMAW_ABORT,
        VIP_ERROR_RDMAR_PROT,
        VIP_ERROR_COMP_PROT,
        VIP_ERROR_RDMA_TRANSPORT,
        VIP_ERROR_CATASTROPHIC,
    ];
    CODES.get(usize::try_from(number).ok()?).copied()
}
