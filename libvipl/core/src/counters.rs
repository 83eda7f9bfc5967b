//! Named counters, shown by `vipinfo`. A counter is never freed, so its address may be kept.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::Mutex;

/// All counters of the process.
#[derive(Default)]
pub(crate) struct Counters(Mutex<Vec<(String, &'static AtomicU64)>>);

impl Counters {
    /// The counter of this name, made if necessary.
    pub(crate) fn get(&self, name: &str) -> &'static AtomicU64 {
        let mut counters = self.0.lock();
        if let Some((_, counter)) = counters.iter().find(|(known, _)| known == name) {
            return counter;
        }
        let counter: &'static AtomicU64 = Box::leak(Box::default());
        counters.push((name.to_owned(), counter));
        counter
    }

    /// Name and value of each.
    pub(crate) fn snapshot(&self) -> Vec<(String, u64)> {
        let counters = self.0.lock();
        counters
            .iter()
            .map(|(name, value)| (name.clone(), value.load(Ordering::Relaxed)))
            .collect()
    }
}
