//! The connection of one VI: the engine, and all that serves it.
//!
//! ```text
//!   connection             open, post_send, coalescing, the end of each operation, retire
//!   connection::progress   frames that have arrived, acknowledgements, timers
//! ```

mod progress;

use std::sync::Arc;

use vipl_link_emulator::LinkEmulator;
use vipl_netio::peer::PeerProcess;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::shm::Mapping;
use vipl_plugin_sdk::{Host, Port, Queue, descriptor};
use vipl_wire::{
    ACK_DELAY_NS, Config, Connection, Level, PATIENCE_NS, PartKind, Reason, key_check,
};

use crate::carrier::Carrier;
use crate::device::{Device, count};
use crate::env;
use crate::local::Local;
use crate::moving::Moving;
use crate::segment::{SEGMENT, Segment};

/// Silence after which a peer on this host is dead, in nanoseconds. The agent reports the exit of its process at once, so
/// a silent peer lacks a processor.
const PATIENCE_HERE_NS: u64 = 60_000_000_000;
/// When to retry after the device was full, in nanoseconds.
const RETRY_NS: u64 = 1_000_000;

/// The connection of a VI.
pub(crate) struct ViConnection {
    device: Arc<Device>,
    engine: Connection,
    carrier: Carrier,
    /// This side's VI number.
    index: u32,
    /// Key check in the peer's frames.
    check: u64,
    /// The peer process, if it is on another host.
    peer: Option<Arc<PeerProcess>>,
    /// Buffer for a frame from a peer on this host.
    frame: Vec<u8>,
    /// Frames sent again that have been added to the counter.
    counted: u64,
    /// Repeated retransmission timeouts that have been noticed. A single one often means that a process had no processor.
    timeouts: u64,
    /// Frames are sealed, and the peer is followed to another address.
    follows: bool,
    moving: Moving,
    /// Frames go to another host through a doorbell that waits for bursts.
    may_coalesce: bool,
    /// Bytes of the messages that wait in the send queue for a full frame. `None`: the next post makes a frame.
    coalesced: Option<usize>,
    /// Polls that have found nothing since the clock was read.
    empty_polls: u32,
}

impl ViConnection {
    /// Opens the VI's end of a connection.
    ///
    /// # Errors
    /// An address or a segment is invalid, or the system refuses to map the segment.
    pub(crate) fn open(
        device: &Arc<Device>,
        port: &Port,
        connection: &vipl_connection,
    ) -> std::io::Result<Box<ViConnection>> {
        let index = port.index();
        let is_remote = connection.remote != 0;
        let (mut shared_path, mut datagrams) = (false, false);
        let (carrier, peer) = match &device.uplink {
            _ if !is_remote => {
                let local = local(device, index, connection)?;
                (Carrier::local(local, device.local_mtu()), None)
            }
            Some(uplink) => {
                let length = usize::from(connection.remote_address_len);
                let host = connection.remote_address.get(..length).unwrap_or_default();
                let endpoint = connection.remote_endpoint;
                let header = uplink.medium.header(host, endpoint)?;
                datagrams = uplink.medium.is_udp();
                shared_path = uplink.medium.is_shared(host);
                if shared_path {
                    uplink.doorbell.mark(true);
                }
                let peer = device.peers.of(host, endpoint);
                // Without acknowledgements it would not be noticed that trains do not arrive.
                let reliable = Level::of(port.reliability()) != Level::Unreliable;
                let train_mtu = uplink.train_mtu.filter(|_| reliable);
                let trains = train_mtu.map(|longest| (longest, header.in_trains(endpoint)));
                let carrier = Carrier::remote(&uplink.doorbell, header, device.mtu, trains);
                (carrier, Some(peer))
            }
            None => return Err(std::io::Error::other("there is no interface")),
        };
        let now_ns = Host::get().now_ns();
        let config = Config {
            key: connection.key,
            side: connection.side,
            level: Level::of(port.reliability()),
            mtu: carrier.mtu() as u16,
            max_transfer: port.max_transfer().min(u64::from(u32::MAX)) as u32,
            own_vi: index,
            peer_vi: connection.peer_vi,
            own_endpoint: device.uplink.as_ref().map_or(0, |uplink| uplink.endpoint),
            peer_endpoint: connection.remote_endpoint,
            carry_immediate: port.options() & VIPL_OPTION_CARRY_IMMEDIATE != 0,
            ack_delay_ns: ACK_DELAY_NS,
            patience_ns: if is_remote {
                PATIENCE_NS
            } else {
                PATIENCE_HERE_NS
            },
            now_ns,
            count_from: vipl_sys::wrap::start(0),
            shared_path,
            seal: (is_remote && connection.sealed != 0).then_some(connection.seal),
        };
        let follows = datagrams && config.seal.is_some();
        let check = key_check(connection.key, connection.side ^ 1);
        let engine = Connection::new(&config);
        device.inbox(index).admit(check, follows);
        device.schedule.set_connected(index, true);
        device.set_deadline(index, engine.deadline(), now_ns);
        Ok(Box::new(ViConnection {
            device: device.clone(),
            engine,
            may_coalesce: carrier.collects(),
            carrier,
            index,
            check,
            peer,
            frame: Vec::new(),
            counted: 0,
            timeouts: 0,
            follows,
            moving: Moving::new(),
            coalesced: None,
            empty_polls: 0,
        }))
    }

    /// The send doorbell.
    #[inline(always)]
    pub(crate) fn post_send(&mut self, port: &Port) {
        self.device.watch.note_application();
        if !self.coalesces(port) {
            self.send(port);
        }
    }

