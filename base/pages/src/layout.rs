//! The structures in a file of pages.
//!
//! ```text
//!   0        Process                       1 page
//!   4 K      64 Nic of 256 bytes           by the slot of the handle
//!   20 K     128 Counter of 64 bytes       in the order in which they were made
//!   28 K     1024 Cq of 64 bytes           by the slot of the handle
//!   92 K     4096 Counts of 64 bytes       by the slot of the VI's handle
//!   348 K    4096 Vi of 1 KiB              by the slot of the handle
//!   4444 K   4096 Sampled of 1 KiB         the same; VIs of which nothing was sampled take no memory
//!   8540 K   4096 Flight of 8 KiB          the same, only with the setting `flight`
//! ```
//!
//! The data path writes to `Counts`, and for a message now and then to `Sampled`. `Counts` has a cache line for each VI, because
//! threads use different VIs, and these lie close together, because a program that uses a thousand VIs in turn would otherwise
//! miss the TLB at each call.
//!
//! The file is sparse: a page takes memory when its object exists. Every field is one 64-bit word that one thread at a time
//! writes, or bytes. A 32-bit process writes the lower halves of counts, whose upper halves stay 0. Records whose fields belong
//! together have a sequence word, which is odd while they change.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use crate::record::Happened;

/// First word of a file; stored last, when the rest of [`Process`] is complete.
pub const MAGIC: u64 = u64::from_le_bytes(*b"VIPLPAGE");
/// Version of the layout. Readers refuse others; new fields that old readers may ignore take reserved words instead.
pub const LAYOUT: u64 = 3;

/// NIC handles that are published.
pub const NICS: usize = 64;
/// Counters that are published.
pub const COUNTERS: usize = 128;
/// CQs that are published.
pub const CQS: usize = 1024;
/// VIs that are published; a process with more shows how many are left out.
pub const VIS: usize = 4096;
/// Descriptors of each queue in a [`Flight`].
pub const FLIGHT: usize = 256;
/// Entries of a VI's ring of events.
pub const EVENTS: usize = 32;
/// Ranges of time of a [`Sampled`].
pub const LATENCIES: usize = 110;

/// Where the tables begin.
pub const NICS_AT: usize = size_of::<Process>();
/// See [`NICS_AT`].
pub const COUNTERS_AT: usize = NICS_AT + NICS * size_of::<Nic>();
/// See [`NICS_AT`].
pub const CQS_AT: usize = COUNTERS_AT + COUNTERS * size_of::<Counter>();
/// See [`NICS_AT`].
pub const COUNTS_AT: usize = CQS_AT + CQS * size_of::<Cq>();
/// See [`NICS_AT`].
pub const VIS_AT: usize = COUNTS_AT + VIS * size_of::<Counts>();
/// See [`NICS_AT`].
pub const SAMPLED_AT: usize = VIS_AT + VIS * size_of::<Vi>();
/// Size of a file.
pub const BYTES: usize = SAMPLED_AT + VIS * size_of::<Sampled>();
/// Where the recorders begin, in a process with the setting `flight`.
pub const FLIGHTS_AT: usize = BYTES;
/// Size of its file.
pub const BYTES_WITH_FLIGHTS: usize = FLIGHTS_AT + VIS * size_of::<Flight>();

/// A count on the data path: one thread at a time writes it, so an addition is not atomic.
#[repr(C, align(8))]
#[derive(Default)]
pub struct Count([AtomicUsize; 8 / size_of::<usize>()]);

impl Count {
    /// The value, as far as this process's word holds it.
    #[inline(always)]
    pub fn get(&self) -> usize {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Adds a number.
    #[inline(always)]
    pub fn add(&self, number: usize) {
        self.set(self.get().wrapping_add(number));
    }

    /// Stores a value.
    #[inline(always)]
    pub fn set(&self, value: usize) {
        self.0[0].store(value, Ordering::Relaxed);
    }
}

/// A word off the data path.
#[repr(transparent)]
#[derive(Default)]
pub struct Word(AtomicU64);

impl Word {
    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Stores a value.
    pub fn set(&self, value: impl Into<u64>) {
        self.0.store(value.into(), Ordering::Relaxed);
    }

    /// Adds a number; one thread at a time does so.
    pub fn count(&self, number: u64) {
        self.set(self.get().wrapping_add(number));
    }

    /// Adds a number; several threads may do so.
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    /// Subtracts a number; several threads may do so.
    pub fn subtract(&self, number: u64) {
        self.0.fetch_sub(number, Ordering::Relaxed);
    }

