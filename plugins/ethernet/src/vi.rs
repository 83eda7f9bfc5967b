//! One VI's part of the device: what each operation does.

use std::sync::Arc;
use std::time::Duration;

use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::shm::Mapping;
use vipl_plugin_sdk::{Host, Port, Queue, Status, Vi, descriptor};
use vipl_wire::{
    ACK_DELAY_NS, Config, Connection, Level, PROBES, PartKind, PeerProcess, Reason, Received,
    Refused, body_max, key_check,
};

use crate::carrier::Carrier;
use crate::doorbell::Doorbell;
use crate::env::{Bench, Line, time};
use crate::nic::{Core, EthernetNic, count};
use crate::segment::{SEGMENT, Segment};
use crate::watch;

/// The same as `PROBES` on this host. The agent tells of a partner's death at once, and one that is silent has no
/// processor; after a minute it is not coming back.
const PROBES_HERE: u32 = 58;
/// When a device that was full is asked again, in nanoseconds.
const RETRY_NS: u64 = 1_000_000;
/// Frames from a partner on this host that one operation takes.
const LOOK_FRAMES: u32 = 64;
/// Frames from a partner on this host that are taken before a deadline is judged: more than wait from one that keeps
/// to the window.
const WAITING_FRAMES: u32 = 512;

/// One VI; the connection comes and goes.
pub struct EthernetVi {
    link: Option<Box<Link>>,
}

/// A connection.
struct Link {
    core: Arc<Core>,
    connection: Connection,
    carrier: Carrier,
    /// This side's VI number.
    index: u32,
    /// Key check in the partner's frames.
    check: u64,
    /// Largest frame.
    mtu: usize,
    /// The peer process, on another host.
    peer: Option<Arc<PeerProcess>>,
    /// The frame that came last from a partner on this host.
    frame: Vec<u8>,
    /// Frames sent again that have been added to the counter.
    counted: u64,
    /// Frames go to another host by a doorbell that waits for bursts.
    may_gather: bool,
    /// Bytes of messages that stay in the send queue until there are enough for a frame. `None`: the next
    /// post makes a frame.
    gathered: Option<usize>,
}

impl Link {
    fn new(
        core: &Arc<Core>,
        port: &Port,
        connection: &vipl_connection,
    ) -> std::io::Result<Box<Link>> {
        let index = port.vi().index;
        let (carrier, mtu, peer) = if connection.remote != 0 {
            let mut to = [0; 6];
            to.copy_from_slice(&connection.remote_address[..6]);
            let peer = core.peers.of(to, connection.remote_endpoint);
            (Carrier::away(to, core.address), core.mtu, Some(peer))
        } else {
            (here(core, index, connection)?, core.local_mtu(), None)
        };
        let collects = core.doorbell().is_some_and(Doorbell::collects);
        let may_gather = carrier.is_away() && collects;
        let config = Config {
            key: connection.key,
            side: connection.side,
            level: Level::of(port.vi().reliability),
            mtu: mtu as u16,
            max_transfer: port.vi().max_transfer_size.min(u64::from(u32::MAX)) as u32,
            own_vi: index,
            partner_vi: connection.partner_vi,
            own_endpoint: core.endpoint,
            partner_endpoint: connection.remote_endpoint,
            carry_immediate: port.nic().options & VIPL_OPTION_CARRY_IMMEDIATE != 0,
            ack_delay_ns: ACK_DELAY_NS,
            probes_max: match connection.remote {
                0 => PROBES_HERE,
                _ => PROBES,
            },
            now_ns: Host::get().now_ns(),
        };
        Ok(Box::new(Link {
            core: core.clone(),
            connection: Connection::new(&config),
            carrier,
            index,
            check: key_check(connection.key, connection.side ^ 1),
            mtu,
            peer,
            frame: Vec::new(),
            counted: 0,
            may_gather,
            gathered: None,
        }))
    }

    /// The send doorbell.
    #[inline(always)]
    fn post_send(&mut self, port: &Port) {
        self.core.watch.program_is_at_work();
        if !self.gathers(port) {
            self.send(port);
        }
    }

    /// Sends what was posted. The clock is read when the first frame has left.
    #[inline(always)]
    fn send(&mut self, port: &Port) {
        let line = Line {
            carrier: &mut self.carrier,
            doorbell: self.core.doorbell(),
            mtu: self.mtu,
            now: None,
        };
        let peer = self.peer.as_deref();
        let mut bench = Bench { port, line, peer };
        self.connection.posted(0, &mut bench);
        let now = time(&mut bench.line.now);
        self.core.post(self.index, now);
        self.finish(now, self.connection.deadline());
    }

