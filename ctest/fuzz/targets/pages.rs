//! Files of pages, as `vipstat` reads them: whatever another user's process has written, and writes meanwhile. Reading ends after a
//! bounded number of reads, and what it gives is within the bounds of the layout.
#![no_main]

use std::cell::Cell;
use std::collections::HashMap;
use std::io;

use libfuzzer_sys::fuzz_target;
use vipl_pages::Snapshot;
use vipl_pages::layout::{
    BYTES, BYTES_WITH_FLIGHTS, COUNTERS, CQS, EVENTS, FLIGHT, LAYOUT, MAGIC, NICS, VIS,
};
use vipl_pages::read::{Source, Vi, head};

/// Reads of a file at most: tables in parts, and for each object its record four times, with its sequence.
const READS_MAX: usize = 1 + 8 * NICS + 2 + VIS * (1 + 8 + 1 + 1);
/// Reads of one VI at most: its record, counters and samples, and both rings with the counters once more.
const VI_READS_MAX: usize = 8 + 1 + 1 + 4;

/// A file that is empty but for some words, and changes once.
struct Pages {
    bytes: usize,
    words: [HashMap<usize, [u8; 8]>; 2],
    /// The read from which on the second words are there.
    turn: usize,
    reads: Cell<usize>,
    read: Cell<usize>,
}

impl Pages {
    /// The first byte chooses the size, the second the time of the change; then come words: where in four bytes, and eight bytes.
    fn new(input: &[u8]) -> Option<Pages> {
        let ([size, turn], input) = input.split_first_chunk::<2>()?;
        let bytes = [BYTES, BYTES_WITH_FLIGHTS, 100_000, 4096][usize::from(*size) % 4];
        let mut first = HashMap::from([(0, MAGIC.to_ne_bytes()), (1, LAYOUT.to_ne_bytes())]);
        let (mut second, count) = (HashMap::new(), input.len() / 12);
        for (number, word) in input.chunks_exact(12).enumerate() {
            let (place, value) = word.split_first_chunk::<4>()?;
            let place = u32::from_le_bytes(*place) as usize % (BYTES_WITH_FLIGHTS / 8);
            let value = value.try_into().ok()?;
            second.insert(place, value);
            // The last quarter comes later.
            if number <= count - count / 4 {
                first.insert(place, value);
            }
        }
        second.extend(first.iter().filter(|(place, _)| **place < 2));
        Some(Pages {
            bytes,
            words: [first, second],
            turn: usize::from(*turn) * 8,
            reads: Cell::new(0),
            read: Cell::new(0),
        })
    }
}

impl Source for Pages {
    fn read(&self, buffer: &mut [u8], place: usize) -> io::Result<()> {
        self.reads.set(self.reads.get() + 1);
        self.read.set(self.read.get() + buffer.len());
        let end = place
            .checked_add(buffer.len())
            .filter(|end| *end <= self.bytes);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.fill(0);
        let words = &self.words[usize::from(self.reads.get() > self.turn)];
        for (word, value) in words {
            for (at, byte) in (word * 8..).zip(value) {
                if (place..end).contains(&at) {
                    buffer[at - place] = *byte;
                }
            }
        }
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some(pages) = Pages::new(bytes) else {
        return;
    };
    let read = Snapshot::read(&pages);
    assert!(
        pages.reads.get() <= READS_MAX,
        "{} reads",
        pages.reads.get()
    );
    assert!(pages.read.get() <= 4 * BYTES);
    let _ = head(&pages);
    let Ok(read) = read else { return };
    assert!(read.nics.len() <= NICS && read.cqs.len() <= CQS && read.counters.len() <= COUNTERS);
    assert!(read.process.program.len() <= 3 * 512 && read.process.version.len() <= 3 * 32);
    assert!(read.vis.len() <= VIS);
    for nic in &read.nics {
        assert!(nic.address.len() <= 32 && nic.device.len() <= 3 * 64);
    }
    let mut descriptors = 0;
    for (slot, vi) in read.vis.iter().map(|vi| (vi.slot, vi)) {
        assert!(slot < VIS && vi.handle != 0);
        assert!(vi.events.is_empty() && vi.descriptors.iter().all(Vec::is_empty));
        pages.reads.set(0);
        // It may have gone meanwhile.
        let Ok(Some(vi)) = Vi::read(&pages, slot) else {
            continue;
        };
        assert!(pages.reads.get() <= VI_READS_MAX);
        assert!(vi.slot == slot && vi.handle != 0);
        assert!(vi.peer_address.len() <= 32);
        assert!(vi.local_point.len() <= 64 && vi.remote_point.len() <= 64);
        assert!(vi.events.len() <= EVENTS);
        let (send, recv) = (vi.send.depth(), vi.recv.depth());
        assert!(send <= u64::MAX / 2 && recv <= u64::MAX / 2);
        for (list, queue) in vi.descriptors.iter().zip([vi.send, vi.recv]) {
            assert!(list.len() <= FLIGHT);
            for (posted, next) in list.iter().zip(list.iter().skip(1)) {
                assert!(posted.number < next.number);
            }
            let last = list.last().map_or(0, |posted| posted.number);
            assert!(last <= queue.posted);
            assert!(list.iter().all(|posted| posted.descriptor != 0));
            descriptors += list.len();
        }
    }
    // Memory: holes of the file take none.
    assert!(descriptors <= 2 * bytes.len());
});