    /// Sends what was posted. The clock is read when the first frame has left.
    #[inline(always)]
    fn send(&mut self, port: &Port) {
        let urgent = self.may_coalesce && self.engine.is_quiet();
        let alone = self.carrier.uses_trains() && self.engine.is_quiet();
        let out = self.carrier.transmitter(None, urgent).begins(alone);
        let mut call = env::call(port, &self.device, out, self.peer.as_deref());
        self.engine.posted(0, &mut call);
        let now = call.out.time();
        drop(call);
        self.device.schedule.note_posted(self.index, now);
        self.finish(now, self.engine.deadline());
    }

    /// Whether the message that was just posted stays in the send queue for now.
    #[inline(always)]
    fn coalesces(&mut self, port: &Port) -> bool {
        if !self.may_coalesce {
            return false;
        }
        let Some(bytes) = self.coalesced else {
            self.coalesced = Some(0);
            return false;
        };
        let newest = port.outstanding(Queue::Send, port.posted(Queue::Send).wrapping_sub(1));
        let message = newest
            .and_then(|entry| descriptor::length(&entry))
            .map_or(self.carrier.mtu(), |bytes| bytes as usize);
        let part = PartKind::Send.header() + message;
        let together = bytes + part;
        // A frame without room for another message of this size counts as full.
        let full = together + part > self.engine.room();
        if full || !self.device.coalescing.begin(self.index) {
            self.stop_coalescing();
            self.coalesced = Some(0);
            return false;
        }
        if bytes == 0 {
            let now = Host::get().now_ns();
            let deadline = self.engine.deadline().min(now + RETRY_NS);
            self.device.set_deadline(self.index, deadline, now);
        }
        self.coalesced = Some(together);
        true
    }

    /// Stops coalescing. True: messages wait in the send queue and must be sent now.
    #[inline(always)]
    fn stop_coalescing(&mut self) -> bool {
        let some = self.coalesced.take().is_some_and(|bytes| bytes > 0);
        if some {
            self.device.coalescing.end();
        }
        some
    }

    /// Ends an operation; `deadline` is the engine's. Returns when the connection must be served.
    #[inline(always)]
    fn finish(&mut self, now: u64, mut deadline: u64) -> u64 {
        self.carrier.finish(now);
        if let Some(due) = self.carrier.deadline() {
            deadline = deadline.min(due);
        }
        deadline = deadline.min(self.moving.deadline());
        let waits = self.device.doorbell().is_some_and(|bell| bell.waits());
        if waits || self.engine.is_blocked() {
            deadline = deadline.min(now + RETRY_NS);
        }
        self.device.set_deadline(self.index, deadline, now);
        let sent_again = self.engine.stats().sent_again;
        if sent_again != self.counted {
            self.count_sent_again(sent_again, now);
        }
        deadline
    }

    #[cold]
    fn count_sent_again(&mut self, sent_again: u64, now: u64) {
        count(self.device.counters.sent_again, sent_again - self.counted);
        self.counted = sent_again;
        let timeouts = self.engine.stats().repeated_timeouts;
        if timeouts != self.timeouts
            && let Some(trains) = self.carrier.trains()
        {
            trains.stop(now);
        }
        self.timeouts = timeouts;
    }

    /// The agent reports that the peer has closed or exited. Frames that have arrived still count; the engine waits a
    /// moment for those on their way.
    pub(crate) fn peer_gone(&mut self, port: &Port, orderly: bool) {
        self.progress(port);
        if port.is_connected() {
            let now = Host::get().now_ns();
            let out = self.carrier.transmitter(Some(now), false);
            let mut call = env::call(port, &self.device, out, self.peer.as_deref());
            self.engine.peer_gone(orderly, now, &mut call);
            drop(call);
            self.finish(now, self.engine.deadline());
        }
    }

    /// Closes the connection on this side. The lingering close needs no VI.
    pub(crate) fn retire(mut self: Box<Self>, reason: Reason) {
        let now = Host::get().now_ns();
        self.stop_coalescing();
        self.device.inbox(self.index).dismiss();
        self.device.schedule.set_connected(self.index, false);
        let device = self.device;
        // It repeats its last frame until that is answered, and asks no more whether trains arrive.
        if let Some(trains) = self.carrier.trains() {
            trains.stop(now);
        }
        let mut out = self.carrier.transmitter(Some(now), false);
        let closing = self.engine.close(reason, now, &mut out);
        drop(out);
        self.carrier.finish(now);
        device.ring();
        let deadline = device.lingering.add(closing, self.carrier);
        device.watch.expect(&device.bell, deadline);
    }
}

/// The way to a peer on this host.
fn local(device: &Device, index: u32, connection: &vipl_connection) -> std::io::Result<Local> {
    if (connection.segment_bytes as usize) < SEGMENT {
        return Err(std::io::Error::other("the segment is too small"));
    }
    let segment = Mapping::open(connection.segment_fd, SEGMENT, true)?;
    let bell = device.peer_bell(connection.peer_nic, connection.peer_fds)?;
    // Distinguishes this direction from all others, and is the same in every run.
    let direction =
        u64::from(connection.side) << 32 | u64::from(index) << 16 | u64::from(connection.peer_vi);
    let emulated = device.impairments.as_ref();
    let emulated = emulated.map(|impairments| LinkEmulator::new(impairments, direction));
    let segment = Segment::new(segment, connection.side);
    Ok(Local::new(segment, bell, connection.peer_vi, emulated))
}
