//! A VI's connection to a VI on another host.

use std::sync::Arc;

use vipl_netio::Header;
use vipl_netio::peer::PeerProcess;
use vipl_wire::{Closing, Connection, Reason};

use crate::env::{self, ViCall};
use crate::outbox::Outbox;
use crate::tools::Tools;
use crate::vi::Vi;

/// A connection to a VI on another host.
pub(crate) struct Remote {
    /// The VI on this host.
    id: usize,
    connection: Connection,
    header: Header,
    mtu: usize,
    /// The peer process.
    peer: Arc<PeerProcess>,
}

impl Remote {
    pub(crate) fn new(
        id: usize,
        connection: Connection,
        header: Header,
        mtu: usize,
        peer: Arc<PeerProcess>,
    ) -> Remote {
        Remote {
            id,
            connection,
            header,
            mtu,
            peer,
        }
    }

    pub(crate) fn id(&self) -> usize {
        self.id
    }

    #[inline(always)]
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Calls the engine.
    #[inline(always)]
    pub(crate) fn engage(
        &mut self,
        vi: &mut Vi,
        tools: &mut Tools,
        out: &mut Outbox,
        now: u64,
        call: impl FnOnce(&mut Connection, &mut ViCall<'_>),
    ) {
        let line = out.line(self.header, self.mtu, now);
        let mut env = env::call(vi, tools, line, &self.peer);
        call(&mut self.connection, &mut env);
    }

    /// Ends the connection. The remaining frames to the peer need no VI.
    pub(crate) fn close(
        self,
        reason: Reason,
        now: u64,
        out: &mut Outbox,
    ) -> (Closing, Header, usize) {
        let mut line = out.line(self.header, self.mtu, now);
        let closing = self.connection.close(reason, now, &mut line);
        (closing, self.header, self.mtu)
    }
}
