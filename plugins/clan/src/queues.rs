//! The queues of a VI: from descriptors to doorbells, which is all that a post does, and the completions of the device.

use std::sync::atomic::Ordering::Acquire;

use vipl_abi::{VIP_CONTROL_OP_MASK, VIP_CONTROL_OP_SENDRECV};
use vipl_clan_proto::vi::{
    HEAD, RECEIVE_SEGMENTS, RING, ReceiveLine, SEND_SEGMENTS, Segment, SendLine, ViPages, form,
};
use vipl_guard::Image;
use vipl_plugin_sdk::{Entry, Port, Queue};
use vipl_sys::shm::Mapping;
use vipl_sys::wrap;

/// Bytes of a descriptor's control segment, and of each segment behind it.
const CONTROL: usize = 32;
const SEGMENT: usize = 16;

/// Numbers of one queue. Doorbells and completions are numbered over all connections of the VI; the host has other numbers.
#[derive(Clone, Copy)]
struct Count {
    /// Number of the next doorbell.
    rung: u32,
    /// Number of the next completion.
    done: u32,
    /// Difference of the host's numbers.
    ahead: u32,
}

impl Count {
    fn new() -> Count {
        // A sequence number of 0, as in fresh memory, must not look like that of the first doorbell.
        let first = wrap::start(RING as u32).wrapping_sub(RING as u32);
        Count {
            rung: first,
            done: first,
            ahead: 0,
        }
    }

    /// A connection begins with the host's descriptor of this number.
    fn begin(&mut self, host: u32) {
        self.done = self.rung;
        self.ahead = host.wrapping_sub(self.rung);
    }

    /// The host's number of the next descriptor to ring for.
    #[inline(always)]
    fn next(&self) -> u32 {
        self.rung.wrapping_add(self.ahead)
    }
}

/// The queues of a VI.
pub(crate) struct Queues {
    pages: ViPages,
    sends: Count,
    receives: Count,
    /// Largest message in bytes whose data goes into the doorbell; 0: the descriptor does not, either.
    inline_max: u32,
    _memory: Mapping,
}

impl Queues {
    pub(crate) fn new(memory: Mapping, inline_max: u32) -> Queues {
        Queues {
            // SAFETY: the mapping lives as long as the view.
            pages: unsafe { ViPages::new(memory.base()) },
            sends: Count::new(),
            receives: Count::new(),
            inline_max,
            _memory: memory,
        }
    }

    /// A connection begins.
    pub(crate) fn begin(&mut self, port: &Port) {
        self.sends.begin(port.completed(Queue::Send));
        self.receives.begin(port.completed(Queue::Recv));
    }

    #[inline(always)]
    pub(crate) fn pages(&self) -> ViPages {
        self.pages
    }

    /// Whether doorbells carry the data of small messages.
    pub(crate) fn is_inline(&self) -> bool {
        self.inline_max > 0
    }

    /// Numbers of the next doorbells, of sends and of receives.
    pub(crate) fn rung(&self) -> (u32, u32) {
        (self.sends.rung, self.receives.rung)
    }

    /// Numbers of the next completions.
    pub(crate) fn done(&self) -> (u32, u32) {
        (self.sends.done, self.receives.done)
    }

    /// Number of the next completion of a send, if the device has stored it.
    #[inline(always)]
    pub(crate) fn sent(&self) -> Option<u32> {
        let number = self.sends.done;
        let stored = number != self.sends.rung
            && self.pages.sent(number).sequence.load(Acquire) == number.wrapping_add(1);
        stored.then_some(number)
    }

    /// The same for a receive.
    #[inline(always)]
    pub(crate) fn received(&self) -> Option<u32> {
        let number = self.receives.done;
        let stored = number != self.receives.rung
            && self.pages.received(number).sequence.load(Acquire) == number.wrapping_add(1);
        stored.then_some(number)
    }

    /// The completion of the oldest send has been taken.
    #[inline(always)]
    pub(crate) fn pass_sent(&mut self) {
        self.sends.done = self.sends.done.wrapping_add(1);
    }

    /// The same for a receive.
    #[inline(always)]
    pub(crate) fn pass_received(&mut self) {
        self.receives.done = self.receives.done.wrapping_add(1);
    }

