//! The descriptors on the queues of one VI, and what they looked like when they were posted.

use std::collections::VecDeque;

use vipl_abi::*;
use vipl_plugin_sdk::layer::{bytes, read};

use crate::place::Place;

/// Words of a descriptor that are in its own 64 bytes: the control segment and two more.
const WORDS: usize = 16;
/// Segments in them.
const SEGMENTS_NEAR: u16 = 2;
/// Descriptors among which one that is posted again is searched for.
const LOOKED_AT: usize = 16;
/// Most bytes of a message that are compared.
const DATA_MAX: usize = 64 << 10;
/// Bytes that are read at a time.
const PIECE: usize = 512;

/// Which queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Send = 0,
    Recv = 1,
}

/// A descriptor as it is now.
pub(crate) struct Image {
    pub(crate) at: u64,
    words: [u32; WORDS],
}

impl Image {
    /// Reads it. `None`: no address of a descriptor.
    #[inline]
    pub(crate) fn read(at: u64) -> Option<Image> {
        if at == 0 || !(at as usize).is_multiple_of(VIP_DESCRIPTOR_ALIGNMENT) {
            return None;
        }
        // Aligned to 64 bytes, so all of it is on one page.
        let words = read(std::ptr::with_exposed_provenance::<[u32; WORDS]>(
            at as usize,
        ))?;
        Some(Image { at, words })
    }

    pub(crate) fn segments(&self) -> u16 {
        self.words[3] as u16
    }
    pub(crate) fn control(&self) -> u16 {
        (self.words[3] >> 16) as u16
    }
    pub(crate) fn immediate(&self) -> u32 {
        self.words[5]
    }
    pub(crate) fn status(&self) -> u32 {
        self.words[7]
    }
    pub(crate) fn is_rdma(&self) -> bool {
        self.control() & VIP_CONTROL_OP_MASK != 0
    }

    /// Address, memory handle and length of a segment.
    pub(crate) fn segment(&self, number: u16) -> Option<(u64, u32, u32)> {
        if number >= self.segments() || number >= 252 {
            return None;
        }
        let four = match number {
            ..SEGMENTS_NEAR => {
                let first = 8 + 4 * usize::from(number);
                [0, 1, 2, 3].map(|word| self.words[first + word])
            }
            _ => {
                let at = self.at as usize + 32 + 16 * usize::from(number);
                read(std::ptr::with_exposed_provenance::<[u32; 4]>(at))?
            }
        };
        let address = u64::from(four[0]) | u64::from(four[1]) << 32;
        Some((address as usize as u64, four[2], four[3]))
    }

    /// A number that changes with everything that the program must leave alone while the descriptor is posted.
    #[inline]
    fn sum(&self, which: Which) -> u64 {
        let mut sum = Sum::new();
        sum.add(u64::from(self.words[3]));
        // The provider writes Length and ImmediateData of receives.
        if which == Which::Send {
            sum.add(u64::from(self.words[5]) << 32 | u64::from(self.words[6]));
        }
        let near = usize::from(self.segments().min(SEGMENTS_NEAR));
        for pair in self.words[8..8 + 4 * near].chunks_exact(2) {
            sum.add(u64::from(pair[0]) | u64::from(pair[1]) << 32);
        }
        for number in SEGMENTS_NEAR..self.segments() {
            let Some((address, handle, length)) = self.segment(number) else {
                break;
            };
            sum.add(address);
            sum.add(u64::from(handle) << 32 | u64::from(length));
        }
        sum.0
    }

    /// The same of the message, if it is the program's to keep; 0 else.
    #[inline]
    fn data_sum(&self, which: Which) -> u64 {
        let reads = self.control() & VIP_CONTROL_OP_MASK == VIP_CONTROL_OP_RDMAREAD;
        // Behind the fence of a read the message may be what was read.
        let waits = self.control() & VIP_CONTROL_QFENCE != 0;
        if which == Which::Recv || reads || waits {
            return 0;
        }
        let mut sum = Sum::new();
        let mut left = DATA_MAX;
        let mut number = u16::from(self.is_rdma());
        while let Some((address, _, length)) = self.segment(number) {
            let take = left.min(length as usize);
            if !sum.memory(address, take) {
                return 0;
            }
            left -= take;
            number += 1;
        }
        sum.0 | 1
    }
}

/// A cheap sum that depends on the order of what is added.
struct Sum(u64);

impl Sum {
    fn new() -> Sum {
        Sum(0x9E37_79B9_7F4A_7C15)
    }

    #[inline(always)]
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95);
    }

    /// Adds memory of the application; false: it cannot be read.
    #[inline]
    fn memory(&mut self, from: u64, length: usize) -> bool {
        let mut piece = [0; PIECE];
        let mut done = 0;
        while done < length {
            let take = PIECE.min(length - done);
            if !bytes(from + done as u64, &mut piece[..take]) {
                return false;
            }
            // What is behind is of the piece before: a part of the sum as well, and the same each time.
            for eight in piece[..take.next_multiple_of(8)].chunks_exact(8) {
                let word = eight.try_into().map_or(0, u64::from_ne_bytes);
                self.add(word);
            }
            done += take;
        }
        true
    }
}

