//! Frames on their way into the kernel: a queue, and buffers to use again.
//!
//! An engine fills a [`Frame`] from [`Outbox::frame`] and queues it with [`Outbox::push`]. [`Outbox::send`] passes the
//! queue to the kernel, with one system call for each burst. A frame that cannot be sent is lost, as on a cut cable;
//! frames for which the socket has no room stay.
//!
//! An owner with several threads has one outbox for the socket, behind a lock, and one for each connection, without a
//! lock: [`Outbox::append`] moves a group of frames from one to the other.

use crate::{Frame, Header, Sent, Socket};

/// Frames of one burst: of 1500 bytes, as many as the kernel takes for one train of datagrams.
pub const BURST: usize = 44;
/// Frames that wait for the socket at most. The owner checks this before it begins a frame, and queues it later.
pub const WAITING_MAX: usize = 256;

/// Part of the bytes sent that may be padding, which lets a train go on after a shorter frame.
const PADDING: usize = 32;
/// Most bytes of padding saved up.
const PADDING_MAX: usize = 2048;

/// Frames that wait to be sent, in order.
#[derive(Default)]
pub struct Outbox {
    /// Frames, and trains.
    waiting: Vec<Frame>,
    /// Frames in all of these.
    frames: usize,
    /// Bytes of padding that may be sent.
    padding: usize,
    /// Buffers of frames that have been sent, and of trains.
    spare: Vec<Vec<u8>>,
    spare_trains: Vec<Vec<u8>>,
}

