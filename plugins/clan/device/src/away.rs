//! Connections to partners on other hosts: the device's loop and the protocol.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use vipl_clan_proto::channel;
use vipl_clan_proto::message::{Request, flag};
use vipl_clan_proto::nic::{RING_FRAMES, failed};
use vipl_clan_proto::vi::end;
use vipl_netio::packet::{ETHERNET, Lost};
use vipl_wire::{
    ACK_DELAY_NS, Config, Connection, Env as _, Level, MTU_MIN, PROBES, Reason, Received,
};

use vipl_sys::clock::now_ns;

use crate::client::Client;
use crate::device::Device;
use crate::env::Bench;
use crate::events::NEVER;
use crate::link::{Link, Side};
use crate::remote::{Away, Posted};
use crate::vi::{Tools, Vi};
use crate::vis::Vis;

/// Frames that one look at a link takes.
const LOOK_FRAMES: usize = 64;
/// Most frames of a link that wait for the mail of its process.
const EARLY_MAX: usize = 256;
/// How often the interface is asked whether it is still there.
const CHECK_EVERY_NS: u64 = 250_000_000;

/// Calls the engine of a VI over this link. True: the connection goes on.
#[inline(always)]
fn engage(
    vis: &mut Vis,
    tools: &mut Tools,
    side: &mut Side,
    id: usize,
    now: u64,
    call: impl FnOnce(&mut Connection, &mut Bench<'_>),
) -> bool {
    let Some(vi) = vis.get_mut(id) else {
        return false;
    };
    // The number may be that of another VI by now.
    let Some(mut away) = vi.away.take_if(|away| away.link == side.index) else {
        return false;
    };
    away.engage(vi, tools, &mut side.out, now, call);
    if vi.process.is_gone() {
        // The agent says what has become of it.
        vi.halted = true;
        return false;
    }
    if !away.connection.is_open() {
        retire(side, *away, Reason::Lost, now);
        return false;
    }
    side.soonest = side.soonest.min(away.connection.deadline());
    side.blocked |= away.connection.is_blocked();
    vi.away = Some(away);
    true
}

/// Gives a frame to the connection that it is for. False: its VI has no such connection. What is for no VI of this link is
/// done with.
#[inline(always)]
fn take_frame(
    vis: &mut Vis,
    tools: &mut Tools,
    side: &mut Side,
    client: Option<&Client>,
    touched: &mut Vec<usize>,
    frame: &[u8],
    now: u64,
) -> bool {
    let payload = frame.get(ETHERNET..).unwrap_or_default();
    let vi = match vipl_wire::address(payload) {
        Some(address) if address.endpoint == side.endpoint => address.vi as usize,
        Some(_) => return true,
        None => {
            side.stray(frame, now);
            return true;
        }
    };
    let id = client.and_then(|client| *client.vis.get(vi)?);
    let away = |id: &usize| vis.get(*id).is_some_and(|vi| vi.away.is_some());
    let Some(id) = id.filter(away) else {
        return false;
    };
    let mut known = true;
    engage(vis, tools, side, id, now, |connection, bench| {
        known = connection.received(payload, now, bench) != Received::WrongKey;
    });
    if known && touched.last() != Some(&id) {
        touched.push(id);
    }
    known
}

/// The connection has ended here. What is left to tell the partner needs no VI.
fn retire(side: &mut Side, away: Away, reason: Reason, now: u64) {
    let Away {
        connection,
        header,
        mtu,
        ..
    } = away;
    let closing = connection.close(reason, now, &mut side.out.line(header, mtu, now));
    side.linger(closing, header, mtu);
}

fn config(vi: &Vi, side: &Side, request: &Request, mtu: usize) -> Config {
    Config {
        key: request.key,
        side: request.side,
        level: Level::of(vi.terms.reliability),
        mtu: mtu as u16,
        max_transfer: vi.terms.max_transfer as u32,
        own_vi: vi.number,
        peer_vi: request.partner_vi,
        own_endpoint: side.endpoint,
        peer_endpoint: request.endpoint,
        carry_immediate: vi.has(flag::CARRY_IMMEDIATE),
        ack_delay_ns: ACK_DELAY_NS,
        probes_max: PROBES,
        now_ns: now_ns(),
        count_from: vipl_sys::wrap::start(0),
        shared_path: false,
        // Raw Ethernet has none.
        seal: None,
    }
}

impl Device {
    /// A NIC handle brings an interface.
    pub(crate) fn open_link(
        &mut self,
        place: usize,
        request: &Request,
        mut fds: Vec<OwnedFd>,
    ) -> io::Result<usize> {
        let socket = fds.pop().ok_or(io::ErrorKind::InvalidInput)?;
        let mut link = Link::open(socket, request.address, request.endpoint, request.mtu)?;
        link.side.client = Some(place);
        let free = self.links.iter().position(Option::is_none);
        let index = free.unwrap_or(self.links.len());
        self.listen_to_link(link.side.out.socket(), index)?;
        if free.is_none() {
            self.links.push(None);
        }
        link.side.index = index;
        self.links[index] = Some(Box::new(link));
        Ok(index)
    }

    /// The VI is connected to one on another host.
    pub(crate) fn attach_away(&mut self, place: usize, id: usize, request: &Request) {
        self.detach(id);
        let index = self.clients[place].as_ref().and_then(|client| client.link);
        let Some(vi) = self.vis.get_mut(id) else {
            return;
        };
        vi.attach(request);
        let link = index.and_then(|index| Some((index, self.links[index].as_mut()?)));
        let Some((index, link)) = link.filter(|_| request.mtu as usize >= MTU_MIN) else {
            vi.die(&mut self.tools, end::LOST);
            return;
        };
        let side = &mut link.side;
        let mtu = (request.mtu as usize).min(side.mtu);
        let connection = Connection::new(&config(vi, side, request, mtu));
        side.soonest = side.soonest.min(connection.deadline());
        side.attached = true;
        if !side.vis.contains(&id) {
            side.vis.push(id);
        }
        vi.away = Some(Box::new(Away {
            connection,
            posted: Posted::new(vi.sends, vi.receives),
            link: index,
            header: side.header(request.address),
            mtu,
            peer: side.peers.of(&request.address, request.endpoint),
        }));
        self.warm(id);
    }

    /// Does something with the link of a VI that has a partner on another host; `None`: it has none.
    fn with_link<R>(
        &mut self,
        id: usize,
        act: impl FnOnce(&mut Device, &mut Link) -> R,
    ) -> Option<R> {
        let index = self.vis.get(id)?.away.as_ref()?.link;
        let mut link = self.links.get_mut(index)?.take()?;
        let done = act(self, &mut link);
        self.links[index] = Some(link);
        Some(done)
    }

    /// Gives the engine what has been posted. What it makes of that is sent by the round.
    pub(crate) fn pump_away(&mut self, id: usize) -> bool {
        let rung = self.vis.get(id).is_some_and(Vi::is_rung);
        if !rung {
            return false;
        }
        self.with_link(id, |device, link| {
            let (now, side) = (now_ns(), &mut link.side);
            let (vis, tools) = (&mut device.vis, &mut device.tools);
            engage(vis, tools, side, id, now, |connection, bench| {
                connection.posted(now, bench);
                // A connection that must not send now does not look at the doorbells. They have been seen all
                // the same: it comes back to them by itself.
                bench.sends_posted();
            });
        });
        self.warm(id);
        true
    }

    /// Takes a VI off its connection to another host, and tells the partner why. `None`: its process has gone,
    /// and the agent says how.
    pub(crate) fn part(&mut self, id: usize, reason: Option<Reason>) {
        if reason.is_some() {
            self.pump_away(id);
        }
        self.with_link(id, |device, link| {
            let away = device.vis.get_mut(id).and_then(|vi| vi.away.take());
            if let (Some(away), Some(reason)) = (away, reason) {
                retire(&mut link.side, *away, reason, now_ns());
            }
        });
    }

    /// The agent says that the partner on another host has gone. What has arrived still counts.
    pub(crate) fn partner_gone(&mut self, id: usize, request: &Request) {
        if self
            .vis
            .get(id)
            .is_none_or(|vi| vi.terms.epoch != request.epoch)
        {
            return;
        }
        let orderly = request.flags & flag::ORDERLY != 0;
        self.with_link(id, |device, link| {
            let now = now_ns();
            device.receive(link, now, RING_FRAMES);
            let (vis, tools) = (&mut device.vis, &mut device.tools);
            engage(vis, tools, &mut link.side, id, now, |connection, bench| {
                connection.peer_gone(orderly, now, bench);
            });
        });
    }

    /// Looks after all links, at the end of a round: receives, does what is due, sends. True: there was
    /// something.
    pub(crate) fn serve_links(&mut self) -> bool {
        let mut worked = false;
        for index in 0..self.links.len() {
            let Some(mut link) = self.links[index].take() else {
                continue;
            };
            worked |= self.serve(&mut link);
            if link.side.is_over() {
                self.events.unlisten(link.side.out.socket());
                link.close();
            } else {
                self.links[index] = Some(link);
            }
        }
        worked
    }

    fn serve(&mut self, link: &mut Link) -> bool {
        let now = now_ns();
        // What has arrived comes before the clock, however much it is.
        let most = match now >= link.side.soonest {
            true => RING_FRAMES,
            false => LOOK_FRAMES,
        };
        let arrived = self.receive(link, now, most);
        let side = &mut link.side;
        let retry = side.blocked && now >= side.out.retry_at();
        if now >= side.soonest || retry {
            self.do_due(side, now);
        }
        side.pump_lingering(now);
        side.out.send(now);
        if now >= side.check_at && side.client.is_some() && !side.failed {
            side.check_at = now + CHECK_EVERY_NS;
            if let Some(lost) = side.lost_interface() {
                self.interface_lost(side, &lost);
            }
        }
        arrived || retry
    }

    /// Takes frames out of the ring of a link.
    fn receive(&mut self, link: &mut Link, now: u64, most: usize) -> bool {
        let Link {
            receiver,
            side,
            frame: copy,
            early,
            touched,
        } = link;
        let client = side.client.and_then(|place| self.clients[place].as_ref());
        let (vis, tools) = (&mut self.vis, &mut self.tools);
        let has_mail = || client.is_some_and(Client::has_mail);
        let attached = std::mem::take(&mut side.attached);
        // True: the frame waits for its connection, which may be in the mail. What came before the frame is there by now.
        let mut take = |frame: &[u8]| {
            if take_frame(vis, tools, side, client, touched, frame, now) {
                return false;
            }
            let waits = has_mail();
            if !waits {
                // Perhaps of the connection that the VI had before.
                side.stray(frame, now);
            }
            waits
        };
        let waited = early.len();
        if waited > 0 && (attached || !has_mail()) {
            early.retain(|frame| take(frame));
        }
        let found = early.len() < waited;
        let received = receiver.receive(most as u32, |frame| {
            frame.copy_to(copy);
            if take(copy) && early.len() < EARLY_MAX {
                early.push(copy.clone());
            }
        });
        let touched = std::mem::take(&mut link.touched);
        for id in &touched {
            let (vis, tools) = (&mut self.vis, &mut self.tools);
            engage(vis, tools, &mut link.side, *id, now, |connection, bench| {
                connection.flush(now, bench);
            });
            self.warm(*id);
        }
        link.touched = touched;
        link.touched.clear();
        found || received.frames + received.cut > 0
    }

    /// Timers, and connections that could not send all that they wanted.
    fn do_due(&mut self, side: &mut Side, now: u64) {
        side.soonest = NEVER;
        side.blocked = false;
        let mut ids = std::mem::take(&mut side.vis);
        let (vis, tools) = (&mut self.vis, &mut self.tools);
        ids.retain(|id| {
            engage(vis, tools, side, *id, now, |connection, bench| {
                if connection.deadline() <= now {
                    connection.timeout(now, bench);
                } else if connection.is_blocked() {
                    connection.flush(now, bench);
                }
            })
        });
        for id in &ids {
            self.warm(*id);
        }
        side.vis = ids;
    }

    /// Sends the acknowledgements that still wait for company.
    fn acknowledge(&mut self, side: &mut Side, now: u64) {
        let (vis, tools) = (&mut self.vis, &mut self.tools);
        for place in 0..side.vis.len() {
            let id = side.vis[place];
            engage(vis, tools, side, id, now, |connection, bench| {
                if connection.ack_owed() {
                    connection.flush_acks(now, bench);
                }
            });
        }
        side.out.send(now);
    }

    /// The device is about to sleep: sends the acknowledgements that are owed, and gives until when it may.
    pub(crate) fn flush_links(&mut self) -> u64 {
        let mut deadline = NEVER;
        for index in 0..self.links.len() {
            if let Some(mut link) = self.links[index].take() {
                self.acknowledge(&mut link.side, now_ns());
                deadline = deadline.min(link.side.deadline());
                self.links[index] = Some(link);
            }
        }
        deadline
    }

    /// The kernel has something to tell of a link: frames, which the next round takes, or an error.
    pub(crate) fn hear_link(&mut self, index: usize) {
        let Some(mut link) = self.links.get_mut(index).and_then(Option::take) else {
            return;
        };
        if let Some(lost) = link.side.lost_interface()
            && !link.side.failed
        {
            self.interface_lost(&mut link.side, &lost);
        }
        self.links[index] = Some(link);
    }

    fn interface_lost(&mut self, side: &mut Side, lost: &Lost) {
        side.failed = true;
        let client = side.client.and_then(|place| self.clients[place].as_ref());
        if let Some(process) = client.and_then(|client| client.process.as_ref()) {
            let why = match lost {
                Lost::Removed => failed::REMOVED,
                Lost::Port(_) => failed::PORT,
            };
            process.nic().failed.store(why, Ordering::Release);
            let _ = channel::send(process.interrupts.as_raw_fd(), &[0], &[]);
        }
    }
}
