//! What the layer knows of the program, and what it looks for.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use vipl_plugin_sdk::abi::vipl_event;

use crate::findings::{Finding, Findings};
use crate::objects::Objects;
use crate::place::Place;

mod control;
mod data;
mod unlooked;

pub(crate) use data::does;

/// The layer.
pub(crate) struct Validate {
    findings: Findings,
    objects: Objects,
    /// Whether the thread of `unlooked` runs.
    watcher: Mutex<bool>,
}

impl Validate {
    pub(crate) fn new(findings: Findings, objects: Objects) -> Validate {
        Validate {
            findings,
            objects,
            watcher: Mutex::new(false),
        }
    }

    /// How often each finding came again.
    pub(crate) fn summarise(&self) {
        self.findings.summarise();
    }

    fn report(&self, finding: Finding, place: Place, text: impl FnOnce() -> String) {
        if self.findings.wants(finding) {
            self.findings.report(finding, place, &text());
        }
    }

    /// A handler gets a descriptor. The queues' lock is held for moments only, and never while a function of the library runs.
    pub(crate) fn notified(&self, event: &vipl_event) {
        let at = event.descriptor.expose_provenance() as u64;
        if let Some(vi) = self.objects.vi(event.vi.expose_provenance() as u64)
            && let Ok(mut queues) = vi.queues.lock()
        {
            let _ = queues.iter_mut().find_map(|queue| queue.take(at));
        }
    }

    /// A message found no receive. No call is at fault: the line tells how many receives there were.
    pub(crate) fn ran_dry(&self, event: &vipl_event) {
        let posted = self.objects.vi(event.vi.expose_provenance() as u64);
        let posted = posted.map_or(0, |vi| vi.receives.load(Ordering::Relaxed));
        self.report(Finding::ReceiveQueueEmpty, 0, || {
            format!(
                "a message came to VI {:?} and found no receive; {posted} receives were posted before: post more of them, earlier",
                event.vi
            )
        });
    }
}