/// One posted descriptor.
pub(crate) struct Entry {
    pub(crate) at: u64,
    pub(crate) place: Place,
    /// Memory handles: of the descriptor, and of its first data segment.
    pub(crate) memory: [u32; 2],
    sum: u64,
    data_sum: u64,
}

/// What has changed since the post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Descriptor,
    Buffer,
}

impl Entry {
    /// Of a descriptor that is about to be posted.
    #[inline]
    pub(crate) fn new(image: &Image, which: Which, memory: u32, place: Place, data: bool) -> Entry {
        let first = image.segment(u16::from(image.is_rdma()));
        Entry {
            at: image.at,
            place,
            memory: [memory, first.map_or(memory, |(_, handle, _)| handle)],
            sum: image.sum(which),
            data_sum: if data { image.data_sum(which) } else { 0 },
        }
    }

    /// What the program has changed.
    #[inline]
    pub(crate) fn change(&self, image: &Image, which: Which) -> Option<Change> {
        if image.sum(which) != self.sum {
            return Some(Change::Descriptor);
        }
        (self.data_sum != 0 && image.data_sum(which) != self.data_sum).then_some(Change::Buffer)
    }
}

/// The posted descriptors of one queue, the oldest one first.
#[derive(Default)]
pub(crate) struct Queue(VecDeque<Entry>);

impl Queue {
    /// Adds one; returns where the same one was posted before, if it still is.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) -> Option<Place> {
        // One that is posted again too early usually is one of the oldest.
        let again = self
            .0
            .iter()
            .take(LOOKED_AT)
            .find(|known| known.at == entry.at);
        let again = again.map(|known| known.place);
        self.0.push_back(entry);
        again
    }

    /// Takes off the one at this address.
    #[inline]
    pub(crate) fn take(&mut self, at: u64) -> Option<Entry> {
        if self.0.front().is_some_and(|entry| entry.at == at) {
            return self.0.pop_front();
        }
        let place = self.0.iter().position(|entry| entry.at == at)?;
        self.0.remove(place)
    }

    /// Takes off the newest one at this address: its post has failed.
    pub(crate) fn take_newest(&mut self, at: u64) {
        if let Some(place) = self.0.iter().rposition(|entry| entry.at == at) {
            self.0.remove(place);
        }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C, align(64))]
    struct Descriptor([u32; WORDS]);

    fn descriptor(buffer: &[u8]) -> Descriptor {
        let at = buffer.as_ptr().expose_provenance() as u64;
        let mut words = [0; WORDS];
        words[3] = 1;
        words[6] = buffer.len() as u32;
        (words[8], words[9]) = (at as u32, (at >> 32) as u32);
        words[11] = buffer.len() as u32;
        Descriptor(words)
    }

    fn image(of: &Descriptor) -> Image {
        Image::read((&raw const *of).expose_provenance() as u64).unwrap()
    }

    #[test]
    fn what_the_provider_writes_is_no_change() {
        let mut buffer = *b"a message of some bytes";
        let mut one = descriptor(&buffer);
        let sent = Entry::new(&image(&one), Which::Send, 1, 0, true);
        let received = Entry::new(&image(&one), Which::Recv, 1, 0, true);
        one.0[7] = VIP_STATUS_DONE;
        one.0[0] = 77;
        assert_eq!(sent.change(&image(&one), Which::Send), None);
        one.0[6] = 3;
        assert_eq!(received.change(&image(&one), Which::Recv), None);
        assert_eq!(
            sent.change(&image(&one), Which::Send),
            Some(Change::Descriptor)
        );
        one.0[6] = buffer.len() as u32;
        let mut fenced = descriptor(&buffer);
        fenced.0[3] |= u32::from(VIP_CONTROL_QFENCE) << 16;
        let behind = Entry::new(&image(&fenced), Which::Send, 1, 0, true);
        buffer[20] = b'X';
        std::hint::black_box(&buffer);
        assert_eq!(sent.change(&image(&one), Which::Send), Some(Change::Buffer));
        assert_eq!(behind.change(&image(&fenced), Which::Send), None);
        assert_eq!(received.change(&image(&one), Which::Recv), None);
    }

    #[test]
    fn a_descriptor_is_taken_where_it_is() {
        let buffers = [[1u8; 8], [2; 8], [3; 8]];
        let all = buffers.each_ref().map(|buffer| descriptor(buffer));
        let mut queue = Queue::default();
        for (number, one) in all.iter().enumerate() {
            let entry = Entry::new(&image(one), Which::Send, 0, number, true);
            assert_eq!(queue.push(entry), None);
        }
        let twice = Entry::new(&image(&all[1]), Which::Send, 0, 9, true);
        assert_eq!(queue.push(twice), Some(1));
        queue.take_newest(image(&all[1]).at);
        assert_eq!(queue.take(image(&all[2]).at).unwrap().place, 2);
        assert_eq!(queue.take(image(&all[0]).at).unwrap().place, 0);
        assert_eq!(queue.len(), 1);
    }
}
