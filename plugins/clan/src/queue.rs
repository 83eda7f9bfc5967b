//! From descriptors to doorbells. This is all that a post does.

use vipl_abi::{VIP_CONTROL_OP_MASK, VIP_CONTROL_OP_SENDRECV};
use vipl_clan_proto::vi::{
    HEAD, RECEIVE_SEGMENTS, ReceiveLine, SEND_SEGMENTS, Segment, SendLine, form,
};
use vipl_guard::Image;
use vipl_plugin_sdk::{Entry, Port, Queue};

use crate::vi::ClanVi;

/// Bytes of a descriptor's control segment, and of each segment behind it.
const CONTROL: usize = 32;
const SEGMENT: usize = 16;

impl ClanVi {
    /// Rings for what was posted on the send queue.
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

    /// Puts what else there is room for into the doorbell.
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

    /// Rings for what was posted on the receive queue.
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
