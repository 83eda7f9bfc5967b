use vipl_sys::random::nth;

use super::*;
use crate::layout::{COUNTERS_AT, COUNTS_AT, CQS_AT, FLIGHTS_AT, NICS_AT, SAMPLED_AT, VIS_AT};

/// Bytes of a file that was cut short behind the third recorder.
const BYTES: usize = FLIGHTS_AT + 3 * size_of::<layout::Flight>();

/// Zeroed pages of a process, as the library writes them.
struct Pages(Vec<u64>);

impl Pages {
    fn new() -> Pages {
        let pages = Pages(vec![0; (BYTES + 4096) / 8]);
        let process: &layout::Process = pages.at(0);
        process.layout.set(LAYOUT);
        process.pid.set(4711_u64);
        process.program.set(b"/bin/program");
        process.magic.publish(MAGIC);
        pages
    }

    fn start(&self) -> usize {
        self.0.as_ptr().align_offset(4096) * 8
    }

    fn at<T>(&self, place: usize) -> &T {
        assert!(place + size_of::<T>() <= BYTES);
        let first = self.0.as_ptr().cast::<u8>();
        // SAFETY: inside, aligned, and zeroes are valid for every structure of the layout, which has atomic fields only.
        unsafe { &*first.add(self.start() + place).cast() }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: inside; nothing is written while the result is used.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>().add(self.start()), BYTES) }
    }

    fn flight(&self, slot: usize) -> &layout::Flight {
        self.at(FLIGHTS_AT + slot * size_of::<layout::Flight>())
    }

    fn vi(&self, slot: usize) -> &layout::Vi {
        self.at(VIS_AT + slot * size_of::<layout::Vi>())
    }

    fn sampled(&self, slot: usize) -> &layout::Sampled {
        self.at(SAMPLED_AT + slot * size_of::<layout::Sampled>())
    }

    fn counts(&self, slot: usize) -> &layout::Counts {
        self.at(COUNTS_AT + slot * size_of::<layout::Counts>())
    }
}

#[test]
fn what_a_process_publishes_is_read() {
    let pages = Pages::new();
    let process: &layout::Process = pages.at(0);
    process.nic_bound.set(2_u64);
    process.cq_bound.set(1_u64);
    process.vi_bound.set(3_u64);
    process.counter_bound.set(1_u64);
    let nic: &layout::Nic = pages.at(NICS_AT + size_of::<layout::Nic>());
    nic.sequence.change(|| {
        nic.handle.set(77_u64);
        nic.device.set(b"/dev/via_lo");
        nic.address.set(&[1, 2, 3, 4, 5, 6]);
        nic.address_bytes.set(6_u64);
    });
    let cq: &layout::Cq = pages.at(CQS_AT);
    cq.handle.set(5_u64);
    cq.added.set(9);
    cq.taken.set(4);
    cq.dropped.set(1_u64);
    let counter: &layout::Counter = pages.at(COUNTERS_AT);
    counter.name.set(b"sim.frames_sent");
    counter.value.set(12_u64);
    let (vi, counts) = (pages.vi(2), pages.counts(2));
    vi.handle.set(8_u64);
    vi.lengths.set(3_u64 << 16);
    vi.remote_point.set(b"abc");
    vi.start(counts, 0, u32::MAX);
    counts.posted(0, 1);
    counts.taken(0, 0);
    counts.failed[0].add(1);
    for number in 0..40 {
        vi.happened(number.into(), Happened::Connected(number));
    }

    let ring = layout::Ring {
        entry: 16,
        room: 256,
    };
    vi.flight.set(layout::Ring::set(0, 0, Some(ring)));
    // The counter began at its greatest value, so the second descriptor is at the beginning.
    let mut entries = [0; 256 * 16];
    entries[..16].copy_from_slice(&[0x40, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0x80, 0]);
    entries[255 * 16] = 0x20;
    pages.flight(2).rings[0].set(&entries);

    let read = Snapshot::read(pages.bytes()).unwrap();
    assert_eq!(
        (read.process.pid, read.process.program.as_str()),
        (4711, "/bin/program")
    );
    assert_eq!(read.nics.len(), 1);
    assert_eq!(
        (read.nics[0].handle, read.nics[0].device.as_str()),
        (77, "/dev/via_lo")
    );
    assert_eq!(read.nics[0].address, [1, 2, 3, 4, 5, 6]);
    assert_eq!(read.cqs[0].depth(), 4);
    assert_eq!(read.counters, [("sim.frames_sent".to_owned(), 12)]);
    assert!(read.vis[0].events.is_empty() && read.vis[0].descriptors.concat().is_empty());
    let one = |slot| Vi::read(pages.bytes(), slot).unwrap();
    assert_eq!((one(1), one(VIS), one(usize::MAX)), (None, None, None));
    let vi = one(2).unwrap();
    let same = Vi {
        events: Vec::new(),
        descriptors: Default::default(),
        ..vi.clone()
    };
    assert_eq!(read.vis, [same]);
    assert_eq!((vi.slot, vi.send.depth(), vi.recv.depth()), (2, 1, 0));
    assert_eq!(
        (
            vi.send.posted,
            vi.send.taken,
            vi.send.completed,
            vi.send.failed
        ),
        (2, 1, 1, 1)
    );
    assert_eq!(vi.remote_point, b"abc");
    let first = Posted {
        number: 1,
        descriptor: 0x20,
        memory: 0,
        status: 0,
        is_taken: true,
    };
    let second = Posted {
        number: 2,
        descriptor: 0x40,
        memory: 7,
        status: 0x80_0001,
        is_taken: false,
    };
    assert_eq!(vi.descriptors, [vec![first, second], Vec::new()]);
    // What was never written is no descriptor.
    pages.flight(2).rings[0].set(&entries[..16]);
    assert_eq!(one(2).unwrap().descriptors, [vec![second], Vec::new()]);
    assert_eq!(vi.events.len(), EVENTS);
    assert_eq!(vi.events[0].happened, Happened::Connected(8));
    assert_eq!(vi.events[31].happened, Happened::Connected(39));
}

