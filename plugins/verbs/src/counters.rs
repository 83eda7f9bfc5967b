//! What the plug-in counts in this process, for `vipl_describe`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use vipl_plugin_sdk::Host;

use crate::NAME;

pub(crate) struct Counters {
    bytes_copied: &'static AtomicU64,
    wake_ups: &'static AtomicU64,
}

/// The counters of this process.
pub(crate) fn counters() -> &'static Counters {
    static COUNTERS: OnceLock<Counters> = OnceLock::new();
    COUNTERS.get_or_init(|| {
        let counter = |name| Host::get().counter(NAME, name);
        Counters {
            bytes_copied: counter(c"bytes_copied"),
            wake_ups: counter(c"wake_ups"),
        }
    })
}

impl Counters {
    /// Bytes were copied between the application's memory and the plug-in's.
    pub(crate) fn copied(&self, bytes: usize) {
        self.bytes_copied.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A thread of the plug-in has been woken.
    pub(crate) fn woken(&self) {
        self.wake_ups.fetch_add(1, Ordering::Relaxed);
    }
}
