//! One recorded process, made again in this one: its memory, and which handle of now stands for which of then.

use std::collections::HashMap;

use vipl_client::raw::abi::*;
use vipl_sys::mutex::Mutex;

use super::file::Recording;
use super::memory::Memory;

/// A NIC of then: its handle of now, and its own host address.
#[derive(Clone, Default)]
pub(super) struct Nic {
    pub(super) handle: usize,
    pub(super) host: Vec<u8>,
}

/// What changes while calls are made.
#[derive(Default)]
struct Handles {
    nics: HashMap<u64, Nic>,
    /// VIs, completion queues, tags and connection requests.
    others: HashMap<u64, usize>,
    /// NIC of each VI.
    of_vi: HashMap<u64, u64>,
    /// By NIC and handle of then.
    regions: HashMap<(u64, u64), VIP_MEM_HANDLE>,
    /// Connection of each VI: its number, and the side.
    connections: HashMap<u64, (u64, u64)>,
}

/// The process.
pub(super) struct Process {
    pub(super) recording: Recording,
    pub(super) memory: Memory,
    handles: Mutex<Handles>,
}

impl Process {
    pub(super) fn new(recording: Recording, memory: Memory) -> Process {
        Process {
            recording,
            memory,
            handles: Mutex::new(Handles::default()),
        }
    }

    pub(super) fn add_nic(&self, then: u64, nic: Nic) {
        self.handles.lock().nics.insert(then, nic);
    }

    pub(super) fn nic(&self, then: u64) -> Nic {
        self.handles
            .lock()
            .nics
            .get(&then)
            .cloned()
            .unwrap_or_default()
    }

    /// The NIC of a VI, by its handle of then, and as it is now.
    pub(super) fn nic_of(&self, vi: u64) -> (u64, Nic) {
        let handles = self.handles.lock();
        let nic = handles.of_vi.get(&vi).copied().unwrap_or(0);
        (nic, handles.nics.get(&nic).cloned().unwrap_or_default())
    }

    pub(super) fn add(&self, then: u64, now: VIP_PVOID) {
        self.handles
            .lock()
            .others
            .insert(then, now.expose_provenance());
    }

    pub(super) fn add_vi(&self, then: u64, now: VIP_PVOID, nic: u64) {
        self.add(then, now);
        self.handles.lock().of_vi.insert(then, nic);
    }

    /// The handle of now; NULL for one that was never made, and for NULL.
    pub(super) fn handle(&self, then: u64) -> VIP_PVOID {
        let found = self.handles.lock().others.get(&then).copied();
        std::ptr::with_exposed_provenance_mut(found.unwrap_or(0))
    }

    pub(super) fn add_region(&self, nic: u64, then: u64, now: VIP_MEM_HANDLE) {
        self.handles.lock().regions.insert((nic, then), now);
    }

    /// The memory handle of now; one that was never made stays as it is.
    pub(super) fn region(&self, nic: u64, then: u64) -> VIP_MEM_HANDLE {
        let found = self.handles.lock().regions.get(&(nic, then)).copied();
        found.unwrap_or(then as VIP_MEM_HANDLE)
    }

    pub(super) fn connected(&self, vi: u64, connection: (u64, u64)) {
        self.handles.lock().connections.insert(vi, connection);
    }

    pub(super) fn connection(&self, vi: u64) -> Option<(u64, u64)> {
        self.handles.lock().connections.get(&vi).copied()
    }
}
