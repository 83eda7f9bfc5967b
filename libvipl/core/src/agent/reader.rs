//! The thread that reads the messages of an agent.
//!
//! It runs while the process uses the agent: from the first call, or the first NIC, to the last one. It does
//! not keep the process alive: a thread that blocks all signals must not be the last one of an application
//! that has ended its own threads (`last_thread.rs`). When the agent closes the connection, it becomes the
//! keeper.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vipl_sys::thread::Thread;

use kagent_proto::*;
use vipl_sys::{seqpacket, thread};
use zerocopy::FromBytes;

use super::client::{Agent, GONE, Reply};
use super::last_thread::LastThread;
use super::{launch, refusal};

/// Something received from the agent.
enum Received {
    Message(usize, Vec<OwnedFd>),
    /// Nothing within `LOOK_AGAIN`.
    Nothing,
    /// The agent has closed the connection.
    End,
}

/// The reason why the thread ends.
enum Outcome {
    /// The agent is not in use.
    Unused,
    /// The agent has closed the connection.
    Gone,
}

/// Starts the thread. After each message it checks whether to end; `lost` runs on it when the agent has
/// closed the connection.
pub(super) fn start(
    agent: &Arc<Agent>,
    ends: impl Fn(&Arc<Agent>) -> bool + Send + 'static,
    lost: impl FnOnce(&Arc<Agent>) + Send + 'static,
) -> io::Result<Thread> {
    let agent = agent.clone();
    thread::spawn_with_signals_blocked("vipl-agent", move || {
        if let Outcome::Gone = agent.read(ends) {
            lost(&agent);
        }
    })
}

impl Agent {
    fn read(self: &Arc<Self>, ends: impl Fn(&Arc<Agent>) -> bool) -> Outcome {
        let mut buffer = [0u8; MESSAGE_BYTES_MAX];
        let mut last = LastThread::default();
        loop {
            match self.receive(&mut buffer) {
                Received::Message(length, fds) => {
                    self.silent.store(false, Ordering::Relaxed);
                    self.outbox.flush(|| self.socket.fd());
                    self.dispatch(&buffer[..length], fds);
                }
                Received::Nothing => last.look(),
                Received::End => break,
            }
            if ends(self) {
                return Outcome::Unused;
            }
        }
        self.dead.store(true, Ordering::Release);
        launch::no_goodbye(self.socket.number());
        let calls = std::mem::take(&mut *self.calls.lock());
        for then in calls.into_values() {
            then(self, Reply::failed(GONE));
        }
        Outcome::Gone
    }

    fn receive(&self, buffer: &mut [u8]) -> Received {
        loop {
            let Ok(socket) = self.socket.fd() else {
                self.was_closed();
                return Received::End;
            };
            match seqpacket::receive(socket, buffer, 0) {
                Ok(packet) if packet.length == 0 => return Received::End,
                Ok(packet) if packet.complete => {
                    return Received::Message(packet.length, packet.fds);
                }
                // A connection needs all descriptors.
                Ok(packet) => {
                    let error = io::Error::from_raw_os_error(libc::EMFILE);
                    log::error!(
                        target: "agent",
                        "cannot receive the file descriptors of a new connection: {error}"
                    );
                    return Received::Message(packet.length, Vec::new());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Received::Nothing;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The agent closed the socket with unread messages. This is reported once, before the
                // messages that it sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                Err(_) => return Received::End,
            }
        }
    }

    fn dispatch(self: &Arc<Self>, message: &[u8], fds: Vec<OwnedFd>) {
        let Ok((header, body)) = Header::read_from_prefix(message) else {
            return;
        };
        if header.magic != MAGIC {
            return;
        }
        if header.length as usize != body.len() {
            log::error!(target: "agent", "the Kernel Agent sent an invalid message");
            return self.finish(header.id, Reply::failed(Status::RESOURCE));
        }
        let op = Op(header.op);
        if op == Op::PEER_GONE {
            if let Ok(gone) = PeerGone::read_from_bytes(body) {
                self.peer_gone(&gone);
            }
            return;
        }
        if op == Op::DONE
            && let Ok(why) = Detail::read_from_bytes(body)
        {
            refusal::log_budget(&why);
        }
        let reply = Reply {
            id: header.id,
            op,
            status: Status(header.status),
            body: body.to_vec(),
            fds,
        };
        self.finish(header.id, reply);
    }

    fn peer_gone(&self, gone: &PeerGone) {
        let found = self.connections.lock().get(&gone.connection).copied();
        if let Some(owner) = found {
            (owner.peer_gone)(owner.vi, owner.side, gone.orderly != 0);
        }
    }
}
