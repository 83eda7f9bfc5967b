//! The connection of one VI: what each operation on it does.

use std::sync::Arc;

use vipl_link_emulator::LinkEmulator;
use vipl_netio::peer::PeerProcess;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::shm::Mapping;
use vipl_plugin_sdk::{Host, Port, Queue, descriptor};
use vipl_wire::{
    ACK_DELAY_NS, Config, Connection, Level, PROBES, PartKind, Reason, Received, Refused, key_check,
};

use crate::carrier::Carrier;
use crate::device::{Device, count};
use crate::env::{self, ViCall};
use crate::local::Local;
use crate::moving::Moving;
use crate::segment::{SEGMENT, Segment};

/// Unanswered PROBEs after which a peer on this host is dead. The agent reports the death of its process at once, so a
/// silent peer lacks a processor; after a minute it is given up.
const PROBES_HERE: u32 = 58;
/// When to try again after the device was full, in nanoseconds.
const RETRY_NS: u64 = 1_000_000;
/// Frames from a peer on this host that one operation takes.
const LOOK_FRAMES: u32 = 64;
/// Frames from a peer on this host that are taken before a deadline counts: more than can wait from a peer that
/// respects the window.
const WAITING_FRAMES: u32 = 512;
/// Polls that find nothing to do before one reads the clock, for the deadlines and for the watch thread.
const GLANCES: u32 = 8;

/// The connection of a VI, with all that serves it.
pub(crate) struct Connected {
    device: Arc<Device>,
    pub(crate) connection: Connection,
    carrier: Carrier,
    /// This side's VI number.
    pub(crate) index: u32,
    /// Key check in the peer's frames.
    pub(crate) check: u64,
    /// The peer process, on another host.
    peer: Option<Arc<PeerProcess>>,
    /// The last frame from a peer on this host.
    frame: Vec<u8>,
    /// Frames sent again that have been added to the counter.
    counted: u64,
    /// Frames have seals, and the peer is followed to another address.
    pub(crate) follows: bool,
    moving: Moving,
    /// Frames go to another host through a doorbell that waits for bursts.
    may_coalesce: bool,
    /// Bytes of the messages that wait in the send queue for a full frame. `None`: the next post makes a frame.
    coalesced: Option<usize>,
    /// Polls since the clock was read.
    glances: u32,
}