    /// Whether the message that was just posted stays in the queue for now.
    #[inline(always)]
    fn gathers(&mut self, port: &Port) -> bool {
        if !self.may_gather {
            return false;
        }
        let Some(bytes) = self.gathered else {
            self.gathered = Some(0);
            return false;
        };
        let newest = port.entry(Queue::Send, port.posted(Queue::Send).wrapping_sub(1));
        let message = descriptor::length(&newest).map_or(self.mtu, |bytes| bytes as usize);
        let part = PartKind::Send.header() + message;
        let together = bytes + part;
        // If there is no room for another one like it, the frame is as good as full.
        let full = together + part > body_max(self.mtu);
        if full || !self.core.gathering.begin(self.index) {
            self.gathers_no_more();
            self.gathered = Some(0);
            return false;
        }
        if bytes == 0 {
            let now = Host::get().now_ns();
            let deadline = self.connection.deadline().min(now + RETRY_NS);
            self.core.set_deadline(self.index, deadline, now);
        }
        self.gathered = Some(together);
        true
    }

    /// Whether messages had stayed in the queue; they must be sent now.
    #[inline(always)]
    fn gathers_no_more(&mut self) -> bool {
        let some = self.gathered.take().is_some_and(|bytes| bytes > 0);
        if some {
            self.core.gathering.end();
        }
        some
    }

    /// Takes what has arrived, and does what is due.
    #[inline(always)]
    fn progress(&mut self, port: &Port) {
        self.core.watch.program_is_at_work();
        if let Some(wire) = &self.core.wire {
            // A frame that lies there comes while the clock is read.
            wire.tip.has_frame();
        }
        let now = Host::get().now_ns();
        let gathered = self.gathers_no_more();
        let core = &*self.core;
        core.attend(self.index, now);
        core.see_to_gathering(self.index);
        let connection = &mut self.connection;
        let mut bench = Bench {
            port,
            line: Line {
                carrier: &mut self.carrier,
                doorbell: core.doorbell(),
                mtu: self.mtu,
                now: Some(now),
            },
            peer: self.peer.as_deref(),
        };
        if gathered {
            connection.posted(now, &mut bench);
        }
        if let Some(doorbell) = core.doorbell() {
            doorbell.ring();
        }
        let mut frames = 0u32;
        core.receive(self.index, self.check, |frame| {
            frames += 1;
            take(core, connection, frame, now, &mut bench);
        });
        let mut lied = false;
        for _ in 0..LOOK_FRAMES {
            match bench.line.carrier.take(&mut self.frame) {
                Ok(true) => {
                    frames += 1;
                    take(core, connection, &self.frame, now, &mut bench);
                }
                Ok(false) => break,
                Err(_) => {
                    lied = true;
                    break;
                }
            }
        }
        if lied {
            // Its segment makes no sense any more: the connection is lost, and nothing else.
            connection.partner_gone(false, now, &mut bench);
        }
        if frames > 0 {
            core.watch.note_arrival();
        } else if connection.ack_owed() {
            // The partner has said what it had to say, and the program has nothing to add.
            connection.flush_acks(now, &mut bench);
        }
        if frames > 0 || connection.is_blocked() {
            connection.flush(now, &mut bench);
        }
        let mut deadline = connection.deadline();
        if deadline <= now {
            // What has arrived comes before the clock, however much it is.
            let all = match self.peer {
                Some(_) => core.catch_up(self.index, self.check, |frame| {
                    take(core, connection, frame, now, &mut bench);
                }),
                None => {
                    for _ in 0..WAITING_FRAMES {
                        let Ok(true) = bench.line.carrier.take(&mut self.frame) else {
                            break;
                        };
                        take(core, connection, &self.frame, now, &mut bench);
                    }
                    true
                }
            };
            if all {
                connection.timeout(now, &mut bench);
                deadline = connection.deadline();
            } else {
                deadline = now + RETRY_NS;
            }
        }
        self.finish(now, deadline);
        if let Some(doorbell) = self.core.doorbell() {
            doorbell.ring();
        }
    }

    /// The end of an operation; `deadline` is the connection's.
    #[inline(always)]
    fn finish(&mut self, now: u64, mut deadline: u64) {
        self.carrier.finish(self.core.doorbell(), now);
        if let Some(late) = self.carrier.deadline() {
            deadline = deadline.min(late);
        }
        let waits = self.core.doorbell().is_some_and(|bell| bell.waits());
        if waits || self.connection.is_blocked() {
            deadline = deadline.min(now + RETRY_NS);
        }
        self.core.set_deadline(self.index, deadline, now);
        self.count();
    }

    #[inline(always)]
    fn count(&mut self) {
        let sent_again = self.connection.stats().sent_again;
        if sent_again != self.counted {
            count(self.core.counters.sent_again, sent_again - self.counted);
            self.counted = sent_again;
        }
    }

