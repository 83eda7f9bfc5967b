//! One connection: a queue pair, its set-up by control records, and its end.
//!
//! A descriptor is a work request of the device, which reads and writes the application's memory itself. Each message
//! begins with a [`Head`] in a segment of its own, which the receiver's device puts into memory of the plug-in: immediate
//! data with and without the flag, and an RDMA Write that is in place when its notice finds no receive.
//!
//! | module | is |
//! | --- | --- |
//! | `pieces` | segments of a descriptor as segments of the device |
//! | `scratch` | heads and other words that the device uses |
//! | `request` | work requests |
//! | `send` | the send queue |
//! | `receive` | the receive queue |
//! | `copies` | Unreliable: receive buffers of the plug-in, and credits |

mod copies;
mod pieces;
mod receive;
mod request;
mod scratch;
mod send;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use vipl_abi::*;
use vipl_plugin_sdk::abi::{VIPL_LOG_WARN, vipl_connection};
use vipl_plugin_sdk::{Port, Queue};
use zerocopy::{Immutable, IntoBytes};

use crate::card::Card;
use crate::device::{Address, Completions, QueuePair};
use crate::exchange::{Exchange, Way};
use crate::ibv::*;
use crate::pages::Registered;
use crate::record::{Reason, Record, state};
use crate::tags::{Key, Tag};
use crate::watch::Watched;
use copies::Copies;
pub(crate) use pieces::DATA_MAX;
use request::Plain;
use scratch::Scratch;

/// Descriptors of a queue at the device; those posted beyond wait in the host's queue. What the device allocates for a VI
/// grows with it.
const WINDOW: u32 = 128;
/// Work requests of a send descriptor: the data, its last bytes, the notice.
const REQUESTS: u32 = 3;
/// Work requests of the plug-in's own.
const OWN: u32 = 4;
/// A port that is down for so long has lost its connections to other hosts: as long as the device would send again.
const DOWN_MAX: Duration = Duration::from_secs(4);
/// Questions to a peer on another host, two seconds apart, that may stay open before the connection is lost.
const OPEN_MAX: u32 = 4;
/// Completions taken at a time.
const BATCH: usize = 8;
/// Keys of the peer that are kept.
const KEYS: usize = 64;

/// What a message begins with.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Head {
    immediate: u32,
    /// [`FLAGGED`] and [`NOTICE`].
    flags: u32,
    /// Length of the message or of the RDMA Write.
    length: u32,
    zero: u32,
}

const HEAD: u32 = size_of::<Head>() as u32;
/// In [`Head::flags`]: the immediate data has its flag.
const FLAGGED: u32 = 1;
/// In [`Head::flags`]: the notice of an RDMA Write.
const NOTICE: u32 = 2;

/// Numbers of work requests that belong to no descriptor.
mod own {
    /// A receive: the descriptor, or the buffer of the plug-in.
    pub(super) const RECEIVE: u64 = 1 << 39;
    /// The look-up of a key.
    pub(super) const LOOKUP: u64 = 1 << 40;
    /// Credits, or a question whether the peer is there.
    pub(super) const OTHER: u64 = 1 << 41;
}

/// A send descriptor at the device.
#[derive(Clone, Copy, Default)]
struct Sent {
    opcode: u32,
    /// It takes a receive descriptor of the peer.
    notice: bool,
    /// It is an RDMA Write with immediate data.
    flagged: bool,
}

/// A receive descriptor at the device.
#[derive(Clone, Copy, Default)]
struct Posted {
    /// It is not in order, or was cut at the end of a region: its completion checks it again.
    suspect: bool,
}

/// The look-up of a key of the peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lookup {
    None,
    Asked,
    /// The key of this handle has arrived.
    Found(u32),
}

