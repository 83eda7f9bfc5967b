//! One recorded process, made again in this one: its memory, and which handle of now stands for which of then.

use std::collections::{HashMap, HashSet, VecDeque};

use vipl_client::raw::abi::*;
use vipl_sys::mutex::Mutex;

use super::file::{Call, Recording};
use super::memory::Memory;

/// In place of a pointer of then that was bad, and of a handle that was none: no memory of a process is there, and no object.
pub(super) const BAD: usize = 0x40;

/// A NIC of then: its handle of now, and its own host address.
#[derive(Clone, Default)]
pub(super) struct Nic {
    pub(super) handle: usize,
    pub(super) host: Vec<u8>,
    /// Longest message of its device.
    pub(super) transfer_max: u64,
    /// Reliability levels of its device, and those with RDMA Read.
    pub(super) levels: VIP_RELIABILITY_LEVEL,
    pub(super) levels_of_reads: VIP_RELIABILITY_LEVEL,
    /// Its device has IP addresses with ports.
    pub(super) is_ip: bool,
}

/// From which calls take things: a queue of a VI, a completion queue, or the requests at an address of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source(&'static str, u64, String);

impl Source {
    /// Of a call that takes something.
    pub(super) fn of(call: &Call) -> Option<Source> {
        let (kind, handle) = match call.name.as_str() {
            "VipSendDone" | "VipSendWait" => ("send", "ViHandle"),
            "VipRecvDone" | "VipRecvWait" => ("receive", "ViHandle"),
            "VipCQDone" | "VipCQWait" => ("completion", "CQHandle"),
            "VipConnectWait" => ("request", "NicHandle"),
            _ => return None,
        };
        let place = call.text("LocalAddr").unwrap_or_default().to_owned();
        Some(Source(kind, call.number(handle), place))
    }
}

/// What a wait has found, although it found nothing then: its code, and the descriptor or request.
pub(super) type Found = (i32, usize);

/// Marks waits whose time was up while another call was about to take something from the same source: that one is waiting in the
/// library already, and could not be given what this one finds.
fn mark_beside(calls: &mut [Call]) {
    let mut taken: HashMap<Source, Vec<(u64, u64)>> = HashMap::new();
    for call in calls.iter().filter(|call| call.result != "VIP_TIMEOUT") {
        if let Some(source) = Source::of(call) {
            taken
                .entry(source)
                .or_default()
                .push((call.began, call.ended));
        }
    }
    for all in taken.values_mut() {
        all.sort_unstable();
        // Each with the latest end so far.
        let mut last = 0;
        for (_, ended) in all {
            last = last.max(*ended);
            *ended = last;
        }
    }
    for call in calls.iter_mut().filter(|call| call.result == "VIP_TIMEOUT") {
        let all = Source::of(call).and_then(|source| taken.get(&source));
        let before = all.and_then(|all| {
            let place = all.partition_point(|(began, _)| *began < call.ended);
            Some(all[place.checked_sub(1)?].1)
        });
        call.is_beside = before.is_some_and(|ended| ended > call.began);
    }
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
    /// For the calls that took it then.
    early: HashMap<Source, VecDeque<Found>>,
}

/// The process.
pub(super) struct Process {
    pub(super) recording: Recording,
    pub(super) memory: Memory,
    handles: Mutex<Handles>,
    /// Longest message that is sent.
    pub(super) longest_send: u64,
    /// Names that the name service knew then.
    pub(super) names: HashSet<String>,
}

impl Process {
    pub(super) fn new(mut recording: Recording, memory: Memory) -> Process {
        mark_beside(&mut recording.calls);
        let found = recording
            .calls
            .iter()
            .filter(|call| call.name == "VipNSGetHostByName" && call.result == "VIP_SUCCESS");
        let names = found
            .filter_map(|call| String::from_utf8(call.bytes("Name")?).ok())
            .collect();
        Process {
            longest_send: recording.longest_send(),
            recording,
            memory,
            handles: Mutex::new(Handles::default()),
            names,
        }
    }