    /// The word as an atomic one.
    pub fn atomic(&self) -> &AtomicU64 {
        &self.0
    }

    /// Stores a value so that what was stored before is seen with it.
    pub fn publish(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// Raises the value to at least this one.
    pub fn raise(&self, least: u64) {
        self.0.fetch_max(least, Ordering::Relaxed);
    }
}

/// Bytes, cut at `N`; the rest is 0.
#[repr(C)]
pub struct Bytes<const N: usize>([AtomicU8; N]);

impl<const N: usize> Default for Bytes<N> {
    fn default() -> Self {
        Bytes([const { AtomicU8::new(0) }; N])
    }
}

impl<const N: usize> Bytes<N> {
    /// Stores bytes, as many as fit.
    pub fn set(&self, bytes: &[u8]) {
        let bytes = bytes.iter().copied().chain(std::iter::repeat(0));
        for (place, byte) in self.0.iter().zip(bytes) {
            place.store(byte, Ordering::Relaxed);
        }
    }
}

/// The sequence of a record: odd while its writer changes it. Writers exclude each other by a lock of their own.
#[repr(transparent)]
#[derive(Default)]
pub struct Sequence(AtomicU64);

impl Sequence {
    /// Changes the record.
    pub fn change(&self, change: impl FnOnce()) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.0
            .store((before | 1).wrapping_add(1), Ordering::Release);
    }
}

/// The process.
#[repr(C, align(4096))]
#[derive(Default)]
pub struct Process {
    /// [`MAGIC`].
    pub magic: Word,
    /// [`LAYOUT`].
    pub layout: Word,
    /// Bytes of the file.
    pub bytes: Word,
    /// Process id in its own namespace.
    pub pid: Word,
    /// Inode of its namespace of process ids; 0: unknown.
    pub pid_namespace: Word,
    /// When it started, in ticks since the start of the system; 0: unknown.
    pub start_ticks: Word,
    /// Effective user.
    pub user: Word,
    /// When the pages were made, monotonic, in nanoseconds.
    pub opened: Word,
    /// The same in nanoseconds since 1970.
    pub opened_1970: Word,
    /// The latest monotonic time at which something beside the data path has stored it.
    pub clock: Word,
    /// When the process called `exit`; 0: it has not.
    pub ended: Word,
    /// Bounds of what the tables contain.
    pub nic_bound: Word,
    /// See `nic_bound`.
    pub counter_bound: Word,
    /// See `nic_bound`.
    pub cq_bound: Word,
    /// See `nic_bound`.
    pub vi_bound: Word,
    /// VIs that are there and have no record here: beyond the table, or without memory.
    pub vis_left_out: Word,
    /// Version of the library.
    pub version: Bytes<32>,
    /// Path of the program.
    pub program: Bytes<512>,
    /// Pages of the file for which there was no memory: what they would hold is not seen.
    pub pages_left_out: Word,
    /// 0.
    pub reserved: Bytes<3416>,
}

/// One NIC handle.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Nic {
    /// Of the next eight fields.
    pub sequence: Sequence,
    /// The handle; 0: free.
    pub handle: Word,
    /// Bytes of the address.
    pub address_bytes: Word,
    /// `VIPL_ADDRESS_*`: how the address reads.
    pub address_form: Word,
    /// Largest message.
    pub transfer_max: Word,
    /// VIs at most.
    pub vis_max: Word,
    /// The host address.
    pub address: Bytes<32>,
    /// Name of the plug-in.
    pub plugin: Bytes<24>,
    /// Name of the device.
    pub device: Bytes<64>,
    /// Registered regions.
    pub regions: Word,
    /// Their bytes.
    pub region_bytes: Word,
    /// Protection tags.
    pub tags: Word,
    /// Asynchronous errors raised.
    pub errors: Word,
    /// 0.
    pub reserved: Bytes<56>,
}

/// A counter of a plug-in.
#[repr(C)]
#[derive(Default)]
pub struct Counter {
    /// The value.
    pub value: Word,
    /// The name.
    pub name: Bytes<56>,
}

/// One CQ.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Cq {
    /// The handle; 0: free.
    pub handle: Word,
    /// Handle of its NIC.
    pub nic: Word,
    /// Entries for which it has room.
    pub capacity: Word,
    /// Entries added so far.
    pub added: Count,
    /// Entries taken so far.
    pub taken: Count,
    /// Entries that left with their VI.
    pub dropped: Word,
    /// Times that it had more entries than room.
    pub overflows: Word,
    /// Work queues attached.
    pub attached: Word,
}