/// A connection.
pub(crate) struct Link {
    pair: QueuePair,
    tag: Arc<Tag>,
    exchange: Exchange,
    watched: Arc<Watched>,
    own: Record,
    peer: Record,
    address: Address,
    gid_index: Option<u8>,
    /// Both sides receive.
    up: bool,
    /// The queue pair has ended, here or at the peer.
    ended: bool,
    /// Descriptors given to the device, counted as `Port::posted`.
    sent: u32,
    received: u32,
    /// Sends that took a receive descriptor of the peer, and are complete.
    messages: u32,
    /// Messages that have taken a receive descriptor of this side.
    delivered: u32,
    sends: [Sent; WINDOW as usize],
    receives: [Posted; WINDOW as usize],
    /// Room for completions of the device. It is not on the stack, where each poll would have to clear it.
    done: [ibv_wc; BATCH],
    scratch: Scratch,
    /// The request of the usual descriptor.
    plain: Plain,
    /// Buffers of descriptors with more segments than the device has, by the queue and the number.
    bounces: BTreeMap<(bool, u32), Registered>,
    lookup: Lookup,
    keys: Box<[Key]>,
    /// The device does not promise that the last bytes of an RDMA Write become visible last.
    splits: bool,
    /// Segments of the device for the data of a message.
    room: usize,
    peer_admits_write: bool,
    peer_admits_read: bool,
    /// On Unreliable.
    copies: Option<Copies>,
    /// Refusals of the peer's RDMA that have been reported.
    refused: u32,
    /// Questions that the peer has left open, whether it receives or why it has ended.
    open: u32,
}

impl Link {
    /// A new connection, whose receives are posted and whose record is published.
    pub(crate) fn new(
        card: &Card,
        port: &Port,
        connection: &vipl_connection,
        way: Way,
    ) -> io::Result<Link> {
        let tag = card.tags.get(&card.device, port.ptag())?;
        let number = port.index();
        let work = REQUESTS * WINDOW + OWN;
        let room = card.segments;
        let cap = ibv_qp_cap {
            max_send_wr: work,
            max_recv_wr: WINDOW,
            max_send_sge: room as u32 + 1,
            max_recv_sge: room as u32 + 1,
            max_inline_data: 8,
        };
        let is_unreliable = !port.is_reliable();
        let mut access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
        // Credits are written by RDMA.
        if port.rdma_write() || is_unreliable {
            access |= IBV_ACCESS_REMOTE_WRITE;
        }
        let queue = Completions::new(&card.shared.channel, work + WINDOW, number).map(Arc::new)?;
        let pair = QueuePair::new(tag.domain(), queue.clone(), cap, card.port, access)?;
        let address = Address {
            queue_pair: pair.number(),
            packet: (connection.key >> (24 * (connection.side & 1))) as u32 & 0xff_ffff,
            ..card.address
        };
        let mut own = Record::default();
        own.set_address(&address);
        (own.table, own.table_key) = tag.table();
        own.state = state::READY;
        let copies = match is_unreliable {
            true => Some(Copies::new(&tag, port.max_transfer(), &pair)?),
            false => None,
        };
        if let Some(copies) = &copies {
            (own.credit, own.credit_key) = copies.credit_word();
        }
        let scratch = Scratch::new(&tag)?;
        let mut link = Link {
            splits: !pair.is_in_order(),
            plain: Plain::new(scratch.head(0)),
            scratch,
            pair,
            tag,
            exchange: Exchange::new(way.clone()),
            watched: Arc::new(Watched::new(number, queue, way, card.shared.notice.clone())),
            own,
            peer: Record::default(),
            address,
            gid_index: card.gid_index,
            up: false,
            ended: false,
            sent: port.completed(Queue::Send),
            received: port.completed(Queue::Recv),
            messages: 0,
            delivered: 0,
            sends: [Sent::default(); WINDOW as usize],
            receives: [Posted::default(); WINDOW as usize],
            done: [zeroed(); BATCH],
            bounces: BTreeMap::new(),
            lookup: Lookup::None,
            keys: vec![Key::default(); KEYS].into(),
            room,
            peer_admits_write: connection.peer_rdma_write != 0,
            peer_admits_read: connection.peer_rdma_read != 0,
            copies,
            refused: 0,
            open: 0,
        };
        link.post_receives(port);
        link.exchange.publish(&link.own);
        Ok(link)
    }

    /// How the records travel.
    pub(crate) fn way(&self) -> &Way {
        self.exchange.way()
    }

    /// What the thread needs.
    pub(crate) fn watched(&self) -> &Arc<Watched> {
        &self.watched
    }

