//! When a call may begin: after all calls that had ended when it began in the recorded run, of whatever thread or process.

use std::collections::BTreeMap;
use std::time::Duration;

use vipl_sys::clock::Instant;
use vipl_sys::mutex::{Condvar, Mutex};

/// The calls that have not ended yet, by their ends of then.
pub(super) struct Order {
    open: Mutex<BTreeMap<u64, u32>>,
    changed: Condvar,
    patience: Duration,
}

impl Order {
    /// Of calls with these ends.
    pub(super) fn new(ends: impl Iterator<Item = u64>, patience: Duration) -> Order {
        let mut open = BTreeMap::new();
        for end in ends {
            *open.entry(end).or_insert(0) += 1;
        }
        Order {
            open: Mutex::new(open),
            changed: Condvar::new(),
            patience,
        }
    }

    /// Waits until a call that began then may begin; false: others have not ended in time.
    pub(super) fn wait(&self, began: u64) -> bool {
        let limit = Instant::now() + self.patience;
        let mut open = self.open.lock();
        while open.first_key_value().is_some_and(|(end, _)| *end < began) {
            if Instant::now() >= limit {
                return false;
            }
            self.changed.wait_until(&mut open, limit);
        }
        true
    }

    /// A call that ended then has ended.
    pub(super) fn ended(&self, end: u64) {
        let mut open = self.open.lock();
        if let Some(left) = open.get_mut(&end) {
            *left -= 1;
            if *left == 0 {
                open.remove(&end);
            }
        }
        self.changed.notify_all();
    }
}
