//! What the library knows once per process: settings, plug-ins, the agent, free slots, counters.
//!
//! The pointer to it is in a page that a fork wipes. So a child finds nothing and starts anew, without the locks,
//! threads and sockets of its parent (spec §10.4).

use std::collections::BTreeSet;
use std::ffi::{CString, c_char};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::sync::{Mutex, OnceLock};

use crate::agent::Agents;
use crate::clock;
use crate::counters::Counters;
use crate::logger;
use crate::object::table::Free;
use crate::plugin::loader::Plugins;
use crate::settings::Settings;

/// One process's state; never freed.
pub(crate) struct Process {
    pub(crate) settings: Arc<Settings>,
    pub(crate) plugins: Mutex<Plugins>,
    pub(crate) agents: Agents,
    pub(crate) counters: Counters,
    pub(crate) nics: Free,
    pub(crate) vis: Free,
    pub(crate) cqs: Free,
    pub(crate) connections: Free,
    /// A VipOpenNic has begun to register the process for memory barriers.
    pub(crate) registering: AtomicBool,
    /// Values of settings that plug-ins have asked for, each once: they may use them for ever.
    kept: Mutex<BTreeSet<CString>>,
}

impl Process {
    /// Keeps a text as long as the process lives.
    pub(crate) fn keep(&self, text: CString) -> *const c_char {
        let mut kept = self.kept.lock();
        match kept.get(&text) {
            Some(known) => known.as_ptr(),
            None => {
                // The bytes stay where they are when the text moves into the set.
                let at = text.as_ptr();
                kept.insert(text);
                at
            }
        }
    }
}

type Root = AtomicPtr<Process>;

fn root() -> &'static Root {
    static ROOT: OnceLock<&'static Root> = OnceLock::new();
    ROOT.get_or_init(|| {
        // Without it a child would use the locks and sockets of its parent: better no library.
        let page = vipl_sys::fork::map_wiped(4096)
            .unwrap_or_else(|error| panic!("cannot map a page that a fork wipes: {error}"));
        // SAFETY: a fresh, zeroed, private page; a null pointer is a valid Root.
        unsafe { &*page.cast::<Root>() }
    })
}

/// The same pointer for leak checkers, which do not scan the page.
static REACHABLE: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// The process's state, made at the first call.
pub(crate) fn get() -> &'static Process {
    let root = root();
    let current = root.load(Ordering::Acquire);
    if !current.is_null() {
        // SAFETY: set once from a leaked box.
        return unsafe { &*current };
    }
    let seed = std::process::id().wrapping_mul(0x9E37_79B9) ^ clock::now_ns() as u32;
    let settings = Arc::new(Settings::load());
    logger::install(&settings);
    settings.report();
    let made = Box::into_raw(Box::new(Process {
        agents: Agents::new(settings.clone()),
        settings,
        plugins: Mutex::default(),
        counters: Counters::default(),
        nics: Free::new(seed),
        vis: Free::new(seed),
        cqs: Free::new(seed),
        connections: Free::new(seed),
        registering: AtomicBool::new(false),
        kept: Mutex::default(),
    }));
    let won = root.compare_exchange(
        std::ptr::null_mut(),
        made,
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    match won {
        Ok(_) => {
            REACHABLE.store(made, Ordering::Relaxed);
            // SAFETY: leaked on purpose.
            unsafe { &*made }
        }
        Err(other) => {
            // SAFETY: ours was never shared; the other one is leaked.
            unsafe {
                drop(Box::from_raw(made));
                &*other
            }
        }
    }
}