    /// Continues: set-up, messages that have arrived, sends, the peer's end.
    #[inline(always)]
    pub(crate) fn progress(&mut self, card: &Card, port: &Port) {
        if let Some(record) = self.exchange.update() {
            self.peer = record;
            self.advance(port);
        }
        if self.watched.is_time_to_ask() {
            self.ask_peer(card, port);
        }
        self.take(port);
        self.post_sends(port);
        if self.peer.state == state::CLOSED && port.is_connected() {
            self.end(port, Reason::of(self.peer.reason));
        }
        if !port.is_connected() {
            self.close(Reason::Lost);
        }
    }

    /// Sets the connection up as far as the peer's record permits, and reports what the peer has had refused.
    #[cold]
    fn advance(&mut self, port: &Port) {
        if self.own.state == state::READY
            && matches!(self.peer.state, state::READY | state::RECEIVING)
        {
            let peer = self.peer.address();
            if let Err(error) = self.pair.connect(&self.address, &peer, self.gid_index) {
                crate::say(
                    VIPL_LOG_WARN,
                    &format!("the device cannot connect a queue pair: {error}"),
                );
                self.close(Reason::Lost);
                return port.lose(false);
            }
            self.own.state = state::RECEIVING;
            self.exchange.publish(&self.own);
        }
        // A send that arrives before the peer receives would cost a timeout.
        self.up = self.own.state >= state::RECEIVING && self.peer.state >= state::RECEIVING;
        self.report_refused(port);
    }

    /// Unreliable: the peer's RDMA Writes that were refused, of which only the peer knows.
    fn report_refused(&mut self, port: &Port) {
        while self.refused != self.peer.refused && port.is_connected() && self.copies.is_some() {
            let plain = (self.refused ^ self.peer.refused) & 0xffff != 0;
            self.refused = match plain {
                true => self.refused & !0xffff | self.refused.wrapping_add(1) & 0xffff,
                false => self.refused.wrapping_add(1 << 16),
            };
            self.take(port);
            let opcode = VIP_STATUS_OP_REMOTE_RDMA_WRITE;
            if !plain && port.oldest(Queue::Recv).is_some() {
                port.refuse(Queue::Recv, VIP_STATUS_RDMA_PROT_ERROR | opcode);
            } else {
                port.raise(VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT, opcode);
            }
        }
    }

    /// Takes completions of the device.
    #[inline(always)]
    fn take(&mut self, port: &Port) {
        while port.is_connected() {
            if self.received != port.posted(Queue::Recv) {
                self.post_more_receives(port);
            }
            let count = self.pair.poll(&mut self.done);
            let mut place = 0;
            while (place as i32) < count && place < BATCH && port.is_connected() {
                let done = &self.done[place];
                if done.wr_id <= u32::MAX.into() && done.status == IBV_WC_SUCCESS {
                    self.complete_send(port);
                } else {
                    self.take_other(port, place);
                }
                place += 1;
            }
            if count < BATCH as i32 {
                break;
            }
        }
        if self.copies.is_some() {
            self.give_credits(port);
        }
    }

    /// Takes a completion that is not that of a send which has succeeded. A function of its own, as the next one, so that sends
    /// need not save the registers that it uses.
    #[inline(never)]
    fn take_other(&mut self, port: &Port, place: usize) {
        let ibv_wc {
            wr_id,
            status,
            byte_len,
            ..
        } = self.done[place];
        if wr_id & own::RECEIVE == 0 {
            self.take_send(port, wr_id, status);
        } else if self.copies.is_none() {
            self.take_receive(port, status, byte_len);
        } else {
            self.take_copy(port, wr_id as u32, status, byte_len);
        }
    }

    #[inline(never)]
    fn post_more_receives(&mut self, port: &Port) {
        self.post_receives(port);
    }