/// The counters of one work queue that the library keeps anyway: they wrap, and begin anywhere.
#[repr(C)]
#[derive(Default)]
pub struct Counted {
    /// Descriptors posted so far.
    pub posted: AtomicU32,
    /// Descriptors that the application has taken off so far.
    pub taken: AtomicU32,
}

/// What the data path writes of a VI: one store for each call.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Counts {
    /// The send queue, and the receive queue.
    pub queues: [Counted; 2],
    /// Descriptors of each that completed with an error, flushed ones too.
    pub failed: [Word; 2],
}

impl Counts {
    /// A descriptor has been posted to a queue: 0, the send queue, or 1.
    #[inline(always)]
    pub fn posted(&self, queue: usize, posted: u32) {
        self.queues[queue].posted.store(posted, Ordering::Relaxed);
    }

    /// A descriptor has been taken off.
    #[inline(always)]
    pub fn taken(&self, queue: usize, taken: u32) {
        self.queues[queue].taken.store(taken, Ordering::Relaxed);
    }
}

/// What [`Counted`] counts from, in full: written beside the data path, more often than the counters wrap.
#[repr(C)]
#[derive(Default)]
pub struct Since {
    /// `posted`, or `taken`, at that time.
    pub counter: Word,
    /// How many that were of this VI.
    pub count: Word,
}

/// One entry of a VI's ring of events.
#[repr(C)]
#[derive(Default)]
pub struct Event {
    /// Monotonic time in nanoseconds.
    pub time: Word,
    /// See [`crate::record::Happened`].
    pub what: Word,
}

/// One VI, but for what the data path writes.
#[repr(C, align(1024))]
pub struct Vi {
    /// Of the fields up to `reserved`, but for single words that are added to.
    pub sequence: Sequence,
    /// The handle; 0: free.
    pub handle: Word,
    /// Handle of its NIC.
    pub nic: Word,
    /// Handles of its CQs, or 0.
    pub send_cq: Word,
    /// See `send_cq`.
    pub recv_cq: Word,
    /// Its number within the NIC.
    pub number: Word,
    /// `VIP_STATE_*`.
    pub state: Word,
    /// When it came to that state.
    pub state_since: Word,
    /// `VIP_SERVICE_*`.
    pub level: Word,
    /// Largest message.
    pub transfer_max: Word,
    /// Protection tag.
    pub tag: Word,
    /// Bit 0: the peer may write by RDMA; bit 1: read.
    pub rdma: Word,
    /// Connections so far.
    pub connections: Word,
    /// 0: no peer; 1: on this host; 2: on another one.
    pub peer: Word,
    /// Process id of the peer, on this host, as the agent sees it.
    pub peer_pid: Word,
    /// Number of its VI within its NIC, on this host.
    pub peer_vi: Word,
    /// Bytes of `peer_address`, `local_point` and `remote_point`, a byte each.
    pub lengths: Word,
    /// Asynchronous errors raised.
    pub errors: Word,
    /// Descriptors of the send queue, and of the receive queue, that were complete when a thread last looked.
    pub completed: [Word; 2],
    /// What the counters of each queue count from: `posted` and `taken`.
    pub since: [[Since; 2]; 2],
    /// Entries stored so far in the ring of events.
    pub events: Word,
    /// Host address of the peer, if known.
    pub peer_address: Bytes<32>,
    /// Discriminator of this side of the last attempt to connect, if it was a client or a peer.
    pub local_point: Bytes<64>,
    /// Discriminator to which it asked for a connection.
    pub remote_point: Bytes<64>,
    /// Which of its rings are in its [`Flight`], see [`Ring`].
    pub flight: Word,
    /// 1: its [`Sampled`] is of this VI; 0: nothing has been sampled.
    pub sampled: Word,
    /// 0.
    pub reserved: Bytes<104>,
    /// The latest events.
    pub event: [Event; EVENTS],
}

/// What is known of a VI from samples: descriptors whose length and, on the send queue, time the library has looked at.
#[repr(C, align(1024))]
pub struct Sampled {
    /// Bytes of the descriptors of the send queue, and of the receive queue, that completed without an error. Between two
    /// samples each is taken to be as long as the second.
    pub bytes: [Word; 2],
    /// Sum of the sampled times, in nanoseconds.
    pub latency_sum: Word,
    /// How many sends took a time of each range ([`latency_range`]) from the post to the completion.
    pub latency: [Word; LATENCIES],
    /// The monotonic time of the latest sample, in nanoseconds; 0: none, or the process is older than this field.
    pub latest: Word,
    /// 0.
    pub reserved: Bytes<112>,
}

