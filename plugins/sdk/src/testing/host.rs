//! The functions that a plug-in calls. What it reports is kept for the thread on which it does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use vipl_abi::*;
use vipl_plugin_abi::*;
use vipl_rules::Queue;

use super::CONNECTED;

/// What a plug-in has reported to its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Completions on a queue of the VI with this number that asks for them.
    Completed(u32, Queue),
    /// An asynchronous error of the VI with this number.
    Raised(u32, c_int),
    /// The connection of the VI with this number has ended for this cause.
    Failed(u32, c_int),
    /// The device has failed for good.
    Catastrophe,
    /// A line for the log, with its `VIPL_LOG_*`.
    Log(c_int, String),
}

thread_local! {
    static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
    static SETTINGS: RefCell<BTreeMap<CString, &'static CStr>> = const { RefCell::new(BTreeMap::new()) };
    static NOW: Cell<u64> = const { Cell::new(1_000_000_000) };
}
static COUNTERS: Mutex<BTreeMap<String, &'static AtomicU64>> = Mutex::new(BTreeMap::new());

/// What plug-ins have reported on this thread since the last call, oldest first.
pub fn events() -> Vec<Event> {
    EVENTS.take()
}

/// Sets a setting for NICs that this thread opens.
pub fn set(key: &CStr, value: &str) {
    let value = CString::new(value).expect("a text without NUL");
    // Plug-ins may keep the text.
    SETTINGS.with_borrow_mut(|settings| {
        settings.insert(key.to_owned(), Box::leak(value.into_boxed_c_str()))
    });
}

/// Lets time pass on the clock of this thread. It stands still otherwise.
pub fn advance(nanoseconds: u64) {
    NOW.set(NOW.get() + nanoseconds);
}

/// Value of the counter `plugin.name`; 0 if the plug-in has none of that name.
pub fn counter_value(name: &str) -> u64 {
    let counters = COUNTERS.lock().expect("no panic");
    counters
        .get(name)
        .map_or(0, |counter| counter.load(Ordering::Relaxed))
}

/// The table for `init`.
pub(super) fn table() -> &'static vipl_host {
    static HOST: vipl_host = crate::host_table! {
        log,
        setting,
        counter,
        completed,
        raise,
        fail,
        poll,
        now,
        link,
        catastrophe,
        device,
        link_ask,
        memory,
        refused,
    };
    &HOST
}

/// A NUL-terminated text in an array.
pub(super) fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars
        .iter()
        .map(|c| *c as u8)
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn report(event: Event) {
    EVENTS.with_borrow_mut(|events| events.push(event));
}

unsafe extern "C" fn log(level: c_int, text: *const c_char) {
    // SAFETY: a plug-in's text.
    let text = unsafe { CStr::from_ptr(text) };
    report(Event::Log(level, text.to_string_lossy().into_owned()));
}

unsafe extern "C" fn setting(_: *const c_char, key: *const c_char) -> *const c_char {
    // SAFETY: a plug-in's text.
    let key = unsafe { CStr::from_ptr(key) };
    SETTINGS.with_borrow(|settings| {
        settings
            .get(key)
            .map_or(std::ptr::null(), |value| value.as_ptr())
    })
}

unsafe extern "C" fn counter(plugin: *const c_char, name: *const c_char) -> *mut u64 {
    // SAFETY: a plug-in's texts.
    let name = unsafe { [CStr::from_ptr(plugin), CStr::from_ptr(name)] }
        .map(CStr::to_string_lossy)
        .join(".");
    let mut counters = COUNTERS.lock().expect("no panic");
    counters
        .entry(name)
        .or_insert_with(|| Box::leak(Box::default()))
        .as_ptr()
}

unsafe extern "C" fn completed(vi: *mut vipl_vi, queue: *mut vipl_queue) {
    // SAFETY: within an operation of the VI; one of its queues.
    let (index, which) = unsafe { ((*vi).index, (*queue).which) };
    let queue = if which == 0 { Queue::Send } else { Queue::Recv };
    report(Event::Completed(index, queue));
}

unsafe extern "C" fn raise(vi: *mut vipl_vi, code: c_int, _: u32, _: *mut VIP_DESCRIPTOR) {
    // SAFETY: within an operation of the VI.
    report(Event::Raised(unsafe { (*vi).index }, code));
}

/// The VI goes to Error, and what is posted is flushed.
unsafe extern "C" fn fail(vi: *mut vipl_vi, cause: c_int, _: u32, _: *mut VIP_DESCRIPTOR) {
    // SAFETY: within an operation of the VI, whose rings and descriptors are the test's.
    unsafe {
        if (*vi).state != CONNECTED {
            return;
        }
        (*vi).state = VIP_VI_STATE::VIP_STATE_ERROR as u32;
        report(Event::Failed((*vi).index, cause));
        flush(&raw mut (*vi).send);
        flush(&raw mut (*vi).recv);
    }
}

/// Completes what is posted as flushed.
///
/// # Safety
/// A queue of a VI of the test, in no operation or inside `fail`.
pub(super) unsafe fn flush(queue: *mut vipl_queue) {
    // SAFETY: as asked of the caller; entries are inside the ring.
    unsafe {
        while (*queue).completed != (*queue).posted {
            let entry = (*queue)
                .entries
                .add(((*queue).completed & (*queue).mask) as usize);
            (*entry).status = VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR;
            // A plug-in's test may have unmapped it.
            let _ = vipl_guard::store_status((*entry).descriptor.cast(), (*entry).status);
            (*queue).completed = (*queue).completed.wrapping_add(1);
        }
    }
}

/// A plug-in's own thread finds that the test does everything.
unsafe extern "C" fn poll(_: *const vipl_nic, _: u32) -> c_int {
    VIPL_POLL_NOTHING
}

unsafe extern "C" fn now() -> u64 {
    NOW.get()
}

unsafe extern "C" fn catastrophe(_: *const vipl_nic) {
    report(Event::Catastrophe);
}

// There is no agent.

unsafe extern "C" fn link(_: *const c_char, _: *mut vipl_link) -> c_int {
    VIPL_E_RESOURCE
}

unsafe extern "C" fn link_ask(_: *const c_char) -> c_int {
    VIPL_E_RESOURCE
}

unsafe extern "C" fn refused(_: *mut vipl_vi, _: bool, _: u32, _: u32, _: u64, _: u64) {}

unsafe extern "C" fn memory(_base: u64, _bytes: u64, _out: *mut vipl_memory) -> c_int {
    VIPL_E_INVALID
}

unsafe extern "C" fn device(_: *const c_char, _: *mut c_int, _: *mut u32) -> c_int {
    VIPL_E_RESOURCE
}