    /// The connection has ended here. What is left to tell the partner needs no VI.
    fn retire(mut self: Box<Self>, reason: Reason) {
        let now = Host::get().now_ns();
        self.gathers_no_more();
        self.core.inbox(self.index).dismiss();
        self.core.set_connected(self.index, false);
        let mut line = self.carrier.line(&self.core, self.mtu, now);
        let closing = self.connection.close(reason, now, &mut line);
        self.carrier.finish(self.core.doorbell(), now);
        if let Some(doorbell) = self.core.doorbell() {
            doorbell.ring();
        }
        self.core
            .farewells
            .add(&self.core, closing, self.carrier, self.mtu);
    }
}

/// To a partner on this host.
fn here(core: &Core, index: u32, connection: &vipl_connection) -> std::io::Result<Carrier> {
    if (connection.segment_bytes as usize) < SEGMENT {
        return Err(std::io::Error::other("the segment is too small"));
    }
    let segment = Mapping::open(connection.segment_fd, SEGMENT, true)?;
    let bell = core.partner(connection.partner_nic, connection.partner_fds)?;
    // Distinguishes this direction from all others, and is the same in every run.
    let direction = u64::from(connection.side) << 32
        | u64::from(index) << 16
        | u64::from(connection.partner_vi);
    let emulated = core.emulated.as_ref().map(|links| links(direction));
    Ok(Carrier::here(
        Segment::new(segment, connection.side),
        bell,
        connection.partner_vi,
        emulated,
    ))
}

#[inline(always)]
fn take(core: &Core, connection: &mut Connection, frame: &[u8], now: u64, bench: &mut Bench) {
    match connection.received(frame, now, bench) {
        Received::Taken => {}
        Received::WrongKey => count(core.counters.stray, 1),
        Received::Refused(Refused::Corrupt) => count(core.counters.corrupt, 1),
        Received::Refused(_) => count(core.counters.bad, 1),
    }
}

impl EthernetVi {
    /// An operation on a connection, which may have ended in it.
    #[inline(always)]
    fn operate(&mut self, port: &Port, operation: impl FnOnce(&mut Link)) {
        let Some(link) = &mut self.link else { return };
        operation(link);
        if !port.is_connected()
            && let Some(link) = self.link.take()
        {
            link.retire(Reason::Lost);
        }
    }
}

impl Vi for EthernetVi {
    type Nic = EthernetNic;

    fn new(_nic: &EthernetNic, _port: &Port) -> Result<Self, Status> {
        Ok(EthernetVi { link: None })
    }

    fn attach(
        &mut self,
        nic: &EthernetNic,
        port: &Port,
        connection: &vipl_connection,
    ) -> Result<(), Status> {
        let core = &nic.core;
        let link = Link::new(core, port, connection).map_err(|error| {
            let text = format!("{}: cannot set up a connection: {error}", core.name);
            Host::get().log(VIPL_LOG_ERROR, &text);
            Status::Resource
        })?;
        core.inbox(link.index).admit(link.check);
        core.set_connected(link.index, true);
        core.set_deadline(link.index, link.connection.deadline(), Host::get().now_ns());
        self.link = Some(link);
        watch::start(core);
        Ok(())
    }

    fn detach(&mut self, _nic: &EthernetNic, _port: &Port) {
        if let Some(link) = self.link.take() {
            link.retire(Reason::Disconnected);
        }
    }

    fn partner_gone(&mut self, _nic: &EthernetNic, port: &Port, orderly: bool) {
        self.operate(port, |link| link.partner_gone(port, orderly));
    }

    #[inline(always)]
    fn post_send(&mut self, _nic: &EthernetNic, port: &Port) {
        self.operate(port, |link| link.post_send(port));
    }

    fn post_recv(&mut self, _nic: &EthernetNic, _port: &Port) {
        // The partner is not told: a message that finds no descriptor is an error (spec §6.3).
    }

    #[inline(always)]
    fn progress(&mut self, _nic: &EthernetNic, port: &Port) {
        self.operate(port, |link| link.progress(port));
    }

    fn watch(&mut self, _on: bool) {
        // VIs that have something are always marked: a frame costs far more than that.
    }

    fn quiesced(&mut self, _port: &Port, _since: &mut u64, _left: Duration) -> bool {
        // Whoever transfers holds the VI's lock, as the caller does.
        true
    }
}

impl Link {
    /// The agent says so. What has arrived still counts, and what is on the way gets a moment.
    fn partner_gone(&mut self, port: &Port, orderly: bool) {
        self.progress(port);
        if port.is_connected() {
            let now = Host::get().now_ns();
            let line = self.carrier.line(&self.core, self.mtu, now);
            let peer = self.peer.as_deref();
            self.connection
                .partner_gone(orderly, now, &mut Bench { port, line, peer });
            self.finish(now, self.connection.deadline());
        }
    }
}
