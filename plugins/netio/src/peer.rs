//! Processes on other hosts: when something was last received from each, on any connection with it.
//!
//! A process without enough processor time loses frames, and some of its connections fall silent while others do not. So
//! liveness is decided for the process, not for one connection. Connections report here every few seconds, outside the
//! data path.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The address of a process's host, and its endpoint there.
type Address = (Vec<u8>, u16);

/// One process, which several connections share.
#[derive(Debug, Default)]
pub struct PeerProcess(AtomicU64);

/// The processes that this side has connections with.
#[derive(Debug, Default)]
pub struct PeerProcesses(Mutex<BTreeMap<Address, Weak<PeerProcess>>>);

impl PeerProcess {
    /// Reports when a connection last received from the process. Returns the latest time on any connection.
    pub fn received(&self, received_ns: u64) -> u64 {
        let before = self.0.fetch_max(received_ns, Ordering::Relaxed);
        before.max(received_ns)
    }
}

impl PeerProcesses {
    /// The process at this address, for one more connection.
    pub fn of(&self, address: &[u8], endpoint: u16) -> Arc<PeerProcess> {
        let mut known = self.0.lock().unwrap_or_else(|broken| broken.into_inner());
        let key = (address.to_owned(), endpoint);
        if let Some(process) = known.get(&key).and_then(Weak::upgrade) {
            return process;
        }
        known.retain(|_, process| process.strong_count() > 0);
        let process = Arc::new(PeerProcess::default());
        known.insert(key, Arc::downgrade(&process));
        process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_process_share_what_they_receive() {
        let processes = PeerProcesses::default();
        let (one, two) = (processes.of(&[2; 6], 7), processes.of(&[2; 6], 7));
        let other = processes.of(&[2; 6], 8);
        assert_eq!((one.received(20), two.received(10)), (20, 20));
        assert_eq!(two.received(30), 30);
        assert_eq!(other.received(5), 5, "another process");
        drop((one, two));
        assert_eq!(
            processes.of(&[2; 6], 7).received(1),
            1,
            "forgotten with its last connection"
        );
    }
}