/// Shifts of the first and last octave of times that have ranges of their own: from 32 ns to 4.3 s.
const OCTAVES: std::ops::Range<u32> = 5..32;

/// The range of a time in nanoseconds: a quarter of an octave; the first and the last have all that is below, or above.
pub fn latency_range(nanoseconds: u64) -> usize {
    let octave = nanoseconds.checked_ilog2().unwrap_or(0);
    if octave < OCTAVES.start {
        return 0;
    }
    if octave >= OCTAVES.end {
        return LATENCIES - 1;
    }
    let quarter = (nanoseconds >> (octave - 2)) & 3;
    1 + 4 * (octave - OCTAVES.start) as usize + quarter as usize
}

/// The least time of a range, in nanoseconds. The range after the last begins where there is no time.
pub fn latency_from(range: usize) -> u64 {
    match range.checked_sub(1) {
        None => 0,
        Some(place) if range < LATENCIES => {
            (4 + place as u64 % 4) << (OCTAVES.start as usize - 2 + place / 4)
        }
        Some(_) => u64::MAX,
    }
}

impl Sampled {
    /// A send took so long.
    pub fn took(&self, nanoseconds: u64) {
        self.latency_sum.count(nanoseconds);
        self.latency[latency_range(nanoseconds)].count(1);
    }

    /// Empties the record for a new VI.
    pub fn clear(&self) {
        let words = self.bytes.iter().chain(&self.latency);
        let words = words.chain([&self.latency_sum, &self.latest]);
        words.for_each(|word| word.set(0_u64));
    }
}

/// The rings of a VI's work queues, if they lie in the file: entries as the library and its plug-ins use them, an address, a memory
/// handle and a Status, of 16 bytes each or, in a 32-bit process, 12. Descriptor number N, as [`Counted`] counts, is at N - 1 modulo the
/// number of entries. The Status is 0 until the descriptor is complete.
#[repr(C, align(4096))]
pub struct Flight {
    /// The send queue, and the receive queue.
    pub rings: [Bytes<{ FLIGHT * 16 }>; 2],
}

/// What [`Vi::flight`] says of a queue's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Bytes of an entry.
    pub entry: usize,
    /// Entries, a power of two.
    pub room: u32,
}

impl Ring {
    /// The ring of a queue in the word; any word says something.
    pub fn of(word: u64, queue: usize) -> Option<Ring> {
        let half = (word >> (32 * queue)) as u32;
        let (entry, order) = (half & 0xFF, half >> 8 & 0xFF);
        let is_ring = matches!(entry, 12 | 16) && (1 << order.min(31)) <= FLIGHT as u32;
        is_ring.then(|| Ring {
            entry: entry as usize,
            room: 1 << order,
        })
    }

    /// The word with this ring of a queue, or none.
    pub fn set(word: u64, queue: usize, ring: Option<Ring>) -> u64 {
        let half = ring.map_or(0, |ring| {
            ring.entry as u64 | u64::from(ring.room.ilog2()) << 8
        });
        word & !(0xFFFF_FFFF << (32 * queue)) | half << (32 * queue)
    }
}

impl Vi {
    /// The counters of a queue start here.
    pub fn start(&self, counts: &Counts, queue: usize, counter: u32) {
        counts.posted(queue, counter);
        counts.taken(queue, counter);
        counts.failed[queue].set(0_u64);
        for since in &self.since[queue] {
            since.counter.set(counter);
            since.count.set(0_u64);
        }
        self.completed[queue].set(0_u64);
    }

    /// Counts in full what the counters have counted, and what is complete. One thread at a time, which has the queue's lock.
    pub fn count_up(&self, counts: &Counts, queue: usize, completed: u32) {
        let now = &counts.queues[queue];
        let [posted, taken] = &self.since[queue];
        for (since, now) in [(posted, &now.posted), (taken, &now.taken)] {
            let now = now.load(Ordering::Relaxed);
            let more = now.wrapping_sub(since.counter.get() as u32);
            since.count.set(since.count.get().wrapping_add(more.into()));
            since.counter.set(now);
        }
        let untaken = completed.wrapping_sub(taken.counter.get() as u32);
        self.completed[queue].set(taken.count.get().wrapping_add(untaken.into()));
    }

