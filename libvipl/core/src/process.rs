//! The state of the library, one per process: settings, plug-ins, the agent, free slots, counters.
//!
//! The pointer to it is in a page that a fork wipes. Therefore a child finds no state and makes its own,
//! without the locks, threads and sockets of its parent (spec §10.4).

use std::collections::BTreeSet;
use std::ffi::{CString, c_char};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use vipl_sys::fork::{self, Page};

use crate::sync::{Mutex, OnceLock};

use crate::agent::Agents;
use crate::clock;
use crate::logger;
use crate::memory::allocated::Allocated;
use crate::object::table::Free;
use crate::pages::Pages;
use crate::plugin::layers::Layers;
use crate::plugin::loader::Plugins;
use crate::settings::Settings;

/// One process's state; never freed.
pub(crate) struct Process {
    pub(crate) settings: Arc<Settings>,
    pub(crate) plugins: Mutex<Plugins>,
    /// The layers, once they have been loaded.
    pub(crate) layers: OnceLock<Arc<Layers>>,
    pub(crate) agents: Agents,
    pages: OnceLock<Pages>,
    pub(crate) nics: Free,
    pub(crate) vis: Free,
    pub(crate) cqs: Free,
    pub(crate) connections: Free,
    /// Memory of `vipl_alloc`.
    pub(crate) allocated: Allocated,
    /// Open NICs, to be notified of the end of the process.
    pub(crate) open: Mutex<Vec<Weak<dyn Ends>>>,
    /// Whether a VipOpenNic has begun to register the process for memory barriers.
    pub(crate) registering: AtomicBool,
    /// Values of settings requested by plug-ins, which may use them for ever; each is stored once.
    kept: Mutex<BTreeSet<CString>>,
}

/// An object to notify when the process ends.
pub(crate) trait Ends: Send + Sync {
    /// Called within `exit`. Other threads may still run, or have stopped anywhere, so it must not wait for a
    /// lock.
    fn process_ends(&self);
}

impl Process {
    /// What the process publishes, from the first NIC on.
    pub(crate) fn pages(&self) -> &Pages {
        self.pages.get_or_init(|| Pages::new(&self.settings))
    }

    /// The word of a named counter, which is never freed, so its address may be kept.
    pub(crate) fn counter(&self, name: &str) -> &'static AtomicU64 {
        let counter = self.pages().counter(name);
        counter.unwrap_or_else(|| Box::leak(Box::default()))
    }

    /// The same, if it publishes anything yet.
    pub(crate) fn pages_so_far(&self) -> Option<&Pages> {
        self.pages.get()
    }

    /// Registers an object to be notified of the end of the process, while it lives.
    pub(crate) fn notify_of_end(&self, what: Weak<dyn Ends>) {
        let mut open = self.open.lock();
        open.retain(|known| known.strong_count() > 0);
        open.push(what);
        drop(open);
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: the library is never unloaded, so the function stays.
        ONCE.call_once(|| unsafe {
            libc::atexit(process_ends);
        });
    }

    /// Keeps a text for the life of the process.
    pub(crate) fn keep(&self, text: CString) -> *const c_char {
        let mut kept = self.kept.lock();
        match kept.get(&text) {
            Some(known) => known.as_ptr(),
            None => {
                // Moving the text into the set does not move its bytes.
                let at = text.as_ptr();
                kept.insert(text);
                at
            }
        }
    }
}

extern "C" fn process_ends() {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: null, or set once, from a leaked box.
        let process = unsafe { root().0.load(Ordering::Acquire).as_ref() };
        let open = process.and_then(|process| process.open.try_lock());
        for what in open.iter().flat_map(|open| open.iter()) {
            if let Some(what) = what.upgrade() {
                what.process_ends();
            }
        }
        if let Some(pages) = process.and_then(Process::pages_so_far) {
            pages.end();
        }
    }));
}

type Root = AtomicPtr<Process>;

static PAGE: Page<Root> = Page {
    content: Root::new(std::ptr::null_mut()),
};

/// The page with the pointer; and the error if a fork does not wipe it.
fn root() -> (&'static Root, Option<&'static io::Error>) {
    static WIPED: OnceLock<io::Result<()>> = OnceLock::new();
    let wiped = WIPED.get_or_init(|| {
        let page = (&raw const PAGE).cast_mut().cast();
        // SAFETY: pages of a static that holds only this pointer, and NULL is the initial state of a child.
        unsafe { fork::wipe(page, size_of_val(&PAGE)) }
    });
    (&PAGE.content, wiped.as_ref().err())
}

/// The same pointer for leak checkers, which do not scan the page.
static REACHABLE: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// The process's state, made at the first call.
#[inline]
pub(crate) fn get() -> &'static Process {
    // SAFETY: NULL, or set once from a leaked box.
    let current = unsafe { PAGE.content.load(Ordering::Acquire).as_ref() };
    current.unwrap_or_else(make)
}

#[cold]
fn make() -> &'static Process {
    let (root, not_wiped) = root();
    let seed = std::process::id().wrapping_mul(0x9E37_79B9) ^ clock::now_ns() as u32;
    let settings = Arc::new(Settings::load());
    logger::install(&settings);
    #[cfg(not(test))]
    logger::redirect_panics();
    settings.report();
    if let Some(error) = not_wiped {
        log::error!(
            target: "core",
            "a forked child would take over the NICs of this process: {error}; let it call no function of VIPL"
        );
    }
    let made = Box::into_raw(Box::new(Process {
        agents: Agents::new(settings.clone()),
        settings,
        plugins: Mutex::default(),
        layers: OnceLock::new(),
        pages: OnceLock::new(),
        nics: Free::new(seed),
        vis: Free::new(seed),
        cqs: Free::new(seed),
        connections: Free::new(seed),
        allocated: Allocated::default(),
        open: Mutex::default(),
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
            // SAFETY: deliberately leaked.
            unsafe { &*made }
        }
        Err(other) => {
            // SAFETY: this one was never shared, and the other is leaked.
            unsafe {
                drop(Box::from_raw(made));
                &*other
            }
        }
    }
}
