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

/// Frames that wait to be sent, in order.
#[derive(Default)]
pub struct Outbox {
    waiting: Vec<Frame>,
    /// Buffers of frames that have been sent.
    spare: Vec<Vec<u8>>,
}

impl Outbox {
    /// Frames that wait.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no frame waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Buffers for [`Outbox::frame`] to use again.
    #[inline(always)]
    pub fn spare(&self) -> usize {
        self.spare.len()
    }

    /// A frame of up to `bytes` bytes behind this header.
    #[inline(always)]
    pub fn frame(&mut self, header: &Header, bytes: usize) -> Frame {
        Frame::new(self.spare.pop().unwrap_or_default(), header, bytes)
    }

    /// Queues a frame.
    #[inline(always)]
    pub fn push(&mut self, frame: Frame) {
        self.waiting.push(frame);
    }

    /// Takes the buffer of a frame that need not be sent any more.
    #[inline(always)]
    pub fn reuse(&mut self, frame: Frame) {
        self.spare.push(frame.into_buffer());
    }

    /// Moves all frames of another outbox to the end of this one, and all its spare buffers but one.
    pub fn append(&mut self, other: &mut Outbox) {
        let kept = other.spare.len().min(1);
        self.spare.extend(other.spare.drain(kept..));
        self.waiting.append(&mut other.waiting);
    }

    /// Gives another outbox `count` spare buffers, or as many as there are.
    pub fn lend(&mut self, count: usize, other: &mut Outbox) {
        let kept = self.spare.len().saturating_sub(count);
        other.spare.extend(self.spare.drain(kept..));
    }

    /// Sends all frames, or as many as the socket has room for, and passes each result to `report`. False: frames are
    /// left, because the socket has no room.
    pub fn send(&mut self, socket: &Socket, mut report: impl FnMut(Sent)) -> bool {
        let mut first = 0;
        while first < self.waiting.len() {
            let sent = socket.send(&self.waiting[first..]);
            report(sent);
            match sent {
                Sent::Frames(count) => first += count,
                Sent::Again => break,
                Sent::Lost(_) => first += 1,
            }
        }
        let finished = self.waiting.drain(..first);
        self.spare.extend(finished.map(Frame::into_buffer));
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
        all.lend(7, &mut own);
        assert_eq!((all.spare.len(), own.spare.len()), (93, 7));
        all.append(&mut own);
        assert_eq!((all.spare.len(), own.spare.len()), (99, 1));
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