impl Connected {
    pub(crate) fn new(
        device: &Arc<Device>,
        port: &Port,
        connection: &vipl_connection,
    ) -> std::io::Result<Box<Connected>> {
        let index = port.index();
        let mut shared_path = false;
        let (carrier, peer) = match &device.uplink {
            _ if connection.remote == 0 => {
                let local = local(device, index, connection)?;
                (Carrier::local(local, device.local_mtu()), None)
            }
            Some(uplink) => {
                let length = usize::from(connection.remote_address_len);
                let host = connection.remote_address.get(..length).unwrap_or_default();
                let endpoint = connection.remote_endpoint;
                let header = uplink.medium.header(host, endpoint)?;
                shared_path = uplink.medium.is_shared(host);
                if shared_path {
                    uplink.doorbell.mark(true);
                }
                let peer = device.peers.of(host, endpoint);
                let carrier = Carrier::remote(&uplink.doorbell, header, device.mtu);
                (carrier, Some(peer))
            }
            None => return Err(std::io::Error::other("there is no interface")),
        };
        let may_coalesce = carrier.collects();
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
            probes_max: match connection.remote {
                0 => PROBES_HERE,
                _ => PROBES,
            },
            now_ns: Host::get().now_ns(),
            count_from: vipl_sys::wrap::start(0),
            shared_path,
            seal: (connection.remote != 0 && connection.sealed != 0).then_some(connection.seal),
        };
        let datagrams = matches!(&device.uplink, Some(uplink) if uplink.medium.is_udp());
        let follows = datagrams && config.seal.is_some();
        Ok(Box::new(Connected {
            device: device.clone(),
            connection: Connection::new(&config),
            carrier,
            index,
            check: key_check(connection.key, connection.side ^ 1),
            peer,
            frame: Vec::new(),
            counted: 0,
            follows,
            moving: Moving::new(),
            may_coalesce,
            coalesced: None,
            glances: 0,
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
        let urgent = self.may_coalesce && self.connection.is_quiet();
        let out = self.carrier.transmitter(None, urgent);
        let mut env = env::call(port, &self.device, out, self.peer.as_deref());
        self.connection.posted(0, &mut env);
        let now = env.out.time();
        drop(env);
        self.device.schedule.note_posted(self.index, now);
        self.finish(now, self.connection.deadline());
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
        let full = together + part > self.connection.room();
        if full || !self.device.coalescing.begin(self.index) {
            self.stop_coalescing();
            self.coalesced = Some(0);
            return false;
        }
        if bytes == 0 {
            let now = Host::get().now_ns();
            let deadline = self.connection.deadline().min(now + RETRY_NS);
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

    /// Whether a poll need not even read the clock: no frame is there, none is to be sent, and a poll a moment ago has
    /// looked at the deadlines. The sooner such a poll is over, the sooner the next one sees a frame. Prefetches a
    /// frame that has arrived.
    #[inline(always)]
    fn finds_nothing(&mut self) -> bool {
        let device = &*self.device;
        let (Some(uplink), true) = (&device.uplink, self.peer.is_some()) else {
            return false;
        };
        if self.coalesced.is_none_or(|bytes| bytes == 0) {
            self.coalesced = None;
            uplink.doorbell.ring();
        }
        let nothing = !uplink.inlet.finds_frame()
            && !device.inbox(self.index).is_filled()
            && !uplink.doorbell.waits()
            && self.coalesced.is_none()
            && !device.coalescing.is_untold(self.index)
            && !self.connection.is_blocked()
            && !self.connection.ack_owed()
            && self.glances < GLANCES
            // It comes when something is due.
            && !device.watch.serves(self.index);
        self.glances = if nothing { self.glances + 1 } else { 0 };
        nothing
    }

    /// Takes the frames that have arrived, and does what is due.
    #[inline(always)]
    pub(crate) fn progress(&mut self, port: &Port) {
        self.device.watch.note_application();
        // Prefetches a waiting frame while the clock is read.
        if self.finds_nothing() {
            return;
        }
        let now = Host::get().now_ns();
        let waiting = self.stop_coalescing();
        let device = &*self.device;
        let by_application = !device.watch.serves(self.index);
        if by_application {
            device.schedule.begin_to_serve(self.index, now);
        }
        device.hand_over_coalescing(self.index);
        let connection = &mut self.connection;
        let out = self.carrier.transmitter(Some(now), false);
        let mut env = env::call(port, device, out, self.peer.as_deref());
        if waiting {
            connection.posted(now, &mut env);
            env.out.hand_over();
        }
        if let Some(doorbell) = device.doorbell() {
            doorbell.ring();
        }
        let mut frames = 0u32;
        let (follows, moving) = (self.follows, &mut self.moving);
        device.receive(self.index, self.check, |frame, marked, from| {
            frames += 1;
            let received = take(device, connection, (frame, marked), now, &mut env);
            if follows && received == Received::Taken {
                moving.heard(connection, (frame, from()), now, &mut env);
            }
        });
        let mut invalid = false;
        for _ in 0..LOOK_FRAMES {
            match env.out.carrier.take(&mut self.frame) {
                Ok(true) => {
                    frames += 1;
                    take(device, connection, (&self.frame, false), now, &mut env);
                }
                Ok(false) => break,
                Err(_) => {
                    invalid = true;
                    break;
                }
            }
        }
        if invalid {
            // The peer has damaged the shared segment: it loses this connection, and nothing else.
            connection.peer_gone(false, now, &mut env);
        }
        if frames > 0 {
            device.watch.note_arrival();
        } else if connection.ack_owed() {
            // No more frames, and the application has posted nothing that could carry the acknowledgement.
            connection.flush_acks(now, &mut env);
        }
        if frames > 0 || connection.is_blocked() {
            connection.flush(now, &mut env);
        }
        let mut deadline = connection.deadline();
        if deadline <= now {
            // All frames that have arrived count before the deadline does.
            let all = match self.peer {
                Some(_) => device.catch_up(self.index, self.check, |frame, marked, from| {
                    let received = take(device, connection, (frame, marked), now, &mut env);
                    if follows && received == Received::Taken {
                        moving.heard(connection, (frame, from()), now, &mut env);
                    }
                }),
                None => {
                    for _ in 0..WAITING_FRAMES {
                        let Ok(true) = env.out.carrier.take(&mut self.frame) else {
                            break;
                        };
                        take(device, connection, (&self.frame, false), now, &mut env);
                    }
                    true
                }
            };
            if all {
                connection.timeout(now, &mut env);
                deadline = connection.deadline();
            } else {
                deadline = now + RETRY_NS;
            }
        }
        if moving.deadline() <= now {
            moving.go_on(connection, now, &mut env);
        }
        drop(env);
        self.finish(now, deadline);
        if let Some(doorbell) = self.device.doorbell() {
            doorbell.ring();
        }
        if by_application {
            self.device.schedule.end_serving(now);
        }
    }

    /// The end of an operation; `deadline` is the connection's.
    #[inline(always)]
    fn finish(&mut self, now: u64, mut deadline: u64) {
        self.carrier.finish(now);
        if let Some(late) = self.carrier.deadline() {
            deadline = deadline.min(late);
        }
        deadline = deadline.min(self.moving.deadline());
        let waits = self.device.doorbell().is_some_and(|bell| bell.waits());
        if waits || self.connection.is_blocked() {
            deadline = deadline.min(now + RETRY_NS);
        }
        self.device.set_deadline(self.index, deadline, now);
        self.count();
    }

    #[inline(always)]
    fn count(&mut self) {
        let sent_again = self.connection.stats().sent_again;
        if sent_again != self.counted {
            count(self.device.counters.sent_again, sent_again - self.counted);
            self.counted = sent_again;
        }
    }

    /// The agent reports that the peer has gone. Frames that have arrived still count; the engine waits a moment for
    /// those on their way.
    pub(crate) fn partner_gone(&mut self, port: &Port, orderly: bool) {
        self.progress(port);
        if port.is_connected() {
            let now = Host::get().now_ns();
            let out = self.carrier.transmitter(Some(now), false);
            let mut env = env::call(port, &self.device, out, self.peer.as_deref());
            self.connection.peer_gone(orderly, now, &mut env);
            drop(env);
            self.finish(now, self.connection.deadline());
        }
    }

    /// Closes the connection on this side. The lingering close needs no VI.
    pub(crate) fn retire(mut self: Box<Self>, reason: Reason) {
        let now = Host::get().now_ns();
        self.stop_coalescing();
        self.device.inbox(self.index).dismiss();
        self.device.schedule.set_connected(self.index, false);
        let device = self.device;
        let mut out = self.carrier.transmitter(Some(now), false);
        let closing = self.connection.close(reason, now, &mut out);
        drop(out);
        self.carrier.finish(now);
        if let Some(doorbell) = device.doorbell() {
            doorbell.ring();
        }
        let deadline = device.lingering.add(closing, self.carrier);
        device.watch.expect(&device.bell, deadline);
    }
}

/// To a peer on this host.
fn local(device: &Device, index: u32, connection: &vipl_connection) -> std::io::Result<Local> {
    if (connection.segment_bytes as usize) < SEGMENT {
        return Err(std::io::Error::other("the segment is too small"));
    }
    let segment = Mapping::open(connection.segment_fd, SEGMENT, true)?;
    let bell = device.partner(connection.peer_nic, connection.peer_fds)?;
    // Distinguishes this direction from all others, and is the same in every run.
    let direction =
        u64::from(connection.side) << 32 | u64::from(index) << 16 | u64::from(connection.peer_vi);
    let emulated = device.impairments.as_ref();
    let emulated = emulated.map(|impairments| LinkEmulator::new(impairments, direction));
    Ok(Local::new(
        Segment::new(segment, connection.side),
        bell,
        connection.peer_vi,
        emulated,
    ))
}

#[inline(always)]
fn take(
    device: &Device,
    connection: &mut Connection,
    (frame, marked): (&[u8], bool),
    now: u64,
    env: &mut ViCall,
) -> Received {
    let received = connection.received(frame, now, env);
    match received {
        Received::Taken if marked => {
            connection.marked(frame);
            count(device.counters.marked, 1);
        }
        Received::Taken => {}
        Received::WrongKey => count(device.counters.stray, 1),
        Received::Refused(Refused::Seal) => count(device.counters.forged, 1),
        Received::Refused(Refused::Corrupt) => count(device.counters.corrupt, 1),
        Received::Refused(_) => count(device.counters.bad, 1),
    }
    received
}