    /// Records an event. One thread at a time.
    pub fn happened(&self, time: u64, what: Happened) {
        let number = self.events.get();
        let place = &self.event[number as usize % EVENTS];
        place.time.set(time);
        place.what.set(what.word());
        self.events.publish(number.wrapping_add(1));
    }

    /// Empties the record of a slot for the next VI in it. The rings stay: their counts say what is of this VI.
    pub fn clear(&self) {
        self.handle.set(0_u64);
        let words = [
            &self.errors,
            &self.events,
            &self.flight,
            &self.sampled,
            &self.connections,
            &self.peer,
            &self.peer_pid,
            &self.peer_vi,
            &self.lengths,
            &self.state_since,
        ];
        words.into_iter().for_each(|word| word.set(0_u64));
    }
}

const _: () = {
    assert!(size_of::<Process>() == 4096 && offset_of!(Process, pages_left_out) == 672);
    assert!(size_of::<Nic>() == 256);
    assert!(size_of::<Counter>() == 64);
    assert!(size_of::<Cq>() == 64);
    assert!(size_of::<Counts>() == 64);
    assert!(size_of::<Vi>() == 1024);
    assert!(size_of::<Event>() == 16);
    assert!(offset_of!(Vi, event) == 512);
    assert!(CQS_AT == 28 << 10 && COUNTS_AT == 92 << 10 && VIS_AT == 348 << 10);
    assert!(size_of::<Sampled>() == 1024 && offset_of!(Sampled, latency) == 24);
    assert!(LATENCIES == 2 + 4 * (OCTAVES.end - OCTAVES.start) as usize);
    assert!(SAMPLED_AT == 4444 << 10);
    assert!(BYTES.is_multiple_of(4096) && FLIGHTS_AT == 8540 << 10);
    assert!(size_of::<Flight>() == 8192);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_cut_and_what_was_there_is_removed() {
        let bytes = Bytes::<4>::default();
        let text = |bytes: &Bytes<4>| -> Vec<u8> {
            bytes
                .0
                .iter()
                .map(|byte| byte.load(Ordering::Relaxed))
                .collect()
        };
        bytes.set(b"abcdef");
        assert_eq!(text(&bytes), b"abcd");
        bytes.set(b"x");
        assert_eq!(text(&bytes), b"x\0\0\0");
    }

    #[test]
    fn a_sequence_is_odd_while_its_record_changes() {
        let sequence = Sequence::default();
        let now = |sequence: &Sequence| sequence.0.load(Ordering::Relaxed);
        sequence.change(|| assert_eq!(now(&sequence), 1));
        assert_eq!(now(&sequence), 2);
        // A thread that ended within a change leaves it odd; the next change mends it.
        sequence.0.store(5, Ordering::Relaxed);
        sequence.change(|| assert_eq!(now(&sequence), 5));
        assert_eq!(now(&sequence), 6);
    }

    #[test]
    fn each_time_is_in_its_range() {
        for range in 0..LATENCIES {
            let (from, to) = (latency_from(range), latency_from(range + 1));
            assert_eq!((latency_range(from), latency_range(to - 1)), (range, range));
            // No wider than a quarter of its octave.
            assert!(
                range == 0 || range == LATENCIES - 1 || 4 * (to - from) <= from,
                "{range}"
            );
        }
        assert_eq!(
            (latency_from(1), latency_from(LATENCIES - 1)),
            (32, 1 << 32)
        );
        assert_eq!(latency_range(u64::MAX), LATENCIES - 1);
    }

    #[test]
    fn counters_that_wrap_count_on() {
        // SAFETY: zeroes are a valid record.
        let vi: Box<Vi> = unsafe { Box::new(std::mem::zeroed()) };
        let now = Counts::default();
        let start = u32::MAX - 1;
        vi.start(&now, 1, start);
        now.posted(1, start.wrapping_add(5));
        now.taken(1, start.wrapping_add(3));
        vi.count_up(&now, 1, start.wrapping_add(4));
        let counts = |vi: &Vi| {
            let [posted, taken] = &vi.since[1];
            (posted.count.get(), taken.count.get(), vi.completed[1].get())
        };
        assert_eq!(counts(&vi), (5, 3, 4));
        now.posted(1, start.wrapping_add(9));
        vi.count_up(&now, 1, start.wrapping_add(4));
        assert_eq!(counts(&vi), (9, 3, 4));
        vi.start(&now, 1, 7);
        assert_eq!(counts(&vi), (0, 0, 0));
    }
}
