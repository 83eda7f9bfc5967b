//! When processes on other hosts were last heard.
//!
//! One that has too little processor loses frames, and then some of its connections hear nothing while others
//! do. It is the process that lives or not. Connections tell here every few seconds what they have heard, so
//! this costs nothing where frames come.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Where a process is: the address of its interface, and its endpoint there.
type Place = ([u8; 6], u16);

/// One process.
#[derive(Debug, Default)]
pub struct Life(AtomicU64);

/// Those that this side has connections with.
#[derive(Debug, Default)]
pub struct Lives(Mutex<HashMap<Place, Weak<Life>>>);

impl Life {
    /// A connection has heard the process at this time. Gives when any connection has.
    pub fn heard(&self, heard_ns: u64) -> u64 {
        let before = self.0.fetch_max(heard_ns, Ordering::Relaxed);
        before.max(heard_ns)
    }
}

impl Lives {
    /// The process at this place, for one more connection.
    pub fn of(&self, address: [u8; 6], endpoint: u16) -> Arc<Life> {
        let mut lives = self.0.lock().unwrap_or_else(|broken| broken.into_inner());
        let place = (address, endpoint);
        if let Some(known) = lives.get(&place).and_then(Weak::upgrade) {
            return known;
        }
        lives.retain(|_, known| known.strong_count() > 0);
        let life = Arc::new(Life::default());
        lives.insert(place, Arc::downgrade(&life));
        life
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_connection_hears_others_know() {
        let lives = Lives::default();
        let (one, two) = (lives.of([2; 6], 7), lives.of([2; 6], 7));
        let other = lives.of([2; 6], 8);
        assert_eq!((one.heard(20), two.heard(10)), (20, 20));
        assert_eq!(two.heard(30), 30);
        assert_eq!(other.heard(5), 5, "another process");
        drop((one, two));
        assert_eq!(lives.of([2; 6], 7).heard(1), 1, "nobody knew it any more");
    }
}