/// A slot may have had another VI: without the mark its record is not read.
#[test]
fn samples_are_read_where_there_are_any() {
    let pages = Pages::new();
    let process: &layout::Process = pages.at(0);
    process.vi_bound.set(2_u64);
    for slot in 0..2 {
        pages.vi(slot).handle.set(9_u64);
        pages.sampled(slot).bytes[1].set(4096_u64);
        (0..100).for_each(|time| pages.sampled(slot).took(1000 + time));
        pages.sampled(slot).latest.set(77_u64);
    }
    pages.vi(1).sampled.set(1_u64);
    let read = Snapshot::read(pages.bytes()).unwrap();
    assert!(read.vis[0].sampled.is_none());
    let sampled = read.vis[1].sampled.as_deref().unwrap();
    assert_eq!((sampled.bytes, sampled.count()), ([0, 4096], 100));
    assert_eq!(sampled.latency_sum, 100 * 1000 + 99 * 50);
    let nothing = Sampled {
        latest: 77,
        ..Sampled::default()
    };
    assert_eq!(sampled.since(sampled), nothing);
}

#[test]
fn quantiles_are_within_a_range() {
    let mut sampled = Sampled::default();
    assert_eq!(sampled.quantile(0.5), None);
    sampled.latency[layout::latency_range(1024)] = 98;
    sampled.latency[layout::latency_range(1 << 20)] = 2;
    let quantile = |share| sampled.quantile(share).unwrap();
    assert_eq!(quantile(0.49), 1024 + 128);
    assert_eq!(quantile(0.99), (1 << 20) + (1 << 17));
    // A word may be anything.
    let any = Sampled {
        latency: [u64::MAX; LATENCIES],
        ..Sampled::default()
    };
    assert!(any.quantile(1.0).is_some_and(|time| time <= 1 << 32));
    sampled.add(&any);
    assert_eq!(sampled.latency[0], u64::MAX);
}

#[test]
fn a_file_that_is_no_pages_or_is_cut_short_is_an_error() {
    let pages = Pages::new();
    let process: &layout::Process = pages.at(0);
    process.vi_bound.set(VIS as u64);
    assert!(matches!(Snapshot::read(&[][..]), Err(Unreadable::Io(_))));
    assert!(matches!(
        Snapshot::read(&pages.bytes()[..9000]),
        Err(Unreadable::Io(_))
    ));
    process.layout.set(LAYOUT + 1);
    assert!(matches!(
        Snapshot::read(pages.bytes()),
        Err(Unreadable::Layout(other)) if other == LAYOUT + 1
    ));
    process.magic.set(0_u64);
    assert!(matches!(
        Snapshot::read(pages.bytes()),
        Err(Unreadable::NotPages)
    ));
}

/// Whatever the words are, reading ends, and says something.
#[test]
fn any_content_can_be_read() {
    let mut pages = Pages::new();
    let first = pages.start() / 8;
    for seed in 0..4 {
        for (index, word) in pages.0[first..first + 24 * 4096 / 8].iter_mut().enumerate() {
            *word = match seed {
                0 => u64::MAX,
                _ => nth(seed, index as u64),
            };
        }
        pages.0[first] = MAGIC;
        pages.0[first + 1] = LAYOUT;
        let read = Snapshot::read(pages.bytes()).unwrap();
        let words = pages.0[first + offset_of!(layout::Process, nic_bound) / 8];
        assert!(words > NICS as u64 && read.nics.len() <= NICS && read.cqs.len() <= CQS);
        for found in &read.vis {
            let vi = Vi::read(pages.bytes(), found.slot).unwrap().unwrap();
            assert!(vi.peer_address.len() <= 32 && vi.remote_point.len() <= 64);
            assert!(vi.events.len() <= EVENTS);
            let mut lists = vi.descriptors.iter();
            assert!(lists.all(|list| list.len() <= layout::FLIGHT));
            let _ = (vi.send.depth(), vi.recv.depth());
            if let Some(sampled) = &vi.sampled {
                let _ = (sampled.count(), sampled.quantile(0.99));
            }
        }
    }
}