impl Outbox {
    /// Frames that wait.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.frames
    }

    /// Whether no frame waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Buffers for [`Outbox::frame`] to use again.
    pub fn spare(&self) -> usize {
        self.spare.len() + self.spare_trains.len()
    }

    /// Whether the next frame, behind this header, takes a buffer that is not here.
    #[inline(always)]
    pub fn lacks_buffers(&self, header: &Header) -> bool {
        let begins_train = |last: &Frame| last.is_small() && last.may_grow(header, self.padding);
        self.spare.is_empty()
            || (self.spare_trains.is_empty() && self.waiting.last().is_some_and(begins_train))
    }

    /// Whether a frame behind this header would join a train.
    #[inline(always)]
    pub fn may_grow(&self, header: &Header) -> bool {
        let last = self.waiting.last();
        last.is_some_and(|last| last.may_grow(header, self.padding))
    }

    /// A frame of up to `bytes` bytes behind this header. [`Outbox::push`] or [`Outbox::take_back`] takes it: it may
    /// have others with it.
    #[inline(always)]
    pub fn frame(&mut self, header: &Header, bytes: usize) -> Frame {
        let may_grow = self.may_grow(header);
        if let Some(mut train) = self.waiting.pop_if(|_| may_grow) {
            self.frames -= train.count();
            if train.is_small() {
                let buffer = self.spare_trains.pop().unwrap_or_default();
                self.spare.push(train.move_to(buffer));
            }
            self.padding -= train.grow(bytes);
            return train;
        }
        Frame::new(self.spare.pop().unwrap_or_default(), header, bytes)
    }

    /// Queues a frame.
    #[inline(always)]
    pub fn push(&mut self, mut frame: Frame) {
        let bytes = frame.last_bytes();
        self.padding = PADDING_MAX.min(self.padding + bytes / PADDING);
        self.frames += frame.count();
        if frame.is_misplaced() {
            let buffer = self.spare.pop().unwrap_or_default();
            let before = if frame.count() == 2 {
                // The shorter one moves, and the buffer remains one for trains.
                frame.split_first(buffer)
            } else {
                let alone = frame.split(buffer);
                std::mem::replace(&mut frame, alone)
            };
            self.waiting.push(before);
        }
        self.waiting.push(frame);
    }

    /// Takes a frame that is not sent, and the buffer of one that need not be sent any more.
    #[inline(always)]
    pub fn take_back(&mut self, mut frame: Frame) {
        if frame.count() == 1 {
            self.reuse(frame);
        } else {
            frame.drop_last();
            self.frames += frame.count();
            self.waiting.push(frame);
        }
    }

    /// Takes the last frame out of its train, to send it alone behind this header.
    #[cold]
    pub fn take_out(&mut self, frame: Frame, header: &Header) -> Frame {
        let alone = frame.copy_last(self.spare.pop().unwrap_or_default(), header);
        self.take_back(frame);
        alone
    }

    #[inline(always)]
    fn reuse(&mut self, frame: Frame) {
        let spare = if frame.is_small() {
            &mut self.spare
        } else {
            &mut self.spare_trains
        };
        spare.push(frame.into_buffer());
    }

    /// Moves all frames of another outbox to the end of this one, and all its spare buffers but a small one.
    pub fn append(&mut self, other: &mut Outbox) {
        let kept = other.spare.len().min(1);
        self.spare.extend(other.spare.drain(kept..));
        self.spare_trains.append(&mut other.spare_trains);
        self.waiting.append(&mut other.waiting);
        self.frames += std::mem::take(&mut other.frames);
    }

    /// Moves the last train to another outbox, which is empty, if it may grow there.
    pub fn resume(&mut self, header: &Header, other: &mut Outbox) {
        let padding = other.padding;
        if let Some(train) = self.waiting.pop_if(|last| last.may_grow(header, padding)) {
            self.frames -= train.count();
            other.frames += train.count();
            other.waiting.push(train);
        }
    }

    /// Gives another outbox `count` spare buffers, or as many as there are, and one for a train if it has a frame already.
    pub fn lend(&mut self, count: usize, other: &mut Outbox) {
        let kept = self.spare.len().saturating_sub(count);
        other.spare.extend(self.spare.drain(kept..));
        if !other.is_empty() {
            other.spare_trains.extend(self.spare_trains.pop());
        }
    }

    /// The only train that waits.
    #[cfg(test)]
    pub(crate) fn take_only(&mut self) -> Frame {
        assert_eq!(self.waiting.len(), 1);
        self.waiting.remove(0)
    }

    /// Sends all frames, or as many as the socket has room for, and passes each result to `report`. False: frames are
    /// left, because the socket has no room.
    pub fn send(&mut self, socket: &Socket, mut report: impl FnMut(Sent)) -> bool {
        let mut first = 0;
        while first < self.waiting.len() {
            let sent = socket.send(&self.waiting[first..]);
            report(sent);
            let mut count = match sent {
                Sent::Frames(count) | Sent::NoTrains(count) => count,
                Sent::Again => break,
                Sent::Lost(_) => 1,
            };
            self.frames -= count;
            while count > 0 {
                let next = &mut self.waiting[first];
                if next.count() > count {
                    next.drop_first(count);
                    break;
                }
                count -= next.count();
                first += 1;
            }
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.drain(..first).for_each(|frame| self.reuse(frame));
        self.waiting = waiting;
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::datagram::{Peer, Sender};

    #[test]
    fn frames_leave_in_order_and_their_buffers_are_used_again() {
        let [near, far] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let header = Header::udp(Peer::from(far.local_addr().unwrap()));
        let socket = Socket::Datagrams(Sender::new(near.into()));
        let (mut all, mut own) = (Outbox::default(), Outbox::default());
        for number in 0..100u8 {
            let mut frame = own.frame(&header, 1000);
            frame.as_mut()[0] = number;
            frame.set_length(1 + usize::from(number) % 9);
            own.push(frame);
            if own.len() == 10 {
                all.append(&mut own);
            }
        }
        assert_eq!((all.len(), own.len()), (100, 0));
        let mut sent = 0;
        let done = all.send(&socket, |what| match what {
            Sent::Frames(count) => sent += count,
            other => panic!("{other:?}"),
        });
        assert_eq!((done, sent, all.is_empty()), (true, 100, true));
        for number in 0..100u8 {
            let mut bytes = [0; 1000];
            let length = far.recv(&mut bytes).unwrap();
            assert_eq!((length, bytes[0]), (1 + usize::from(number) % 9, number));
        }
        let spare = all.spare();
        all.lend(2, &mut own);
        assert_eq!((own.spare.len(), own.spare_trains.len()), (2, 0));
        let frame = own.frame(&header, 9);
        own.push(frame);
        all.lend(0, &mut own);
        assert_eq!((own.spare.len(), own.spare_trains.len()), (1, 1));
        all.append(&mut own);
        assert_eq!((own.spare.len(), own.spare_trains.len()), (1, 0));
        assert_eq!(all.spare(), spare - 2);
    }

    #[test]
    fn each_train_of_a_group_uses_a_buffer_again() {
        let header = Header::udp(Peer::from(std::net::SocketAddr::from(([192, 0, 2, 1], 1))));
        let mut own = Outbox::default();
        assert!(own.lacks_buffers(&header), "for a frame");
        own.spare.resize(9, Vec::new());
        for _ in 0..2 {
            assert!(!own.lacks_buffers(&header));
            push(&mut own, &header, 7, 900);
            assert!(own.lacks_buffers(&header), "for a train");
            own.spare_trains.push(vec![0; crate::frame::TRAIN_ROOM]);
            while own.may_grow(&header) {
                assert!(!own.lacks_buffers(&header));
                push(&mut own, &header, 7, 900);
            }
        }
        assert_eq!(own.waiting.len(), 2);
    }

    /// Pushes a frame of so many bytes of a number.
    fn push(to: &mut Outbox, header: &Header, number: u8, bytes: usize) {
        let mut frame = to.frame(header, 1000);
        frame.as_mut()[..bytes].fill(number);
        frame.set_length(bytes);
        to.push(frame);
    }

    #[test]
    fn a_train_goes_on_in_another_outbox_and_without_a_frame_that_is_taken_back() {
        let header = Header::udp(Peer::from(std::net::SocketAddr::from(([192, 0, 2, 1], 1))));
        let (mut all, mut own) = (Outbox::default(), Outbox::default());
        (0..12).for_each(|number| push(&mut own, &header, number, 1000));
        assert_eq!((own.len(), own.waiting.len()), (12, 1));
        // Less is missing than may be padding by now.
        push(&mut own, &header, 40, 900);
        assert!(own.may_grow(&header));
        all.append(&mut own);
        all.resume(&header, &mut own);
        assert_eq!((all.len(), own.len()), (0, 13));
        let frame = own.frame(&header, 1000);
        own.take_back(frame);
        assert_eq!((own.len(), own.waiting[0].train().0.len()), (13, 13_000));
        push(&mut own, &header, 41, 900);
        push(&mut own, &header, 42, 3);
        assert!(!own.may_grow(&header), "too much is missing");
        push(&mut own, &header, 43, 1000);
        assert_eq!((own.len(), own.waiting.len()), (16, 2));
        let padded = [&[41; 900][..], &[0; 100], &[42; 3]].concat();
        assert!(own.waiting[0].train().0.ends_with(&padded));
    }

    #[test]
    fn what_was_sent_of_a_train_leaves_it() {
        let [near, far] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let header = Header::udp(Peer::from(far.local_addr().unwrap()));
        let sender = Sender::new(near.into());
        sender.refuse_trains();
        let socket = Socket::Datagrams(sender);
        let mut all = Outbox::default();
        (0..60).for_each(|number| push(&mut all, &header, number, 100));
        (60..90).for_each(|number| push(&mut all, &header, number, 200));
        assert_eq!(all.waiting.len(), 2);
        let mut results = Vec::new();
        assert!(all.send(&socket, |what| results.push(what)));
        assert_eq!(results, [Sent::Frames(64), Sent::Frames(26)]);
        for number in 0..90u8 {
            let mut bytes = [0; 1000];
            let length = far.recv(&mut bytes).unwrap();
            assert_eq!(
                (length, bytes[0]),
                (if number < 60 { 100 } else { 200 }, number)
            );
        }
    }

    #[test]
    fn a_frame_that_cannot_be_sent_is_lost_alone() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let header = Header::udp(Peer::from(far.local_addr().unwrap()));
        let socket = Socket::Datagrams(Sender::new(near.into()));
        let mut all = Outbox::default();
        for length in [70_000, 3] {
            let mut frame = all.frame(&header, 70_000);
            frame.set_length(length);
            all.push(frame);
        }
        let mut results = Vec::new();
        assert!(all.send(&socket, |what| results.push(what)));
        assert_eq!(results, [Sent::Lost(libc::EMSGSIZE), Sent::Frames(1)]);
        assert_eq!(far.recv(&mut [0; 9]).unwrap(), 3);
    }
}
