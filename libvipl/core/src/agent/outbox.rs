//! Queue of messages to an agent that do not fit into the socket.
//!
//! No caller waits for room: an agent that is stopped reads nothing, and a call has its own deadline. The
//! reading thread sends queued messages in order when the agent reads again: each message that the agent has
//! read causes a reply, after which the thread checks this queue.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use vipl_sys::{fd, seqpacket};

use crate::sync::Mutex;

/// Lowest number for descriptors queued with their message, as for the socket itself.
const FIRST_NUMBER: RawFd = 200;

struct Unsent {
    id: u64,
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// Queued messages.
#[derive(Default)]
pub(super) struct Outbox {
    unsent: Mutex<VecDeque<Unsent>>,
}

impl Outbox {
    /// Sends a message, or queues it with copies of its descriptors.
    pub(super) fn send(
        &self,
        socket: RawFd,
        id: u64,
        [header, body]: [&[u8]; 2],
        fds: &[RawFd],
    ) -> io::Result<()> {
        let mut unsent = self.unsent.lock();
        if unsent.is_empty() {
            let parts = [IoSlice::new(header), IoSlice::new(body)];
            match seqpacket::send(socket, &parts, fds, libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
        let copies = fds.iter().map(|one| {
            fd::duplicate_from(*one, FIRST_NUMBER).or_else(|_| fd::duplicate_from(*one, 3))
        });
        let fds = copies.collect::<io::Result<Vec<OwnedFd>>>()?;
        let bytes = [header, body].concat();
        unsent.push_back(Unsent { id, bytes, fds });
        Ok(())
    }

    /// Sends queued messages while there is room.
    pub(super) fn flush(&self, socket: impl FnOnce() -> io::Result<RawFd>) {
        let mut unsent = self.unsent.lock();
        if unsent.is_empty() {
            return;
        }
        let Ok(socket) = socket() else {
            return;
        };
        while let Some(first) = unsent.front() {
            let fds: Vec<RawFd> = first.fds.iter().map(AsRawFd::as_raw_fd).collect();
            let parts = [IoSlice::new(&first.bytes)];
            match seqpacket::send(socket, &parts, &fds, libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The reading thread notices that the agent has exited.
                _ => drop(unsent.pop_front()),
            }
        }
    }

    /// Removes a message. Returns false if it was sent.
    pub(super) fn withdraw(&self, id: u64) -> bool {
        let mut unsent = self.unsent.lock();
        let before = unsent.len();
        unsent.retain(|message| message.id != id);
        unsent.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipl_sys::fd::Identity;

    #[test]
    fn what_does_not_fit_waits_in_order_with_its_descriptors() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let (socket, peer) = (ours.as_raw_fd(), theirs.as_raw_fd());
        let outbox = Outbox::default();
        let mut sent = 0u64;
        while outbox.unsent.lock().len() < 3 {
            sent += 1;
            let body = sent.to_ne_bytes();
            outbox
                .send(socket, sent, [b"head", &body], &[peer])
                .unwrap();
        }
        assert!(!outbox.withdraw(1), "it has been sent");
        assert!(outbox.withdraw(sent - 1) && !outbox.withdraw(sent - 1));
        let mut buffer = [0; 64];
        for number in (1..=sent).filter(|number| *number != sent - 1) {
            outbox.flush(|| Ok(socket));
            let packet = seqpacket::receive(peer, &mut buffer, libc::MSG_DONTWAIT).unwrap();
            assert_eq!(&buffer[..4], b"head");
            assert_eq!(buffer[4..packet.length], number.to_ne_bytes());
            let came = packet.fds.first().map(AsRawFd::as_raw_fd).unwrap();
            assert_eq!(Identity::of(came), Identity::of(peer));
        }
        assert!(outbox.unsent.lock().is_empty());
    }
}