    /// Rings for all posted sends.
    #[inline(always)]
    pub(crate) fn ring_sends(&mut self, port: &Port) {
        while self.sends.next() != port.posted(Queue::Send) {
            // SAFETY: posted and not complete.
            let entry = unsafe { port.entry(Queue::Send, self.sends.next()) };
            self.ring_send(&entry);
            self.sends.rung = self.sends.rung.wrapping_add(1);
        }
    }

    #[inline(always)]
    fn ring_send(&self, entry: &Entry) {
        let descriptor = entry.descriptor().cast_const().cast::<u8>();
        let mut line = SendLine {
            descriptor: descriptor.expose_provenance() as u64,
            memory: entry.memory(),
            form: form::TOKEN,
            ..SendLine::default()
        };
        if self.inline_max > 0
            // SAFETY: a posted descriptor; faults are caught, and left to the device to find.
            && let Ok(image) = unsafe { vipl_guard::load_descriptor(descriptor) }
        {
            line.seg_count = image.seg_count;
            line.control = image.control;
            line.immediate = image.immediate;
            line.length = image.length;
            line.first = image.first;
            line.form = self.fill(descriptor, &image);
        }
        self.pages.ring_send(self.sends.rung, &line);
    }

    /// Copies the data or the other segments into the doorbell, if they fit.
    #[inline(always)]
    fn fill(&self, descriptor: *const u8, image: &Image) -> u32 {
        let count = usize::from(image.seg_count);
        if count == 1
            && image.control & VIP_CONTROL_OP_MASK == VIP_CONTROL_OP_SENDRECV
            && image.length == image.first.length
            && image.length <= self.inline_max
            && self.copy_data(&image.first).is_ok()
        {
            return form::INLINE;
        }
        if count <= 1 {
            return form::WHOLE;
        }
        if count > SEND_SEGMENTS {
            return form::TOKEN;
        }
        let from = descriptor.wrapping_add(CONTROL + SEGMENT);
        let to = self.pages.send_rest(self.sends.rung);
        // SAFETY: the second line has room for the other segments; faults are caught.
        match unsafe { vipl_guard::copy(to, from, (count - 1) * SEGMENT) } {
            Ok(()) => form::WHOLE,
            Err(_) => form::TOKEN,
        }
    }

    #[inline(always)]
    fn copy_data(&self, from: &Segment) -> Result<(), vipl_guard::Fault> {
        let bytes = from.length as usize;
        let data = std::ptr::with_exposed_provenance::<u8>(from.address as usize);
        let number = self.sends.rung;
        // SAFETY: both lines together have room for `inline_max` bytes; faults are caught.
        unsafe {
            vipl_guard::copy(self.pages.send_head(number), data, bytes.min(HEAD))?;
            if bytes > HEAD {
                let (to, from) = (self.pages.send_rest(number), data.wrapping_add(HEAD));
                vipl_guard::copy(to, from, bytes - HEAD)?;
            }
        }
        Ok(())
    }

    /// Rings for all posted receives.
    #[inline(always)]
    pub(crate) fn ring_receives(&mut self, port: &Port) {
        while self.receives.next() != port.posted(Queue::Recv) {
            // SAFETY: posted and not complete.
            let entry = unsafe { port.entry(Queue::Recv, self.receives.next()) };
            self.ring_receive(&entry);
            self.receives.rung = self.receives.rung.wrapping_add(1);
        }
    }

    #[inline(always)]
    fn ring_receive(&self, entry: &Entry) {
        let descriptor = entry.descriptor().cast_const().cast::<u8>();
        let mut line = ReceiveLine {
            descriptor: descriptor.expose_provenance() as u64,
            memory: entry.memory(),
            form: form::TOKEN,
            ..ReceiveLine::default()
        };
        if self.inline_max > 0
            // SAFETY: as above.
            && let Ok(image) = unsafe { vipl_guard::load_descriptor(descriptor) }
            && usize::from(image.seg_count) <= RECEIVE_SEGMENTS
        {
            let mut segments = [image.first, Segment::default()];
            let second = descriptor.wrapping_add(CONTROL + SEGMENT);
            let wanted = image.seg_count > 1;
            let to = (&raw mut segments[1]).cast::<u8>();
            // SAFETY: room for one segment, of which every bit pattern is valid; faults are caught.
            if !wanted || unsafe { vipl_guard::copy(to, second, SEGMENT) }.is_ok() {
                line.seg_count = image.seg_count;
                line.control = image.control;
                line.segments = segments;
                line.form = form::WHOLE;
            }
        }
        self.pages.ring_receive(self.receives.rung, &line);
    }
}