    /// Asks the device of a peer on another host whether it is there, by a Write of nothing, or by a Read where the peer
    /// admits no Writes: a host that has vanished sends no notice. Also gives up when the own port is down, for which rxe
    /// does not count retries, and when the peer's record does not come; this also on one host.
    #[cold]
    fn ask_peer(&mut self, card: &Card, port: &Port) {
        if self.own.state == state::CLOSED || !port.is_connected() {
            return self.watched.settle();
        }
        let is_remote = matches!(self.way(), Way::Remote(_));
        let is_down = is_remote && card.shared.down_for() > DOWN_MAX;
        if is_down {
            crate::say(
                VIPL_LOG_WARN,
                "the port of the RDMA device is down; a connection to another host is lost",
            );
        }
        self.open = match self.up && !self.ended {
            true => 0,
            false => self.open + 1,
        };
        if is_down || self.open > OPEN_MAX {
            self.close(Reason::Lost);
            return port.lose(false);
        }
        if self.open > 0 {
            return;
        }
        let admits_write = self.peer_admits_write || self.copies.is_some();
        let mut work = ibv_send_wr {
            wr_id: own::OTHER,
            opcode: if admits_write {
                IBV_WR_RDMA_WRITE
            } else {
                IBV_WR_RDMA_READ
            },
            send_flags: IBV_SEND_SIGNALED,
            ..zeroed()
        };
        // SAFETY: one request without segments. Without room for it there is traffic that asks as well.
        let _ = unsafe { self.pair.post_send(&mut work) };
    }

    /// The device has ended the queue pair. Why, the peer says, or another completion. If neither does, since a port went down for
    /// a moment, the connection is lost in the end.
    #[cold]
    fn doubt(&mut self) {
        self.ended = true;
        if self.own.state != state::CLOSED {
            self.watched.doubt();
        }
    }

    /// Ends this side, and tells the peer why, once.
    #[cold]
    pub(crate) fn close(&mut self, reason: Reason) {
        if self.own.state == state::CLOSED {
            return;
        }
        self.own.taken = self.delivered;
        self.own.reason = reason.word();
        self.own.state = state::CLOSED;
        self.exchange.publish(&self.own);
        self.pair.stop();
        self.ended = true;
    }

    /// The peer has ended and has said why. It has taken so many messages: their sends are complete, whatever the device
    /// says.
    #[cold]
    fn end(&mut self, port: &Port, reason: Reason) {
        self.take(port);
        while port.is_connected()
            && port.completed(Queue::Send) != self.sent
            && self.peer.taken.wrapping_sub(self.messages) as i32 > 0
        {
            self.complete_send(port);
        }
        if !port.is_connected() {
            return;
        }
        self.pair.stop();
        self.ended = true;
        let fail =
            |code: VIP_ERROR_CODE, opcode| port.fail(code as i32, opcode, std::ptr::null_mut());
        match reason {
            Reason::Left => port.lose(true),
            Reason::Lost => port.lose(false),
            Reason::NoReceive => fail(VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY, VIP_STATUS_OP_RECEIVE),
            Reason::BadReceive => match self.oldest_sent(port) {
                Some(sent) => port.refuse(Queue::Send, unreceived(port) | sent.opcode),
                None => port.lose(false),
            },
            Reason::Refused { notice: true, .. } if port.oldest(Queue::Recv).is_some() => {
                let status = VIP_STATUS_RDMA_PROT_ERROR | VIP_STATUS_OP_REMOTE_RDMA_WRITE;
                port.refuse(Queue::Recv, status);
            }
            Reason::Refused {
                opcode: VIP_STATUS_OP_RDMA_READ,
                ..
            } => {
                fail(
                    VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT,
                    VIP_STATUS_OP_RDMA_READ,
                );
            }
            Reason::Refused { .. } => {
                fail(
                    VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT,
                    VIP_STATUS_OP_REMOTE_RDMA_WRITE,
                );
            }
        }
    }

    /// The agent says that the peer has gone. Its own word counts more, if it has left one.
    pub(crate) fn peer_gone(&mut self, card: &Card, port: &Port, orderly: bool) {
        self.progress(card, port);
        if port.is_connected() {
            let reason = if orderly { Reason::Left } else { Reason::Lost };
            self.end(port, reason);
            self.close(Reason::Lost);
        }
    }

    /// Completes what has arrived, and tells the peer that this side has left.
    pub(crate) fn leave(&mut self, port: &Port) {
        self.take(port);
        self.close(Reason::Left);
    }
}

/// Status of a send that the peer could not receive (E6 to E8), without the operation.
fn unreceived(port: &Port) -> u32 {
    match port.reliability() {
        VIP_SERVICE_RELIABLE_RECEPTION => VIP_STATUS_REMOTE_DESC_ERROR,
        _ => VIP_STATUS_TRANSPORT_ERROR,
    }
}
