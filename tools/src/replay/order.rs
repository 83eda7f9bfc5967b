//! When a call may begin: after all calls that had ended when it began in the recorded run, of whatever thread or process.

use std::collections::BTreeMap;
use std::time::Duration;

use vipl_sys::clock::Instant;
use vipl_sys::mutex::{Condvar, Mutex};

/// The calls that have not ended yet, and for how long others wait for them.
pub(super) struct Order {
    open: Mutex<Open>,
    changed: Condvar,
    patience: Duration,
}

struct Open {
    /// By their ends of then.
    ends: BTreeMap<u64, u32>,
    /// When the last one has ended.
    last: Instant,
}

impl Order {
    /// Of calls with these ends.
    pub(super) fn new(ends: impl Iterator<Item = u64>, patience: Duration) -> Order {
        let mut open = BTreeMap::new();
        for end in ends {
            *open.entry(end).or_insert(0) += 1;
        }
        Order {
            open: Mutex::new(Open {
                ends: open,
                last: Instant::now(),
            }),
            changed: Condvar::new(),
            patience,
        }
    }

    /// Waits until a call that began then may begin; false: others have not ended in time. As long as calls end, there is time:
    /// a thread may wait for all the work of another one.
    pub(super) fn wait(&self, began: u64) -> bool {
        let start = Instant::now();
        let mut open = self.open.lock();
        while open
            .ends
            .first_key_value()
            .is_some_and(|(end, _)| *end < began)
        {
            let limit = open.last.max(start) + self.patience;
            if Instant::now() >= limit {
                return false;
            }
            self.changed.wait_until(&mut open, limit);
        }
        true
    }

    /// Ends all waiting: no other call is made.
    pub(super) fn stop(&self) {
        self.open.lock().ends.clear();
        self.changed.notify_all();
    }

    /// A call that ended then has ended.
    pub(super) fn ended(&self, end: u64) {
        let mut open = self.open.lock();
        open.last = Instant::now();
        if let Some(left) = open.ends.get_mut(&end) {
            *left -= 1;
            if *left == 0 {
                open.ends.remove(&end);
            }
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_counted_from_the_last_call_that_ended() {
        let order = Order::new([5, 7].into_iter(), Duration::ZERO);
        assert!(order.wait(5) && !order.wait(6), "without patience");
        let last = Instant::now() + Duration::from_millis(20);
        order.open.lock().last = last;
        assert!(!order.wait(6) && Instant::now() >= last);
        order.ended(5);
        assert!(order.open.lock().last >= last && order.wait(6));
        order.stop();
        assert!(order.wait(9));
    }
}
