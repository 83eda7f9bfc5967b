//! Rules of the specification and of the transfer methods, between two connections in one process.

mod close;
mod poll;
mod post;
mod rdma;

use super::*;
use crate::testing::{End, Pair};

/// What tests see of a connection's parts.
impl Connection {
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn sender(&self) -> &Sender {
        &self.sender
    }

    pub(crate) fn shared_copy(&mut self) -> (&Peer, &mut SharedCopy) {
        (&self.peer, &mut self.inbound.shared)
    }

    /// Ends the connection by an error of this side.
    pub(crate) fn lose(&mut self, port: &Port) {
        self.end(port, Ending::new(Closed::LOST, 1, 0));
    }
}

impl End {
    /// Sends wait for room in the ring.
    fn wait(&mut self) {
        let connection = self.connection();
        connection.peer.set_waiting(true);
        connection.inbound.receiver.clear_idle();
    }

    /// Takes a batch of so many slots at most; gives the bytes of the payload area, too.
    fn receive_batch(&mut self, most: u32) -> (bool, u32) {
        let (port, mut bytes) = (self.port(), 0);
        let all = self.connection().receive(port, most, &mut bytes);
        (all, bytes)
    }
}

/// As often as both sides may have to learn how the peer's memory is accessed, and to make room.
fn settle(pair: &mut Pair) {
    for _ in 0..40 {
        pair.right.progress();
        pair.left.progress();
    }
}