    pub(super) fn add_nic(&self, then: u64, nic: Nic) {
        let mut handles = self.handles.lock();
        handles.nics.insert(then, nic);
        handles.early.retain(|source, _| source.1 != then);
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

    /// A new object.
    pub(super) fn add(&self, then: u64, now: VIP_PVOID) {
        let mut handles = self.handles.lock();
        handles.others.insert(then, now.expose_provenance());
        // Its predecessor of the same handle has none that anybody takes.
        handles.early.retain(|source, _| source.1 != then);
    }

    pub(super) fn add_vi(&self, then: u64, now: VIP_PVOID, nic: u64) {
        self.add(then, now);
        self.handles.lock().of_vi.insert(then, nic);
    }

    /// The handle of now; NULL for NULL, and a bad one for one that was never made.
    pub(super) fn handle(&self, then: u64) -> VIP_PVOID {
        let handles = self.handles.lock();
        let nic = || handles.nics.get(&then).map(|nic| nic.handle);
        let found = match then {
            0 => 0,
            _ => handles
                .others
                .get(&then)
                .copied()
                .or_else(nic)
                .unwrap_or(BAD),
        };
        std::ptr::with_exposed_provenance_mut(found)
    }

    /// The handle of now of a NIC, as above.
    pub(super) fn nic_handle(&self, then: u64) -> VIP_NIC_HANDLE {
        let nic = self.handles.lock().nics.get(&then).map(|nic| nic.handle);
        nic.map_or_else(|| self.handle(then), std::ptr::with_exposed_provenance_mut)
    }

    /// Keeps what a wait has found that found nothing then.
    pub(super) fn keep(&self, source: Source, found: Found) {
        let mut handles = self.handles.lock();
        handles.early.entry(source).or_default().push_back(found);
    }

    /// Whether something is kept there.
    pub(super) fn keeps(&self, source: &Source) -> bool {
        let handles = self.handles.lock();
        handles
            .early
            .get(source)
            .is_some_and(|kept| !kept.is_empty())
    }

    /// Takes what is kept there.
    pub(super) fn take(&self, source: &Source) -> Option<Found> {
        self.handles.lock().early.get_mut(source)?.pop_front()
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
    fn a_wait_beside_another_one_is_marked() {
        let text = "vipl-record 1 1 b\n\
                    1 10 20 VipRecvWait VIP_TIMEOUT ViHandle=0x7\n2 5 30 VipRecvWait VIP_SUCCESS ViHandle=0x7\n\
                    1 31 40 VipRecvWait VIP_TIMEOUT ViHandle=0x7\n2 41 42 VipRecvDone VIP_SUCCESS ViHandle=0x7\n\
                    1 10 20 VipSendWait VIP_TIMEOUT ViHandle=0x7\n2 1 2 VipRecvDone VIP_SUCCESS ViHandle=0x7\n";
        let recording = Recording::parse("r", text).expect("a recording");
        let memory = Memory::of(&recording, 1 << 20).expect("memory");
        let calls = Process::new(recording, memory).recording.calls;
        let beside: Vec<bool> = calls.iter().map(|call| call.is_beside).collect();
        assert_eq!(beside, [true, false, false, false, false, false]);
    }

    #[test]
    fn what_is_kept_goes_to_the_calls_of_its_queue_in_order() {
        let text = "vipl-record 1 1 b\n\
                    1 1 2 VipRecvWait VIP_TIMEOUT ViHandle=0x7\n1 3 4 VipRecvDone VIP_SUCCESS ViHandle=0x7\n\
                    1 5 6 VipSendDone VIP_SUCCESS ViHandle=0x7\n1 7 8 VipConnectWait VIP_TIMEOUT NicHandle=0x7 LocalAddr=00/61\n\
                    1 9 10 VipDisconnect VIP_SUCCESS ViHandle=0x7\n";
        let recording = Recording::parse("r", text).expect("a recording");
        let memory = Memory::of(&recording, 1 << 20).expect("memory");
        let process = Process::new(recording, memory);
        let sources: Vec<Option<Source>> = process.recording.calls.iter().map(Source::of).collect();
        let [Some(wait), Some(done), Some(send), Some(request), None] = &sources[..] else {
            panic!("{sources:?}");
        };
        assert!(wait == done && !process.keeps(wait));
        process.keep(wait.clone(), (0, 1));
        process.keep(wait.clone(), (3, 2));
        assert!(process.keeps(done) && !process.keeps(send) && !process.keeps(request));
        assert_eq!(process.take(done), Some((0, 1)));
        assert_eq!(process.take(done), Some((3, 2)));
        assert_eq!(process.take(done), None);
        process.keep(wait.clone(), (0, 1));
        process.add(7, std::ptr::null_mut());
        assert!(!process.keeps(wait), "another VI of that handle");
    }

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
