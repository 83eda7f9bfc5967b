//! Connecting two VIs of this host.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{Attributes, Connected, DataAddress, HOST_BYTES_MAX, Op, Status};

use crate::logic::limits::PAGE_BYTES;
use crate::logic::tables::connection::{Connection, ConnectionState};
use crate::logic::values::ids::{Caller, ConnectionId, NicId};
use crate::logic::values::message;
use crate::logic::values::output::{Join, JoinEnd, Message, Output};

/// One side at the moment of connecting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) caller: Caller,
    pub(crate) nic: NicId,
    pub(crate) connection: ConnectionId,
    pub(crate) vi: u64,
    pub(crate) attributes: Attributes,
    pub(crate) segment_bytes: u32,
}

impl<F: Clone> Agent<F> {
    /// Connects two sides at one instant.
    pub(crate) fn join(&mut self, ends: [End; 2]) {
        self.note(|_| {
            let [a, b] = &ends;
            let (one, other) = (a.caller.client.0, b.caller.client.0);
            let names = (a.connection, b.connection);
            format!("connections {names:?}: clients {one} and {other} are connected")
        });
        let key = self.keys.next_key();
        let wish = ends[0].segment_bytes.max(ends[1].segment_bytes).max(1);
        let segment_bytes = wish.next_multiple_of(PAGE_BYTES);
        for (side, end) in ends.iter().enumerate() {
            let state = ConnectionState::Open(ends[1 - side].connection);
            let connection = Connection {
                client: end.caller.client,
                nic: end.nic,
                state,
            };
            self.keep_connection(end.connection, connection);
        }
        let messages = [0, 1].map(|side| {
            let (end, partner) = (&ends[side], &ends[1 - side]);
            let body = Connected {
                connection: end.connection,
                key,
                partner_nic: partner.nic,
                partner_vi: partner.vi,
                partner_pid: self
                    .clients
                    .get(&partner.caller.client)
                    .map_or(0, |c| c.pid),
                side: side as u32,
                segment_bytes,
                remote: 0,
                attributes: partner.attributes,
                remote_endpoint: 0,
                remote_host_len: 0,
                sealed: 0,
                remote_host: [0; HOST_BYTES_MAX],
                data_address: self
                    .nics
                    .get(&partner.nic)
                    .map_or(DataAddress::NONE, |nic| nic.data_address),
                seal: [0; 32],
            };
            let bytes = message::emit(Op::CONNECTED, Status::OK, end.caller.id, &body);
            let fds = self
                .nics
                .get(&partner.nic)
                .map_or_else(Vec::new, |nic| nic.fds.clone());
            Message {
                client: end.caller.client,
                bytes,
                fds,
            }
        });
        let ends = ends.map(|end| JoinEnd {
            connection: end.connection,
            call: end.caller.id,
        });
        self.outputs.push_back(Output::Join(Join {
            segment_bytes,
            messages,
            ends,
        }));
    }
}
