//! The target's side of RDMA that goes through the ring.

use vipl_abi::*;
use vipl_guard::Segment;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::descriptor;
use vipl_plugin_sdk::{Port, Queue};

use crate::cm::Closed;
use crate::link::{Link, Serving};
use crate::progress::{CONN_LOST, Taken};
use crate::ring::{Arrival, Extra, PIECE, flag, op};
use crate::segments::scatter;

impl Link {
    /// The target's side of an RDMA Read.
    #[cold]
    pub(crate) fn read_asked(&mut self, port: &Port, arrival: &Arrival) {
        let extra = arrival.extra();
        let permitted = self.serving.is_none()
            && port.rdma_read()
            && is_target(port, &extra, arrival.length, VIPL_REGION_RDMA_READ);
        if !permitted {
            let cause = VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT as i32;
            return self.die(port, Closed::TARGET_REFUSED, cause, VIP_STATUS_OP_RDMA_READ);
        }
        self.serving = Some(Box::new(Serving {
            address: extra.address,
            handle: extra.handle,
            length: arrival.length,
            offset: 0,
        }));
    }

    /// Sends data that the partner asked for, as far as there is room.
    #[cold]
    pub(crate) fn serve_read(&mut self, port: &Port) {
        while let Some(serving) = &self.serving {
            let (offset, total) = (serving.offset, serving.length);
            let whole = Segment {
                address: serving.address,
                handle: serving.handle,
                length: total,
            };
            let extra = Extra {
                address: serving.address,
                handle: serving.handle,
                ..Extra::default()
            };
            let bytes = (total - offset).min(PIECE);
            // The region may have gone since the last piece.
            let permitted = is_target(port, &extra, total, VIPL_REGION_RDMA_READ);
            let piece = Extra {
                offset,
                bytes,
                ..Extra::default()
            };
            let put = if permitted {
                self.put_piece(&[whole], total, piece)
            } else {
                Some(Err(vipl_guard::Fault))
            };
            match put {
                None => return,
                Some(Err(_)) => {
                    self.serving = None;
                    let cause = VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT as i32;
                    return self.die(port, Closed::TARGET_REFUSED, cause, VIP_STATUS_OP_RDMA_READ);
                }
                Some(Ok((flags, place))) => {
                    self.publish_slot(port, op::DATA, flags, total, 0, place);
                    self.wake_partner();
                }
            }
            if offset + bytes == total {
                self.serving = None;
            } else if let Some(serving) = &mut self.serving {
                serving.offset += bytes;
            }
        }
    }

    /// A piece of an RDMA Write for this side. False: the connection has ended.
    #[cold]
    pub(crate) fn write_arrived(&mut self, port: &Port, arrival: &Arrival) -> bool {
        let extra = arrival.extra();
        if arrival.flags & flag::FIRST != 0 {
            let permitted = arrival.length == 0
                || (port.rdma_write()
                    && is_target(port, &extra, arrival.length, VIPL_REGION_RDMA_WRITE));
            self.writing = Some(permitted);
        }
        if arrival.flags & flag::ABORTED != 0 {
            self.writing = None;
            let code = VIP_ERROR_CODE::VIP_ERROR_RDMAW_ABORT;
            port.raise(code, VIP_STATUS_OP_REMOTE_RDMA_WRITE);
            return true;
        }
        let end = u64::from(extra.offset) + u64::from(extra.bytes);
        let from = self.ends.payload_in(arrival.payload, extra.bytes);
        let (Some(from), Some(permitted), true) =
            (from, self.writing, end <= u64::from(arrival.length))
        else {
            self.die(port, Closed::LOST, CONN_LOST, 0);
            return false;
        };
        let target = Segment {
            address: extra.address,
            handle: extra.handle,
            length: arrival.length,
        };
        let placed = permitted
            && (arrival.length == 0
                || (port.rdma_write()
                    && is_target(port, &extra, arrival.length, VIPL_REGION_RDMA_WRITE)
                    && scatter(&[target], extra.offset, from, extra.bytes)));
        if !placed {
            self.writing = Some(false);
        }
        if arrival.flags & flag::LAST == 0 {
            return true;
        }
        self.writing = None;
        if arrival.flags & flag::IMMEDIATE != 0 {
            let refused = if placed { 0 } else { flag::REFUSED };
            return self.placed(port, arrival, refused);
        }
        placed || self.refuse_write(port)
    }

    /// The immediate data of an RDMA Write uses one receive descriptor (spec §5.5). False: it ended.
    #[cold]
    pub(crate) fn placed(&mut self, port: &Port, arrival: &Arrival, refused: u8) -> bool {
        if u64::from(arrival.length) > port.max_transfer() {
            return matches!(self.nonsense(port), Taken::Yes);
        }
        let number = port.completed(Queue::Recv);
        if number == port.posted(Queue::Recv) {
            if refused != 0 {
                return self.refuse_write(port);
            }
            return matches!(self.nothing_posted(port), Taken::Yes);
        }
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Recv, number) };
        if let Err(fault) = descriptor::incoming(port, &entry, None) {
            return matches!(self.cannot_receive(port, fault.status, 0), Taken::Yes);
        }
        let opcode = VIP_STATUS_OP_REMOTE_RDMA_WRITE;
        if refused == 0 {
            return matches!(self.received(port, arrival, opcode), Taken::Yes);
        }
        let status = VIP_STATUS_RDMA_PROT_ERROR | opcode;
        if !port.complete(Queue::Recv, status, Some((0, arrival.immediate))) {
            self.broken(port);
            return false;
        }
        if !port.is_reliable() {
            return true;
        }
        self.die(port, Closed::TARGET_REFUSED, VIPL_CAUSE_REPORTED, 0);
        false
    }

    /// E9 at the target.
    #[cold]
    pub(crate) fn refuse_write(&mut self, port: &Port) -> bool {
        let code = VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT;
        if !port.is_reliable() {
            port.raise(code, VIP_STATUS_OP_REMOTE_RDMA_WRITE);
            return true;
        }
        let opcode = VIP_STATUS_OP_REMOTE_RDMA_WRITE;
        self.die(port, Closed::TARGET_REFUSED, code as i32, opcode);
        false
    }
}

/// Whether a range of this side may be the target of RDMA.
pub(crate) fn is_target(port: &Port, extra: &Extra, length: u32, flag: u32) -> bool {
    port.regions().is_remote(
        extra.handle,
        vipl_guard::own_address(extra.address),
        length.into(),
        port.ptag(),
        flag,
    )
}
