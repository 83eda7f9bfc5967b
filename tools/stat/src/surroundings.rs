//! What the library knows beside the processes: its agent and its devices.
//!
//! A stopped agent lets its clients wait for half a minute, and a look at a host where something hangs is wanted just then. So a
//! thread asks, and what it has not learnt in time is left to a later look.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use vipl_sys::clock::{Instant, sleep};
use vipl_tools::host;

use crate::links;
use crate::model::Model;

/// How long a look waits for the agent.
const PATIENCE: Duration = Duration::from_secs(2);

/// The latest answer, and the thread that asks for the next one.
#[derive(Clone, Default)]
pub(crate) struct Surroundings(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    agent: Option<Value>,
    devices: Option<Value>,
    is_asking: bool,
}

impl Surroundings {
    /// Adds what is known to a model; false if the agent has not answered in time. Only the look that asks waits.
    pub(crate) fn add(&self, model: &mut Model) -> bool {
        let patience = if self.ask() { PATIENCE } else { Duration::ZERO };
        let end = Instant::now() + patience;
        loop {
            let known = self.known();
            if !known.is_asking || Instant::now() >= end {
                model.agent.clone_from(&known.agent);
                model.devices.clone_from(&known.devices);
                return !known.is_asking;
            }
            drop(known);
            sleep(Duration::from_millis(2));
        }
    }

    /// Asks, unless a thread is asking already: false.
    fn ask(&self) -> bool {
        let Ok(library) = host::library() else {
            return false;
        };
        if std::mem::replace(&mut self.known().is_asking, true) {
            return false;
        }
        let asked = self.clone();
        let thread = std::thread::Builder::new().spawn(move || {
            let agent = host::describe(library, "budgets");
            let mut devices = host::describe(library, "devices");
            if let Some(devices) = &mut devices {
                links::add(devices, Path::new("/sys/class/net"));
            }
            *asked.known() = Known {
                agent,
                devices,
                is_asking: false,
            };
        });
        if thread.is_err() {
            self.known().is_asking = false;
        }
        true
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_already_is_not_waited_for() {
        let surroundings = Surroundings::default();
        surroundings.known().is_asking = true;
        let begun = Instant::now();
        for _ in 0..3 {
            assert!(!surroundings.add(&mut Model::default()));
        }
        assert!(begun.elapsed() < PATIENCE);
    }
}
