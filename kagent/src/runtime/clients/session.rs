//! A connected process: its socket, its pidfd, and its unsent messages.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::Message;
use crate::runtime::helpers::held::SharedFd;
use crate::runtime::sockets::packet;

/// Maximum size of the messages queued for a process that does not read. Everything that can be due at once
/// fits: replies to the maximum number of calls, and the end of some ten thousand connections, reported one
/// by one when a peer exits.
const BACKLOG_BYTES_MAX: usize = 2 << 20;
/// Memory of a queued message besides its bytes.
const MESSAGE_OVERHEAD: usize = 64;
/// Maximum messages with descriptors received after the process exited.
const FINAL_RECEIVES_MAX: u32 = 8;

/// Maximum packets read from a process after its exit.
const FINAL_PACKETS_MAX: usize = 1024;

/// A connected process.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// A helper is receiving its next message; later messages are not read until it has answered.
    pub(crate) at_helper: bool,
    /// Remaining messages that a helper may receive after the process exited.
    pub(crate) final_receives: u32,
    /// Remaining packets to read after the process exited.
    pub(crate) final_packets: usize,
    /// It will be removed: nothing more is sent.
    pub(crate) dying: bool,
    backlog: VecDeque<Message<SharedFd>>,
    backlog_bytes: usize,
    /// Queued messages with descriptors.
    backlog_fds: usize,
}

/// The weight of a queued message in its session's backlog.
fn weight(message: &Message<SharedFd>) -> usize {
    message.bytes.len() + MESSAGE_OVERHEAD
}

/// Why sending to a process failed.
#[derive(Debug)]
pub(crate) enum Unsendable {
    /// It does not read.
    Stuck,
    /// Its socket failed.
    Broken(Errno),
}

impl Session {
    pub(crate) fn new(socket: OwnedFd, pidfd: Option<OwnedFd>, pid: i32, uid: u32) -> Self {
        Self {
            socket,
            pidfd,
            pid,
            uid,
            at_helper: false,
            final_receives: FINAL_RECEIVES_MAX,
            final_packets: FINAL_PACKETS_MAX,
            dying: false,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            backlog_fds: 0,
        }
    }

    /// Whether messages are queued.
    pub(crate) fn is_backed_up(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Messages with descriptors in the queue.
    pub(crate) fn queued_with_descriptors(&self) -> usize {
        self.backlog_fds
    }

    /// Sends a message, or queues it until there is room; with descriptors only if `admitted`.
    pub(crate) fn send(
        &mut self,
        message: Message<SharedFd>,
        admitted: bool,
    ) -> Result<(), Unsendable> {
        let with_fds = !message.fds.is_empty();
        self.push(message);
        if self.backlog.len() == 1 {
            self.flush()?;
        }
        let refused = with_fds && !admitted && self.is_backed_up();
        // The session will be removed, with its queue.
        match refused || self.backlog_bytes > BACKLOG_BYTES_MAX {
            true => Err(Unsendable::Stuck),
            false => Ok(()),
        }
    }

    fn push(&mut self, message: Message<SharedFd>) {
        self.backlog_fds += usize::from(!message.fds.is_empty());
        self.backlog_bytes += weight(&message);
        self.backlog.push_back(message);
    }

    /// Sends queued messages while there is room.
    pub(crate) fn flush(&mut self) -> Result<(), Unsendable> {
        while let Some(message) = self.backlog.front() {
            let fds: Vec<RawFd> = message.fds.iter().filter_map(|fd| fd.raw()).collect();
            match packet::send(self.socket.as_fd(), &message.bytes, &fds) {
                Ok(true) => {
                    self.backlog_fds -= usize::from(!message.fds.is_empty());
                    self.backlog_bytes -= weight(message);
                    self.backlog.pop_front();
                }
                Ok(false) => break,
                Err(cause) => return Err(Unsendable::Broken(cause)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;
    use crate::ClientId;
    use crate::runtime::helpers::held::Held;
    use crate::runtime::segment;

    /// A session, and the process that does not read.
    fn session() -> (Session, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
        let (ours, theirs) = pair.unwrap();
        (Session::new(ours, None, 1, 2), theirs)
    }

    fn message(bytes: usize, fds: Vec<SharedFd>) -> Message<SharedFd> {
        Message {
            client: ClientId(1),
            bytes: vec![7; bytes],
            fds,
        }
    }

    #[test]
    fn messages_wait_up_to_a_size() {
        let (mut session, theirs) = session();
        let stuck = (0..1 << 20).position(|_| session.send(message(40, Vec::new()), true).is_err());
        let most = BACKLOG_BYTES_MAX / (40 + MESSAGE_OVERHEAD);
        assert!(stuck.is_some_and(|sent| sent >= most), "{stuck:?}");
        assert_eq!(session.backlog.len(), most + 1);
        let mut buffer = [0; packet::PACKET_BYTES];
        while session.is_backed_up() {
            packet::receive(theirs.as_fd(), &mut buffer).unwrap();
            session.flush().unwrap();
        }
        assert_eq!((session.backlog_bytes, session.backlog_fds), (0, 0));
    }

    #[test]
    fn descriptors_wait_where_they_are_admitted() {
        let (mut session, _theirs) = session();
        let memory: SharedFd = Rc::new(Held::own(segment::create(4096).unwrap()));
        let with_memory = || message(400, vec![memory.clone()]);
        while !session.is_backed_up() {
            session.send(with_memory(), true).unwrap();
        }
        for queued in 1..1000 {
            assert_eq!(session.queued_with_descriptors(), queued);
            session.send(with_memory(), true).unwrap();
        }
        session.send(message(40, Vec::new()), false).unwrap();
        let refused = session.send(with_memory(), false);
        assert!(matches!(refused, Err(Unsendable::Stuck)));
    }
}
