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
    /// Data segments of each descriptor as it was posted, by its address of then: address of then and length.
    posted: HashMap<u64, Vec<(u64, u64)>>,
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

    /// A descriptor is posted with these data segments. They are kept here, since a message may overwrite the descriptor.
    pub(super) fn posted(&self, then: u64, segments: Vec<(u64, u64)>) {
        self.handles.lock().posted.insert(then, segments);
    }

    /// The first bytes of the message of a descriptor that was posted, `most` at most: those in memory of this process.
    pub(super) fn message(&self, descriptor: u64, most: usize) -> Vec<u8> {
        let segments = self.handles.lock().posted.get(&descriptor).cloned();
        let mut out = Vec::new();
        for (address, length) in segments.unwrap_or_default() {
            let take = (most - out.len()).min(usize::try_from(length).unwrap_or(usize::MAX));
            if !self.memory.read(address, take, &mut out) {
                break;
            }
        }
        out
    }

    pub(super) fn connected(&self, vi: u64, connection: (u64, u64)) {
        self.handles.lock().connections.insert(vi, connection);
    }

    pub(super) fn connection(&self, vi: u64) -> Option<(u64, u64)> {
        self.handles.lock().connections.get(&vi).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_where_its_descriptor_was_posted_and_nowhere_else() {
        let text = "vipl-record 1 1 b\n1 1 2 VipRegisterMem VIP_SUCCESS VirtualAddress=0x1000 Length=0x2000\n";
        let recording = Recording::parse("r", text).expect("a recording");
        let memory = Memory::of(&recording, 1 << 20).expect("memory");
        let process = Process::new(recording, memory);
        // The descriptor's own segments are part of the message: here they are zero, an address that nothing may read.
        process.posted(0x1000, vec![(0x1020, 0x40), (0x2ff0, 0x10)]);
        assert_eq!(process.message(0x1000, 0x45), [0; 0x45]);
        assert_eq!(process.message(0x1000, usize::MAX).len(), 0x50);
        for (address, length) in [(0x10, 0x7fff_ffff), (0x2ff0, 0x11), (u64::MAX, u64::MAX)] {
            process.posted(0x1000, vec![(0x1000, 1), (address, length)]);
            assert_eq!(process.message(0x1000, usize::MAX).len(), 1);
        }
        assert!(process.message(0x2000, 8).is_empty(), "it was never posted");
    }
}
