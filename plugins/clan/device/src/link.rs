//! The interface of a NIC handle: frames in, frames out, and the connections that they belong to.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use vipl_clan_proto::message::{Request, flag};
use vipl_clan_proto::nic::{FRAME_MAX, RING_FRAMES, failed};
use vipl_netio::Header;
use vipl_netio::packet::{self, Asker, ETHERNET, Lost, Receiver};
use vipl_netio::peer::PeerProcesses;
use vipl_plugin_abi::VIPL_DATA_ETHERTYPE as ETHERTYPE;
use vipl_sys::clock::now_ns;
use vipl_wire::{
    ACK_DELAY_NS, Config, Connection, Env as _, Level, MTU_MIN, PATIENCE_NS, Reason, Received,
};

use crate::client::Client;
use crate::env::ViCall;
use crate::events::NEVER;
use crate::lingering::Lingering;
use crate::outbox::Outbox;
use crate::remote::Remote;
use crate::vi::Vi;
use crate::vis::Vis;

/// Frames that one poll of a link takes.
const POLL_FRAMES: usize = 64;
/// Most frames that wait for messages of the process.
const EARLY_MAX: usize = 256;
/// How often the interface is checked, in nanoseconds, beside what its socket reports at once.
const CHECK_EVERY_NS: u64 = 2_000_000_000;

/// The link without its receive ring.
struct Side {
    out: Outbox,
    endpoint: u16,
    address: [u8; 6],
    mtu: usize,
    /// Connections by the number of their VI.
    remotes: Vec<Option<Box<Remote>>>,
    /// Numbers of VIs with a connection over this link, or recently without.
    numbers: Vec<u32>,
    /// A VI has been connected since the last poll.
    attached: bool,
    /// The first deadline of the connections, in nanoseconds.
    soonest: u64,
    /// A connection could not send all its frames.
    blocked: bool,
    lingering: Lingering,
    /// Processes that the VIs have connections with.
    peers: PeerProcesses,
    /// The process has exited, and only lingering connections are left.
    orphaned: bool,
}

/// The link of a NIC handle.
pub(crate) struct Link {
    receiver: Receiver,
    side: Side,
    /// Place of its process; `None`: it has exited.
    client: Option<usize>,
    /// A copy of the current frame: the process, which may map the ring, must not change it meanwhile.
    frame: Vec<u8>,
    /// Frames of unknown connections, received while the process had messages that had not been read.
    early: Vec<Vec<u8>>,
    /// Numbers of the VIs that received frames in this round.
    touched: Vec<u32>,
    /// When the interface is checked again.
    check_at: u64,
    /// `None`: the kernel has no socket for it.
    asker: Option<Asker>,
    /// The interface does not receive any more.
    failed: bool,
}

fn config(vi: &Vi, side: &Side, request: &Request, mtu: usize) -> Config {
    let (terms, number) = (vi.queues().terms(), vi.queues().number());
    Config {
        key: request.key,
        side: request.side,
        level: Level::of(terms.reliability),
        mtu: mtu as u16,
        max_transfer: terms.max_transfer as u32,
        own_vi: number,
        peer_vi: request.peer_vi,
        own_endpoint: side.endpoint,
        peer_endpoint: request.endpoint,
        carry_immediate: terms.has(flag::CARRY_IMMEDIATE),
        ack_delay_ns: ACK_DELAY_NS,
        patience_ns: PATIENCE_NS,
        now_ns: now_ns(),
        count_from: vipl_sys::wrap::start(0),
        shared_path: false,
        // Raw Ethernet has no seal.
        seal: None,
    }
}

impl Side {
    /// The header of frames to this address.
    fn header(&self, to: [u8; 6]) -> Header {
        Header::ethernet(to, self.address, ETHERTYPE)
    }

    /// Calls the engine of a VI. False: the connection has ended.
    #[inline(always)]
    fn engage(
        &mut self,
        vis: &mut Vis,
        number: u32,
        now: u64,
        call: impl FnOnce(&mut Connection, &mut ViCall<'_>),
    ) -> bool {
        let slot = self.remotes.get_mut(number as usize);
        let Some(remote) = slot.and_then(Option::as_deref_mut) else {
            return false;
        };
        let Some((vi, tools)) = vis.at_work(remote.id()) else {
            return false;
        };
        remote.engage(vi, tools, &mut self.out, now, call);
        if vi.queues().process().has_exited() {
            // The agent reports how it has exited.
            vi.halt();
            self.take(vis, number);
            return false;
        }
        let connection = remote.connection();
        if !connection.is_open() {
            self.retire(vis, number, Reason::Lost, now);
            return false;
        }
        self.soonest = self.soonest.min(connection.deadline());
        self.blocked |= connection.is_blocked();
        true
    }

    /// Takes a VI off its connection.
    fn take(&mut self, vis: &mut Vis, number: u32) -> Option<Box<Remote>> {
        let remote = self.remotes.get_mut(number as usize)?.take()?;
        if let Some((vi, _)) = vis.at_work(remote.id()) {
            vi.set_link(None);
        }
        Some(remote)
    }

    /// The connection has ended on this side.
    fn retire(&mut self, vis: &mut Vis, number: u32, reason: Reason, now: u64) {
        if let Some(remote) = self.take(vis, number) {
            self.lingering.add(remote.close(reason, now, &mut self.out));
        }
    }

    /// Passes a frame to its connection. False: its VI has no such connection. A frame for no VI of this link is
    /// dropped.
    #[inline(always)]
    fn take_frame(
        &mut self,
        vis: &mut Vis,
        touched: &mut Vec<u32>,
        frame: &[u8],
        now: u64,
    ) -> bool {
        let payload = frame.get(ETHERNET..).unwrap_or_default();
        let number = match vipl_wire::address(payload) {
            Some(address) if address.endpoint == self.endpoint => address.vi,
            Some(_) => return true,
            None => {
                self.stray(frame, now);
                return true;
            }
        };
        let mut known = false;
        self.engage(vis, number, now, |connection, env| {
            known = connection.received(payload, now, env) != Received::WrongKey;
        });
        if known && touched.last() != Some(&number) {
            touched.push(number);
        }
        known
    }

    /// A frame of no open connection.
    #[cold]
    fn stray(&mut self, frame: &[u8], now: u64) {
        let Some((sender, payload)) = packet::split(frame) else {
            return;
        };
        let known = self.lingering.received(payload, &mut self.out, now);
        // Another NIC handle may have the endpoint of one that has been closed. A group address sends no frames.
        if !known && !self.orphaned && sender[0] & 1 == 0 {
            let header = self.header(sender);
            let line = self.out.line(header, self.mtu, now);
            self.lingering.answer(payload, line, now);
        }
    }

    /// Runs expired timers, and connections that could not send all their frames.
    fn do_due(&mut self, vis: &mut Vis, now: u64) {
        self.soonest = NEVER;
        self.blocked = false;
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.retain(|number| {
            let goes_on = self.engage(vis, *number, now, |connection, env| {
                if connection.deadline() <= now {
                    connection.timeout(now, env);
                } else if connection.is_blocked() {
                    connection.flush(now, env);
                }
            });
            if goes_on {
                self.warm(vis, *number);
            }
            goes_on
        });
        self.numbers = numbers;
    }

    /// The VI of a connection becomes hot.
    fn warm(&self, vis: &mut Vis, number: u32) {
        if let Some(Some(remote)) = self.remotes.get(number as usize) {
            vis.warm(remote.id());
        }
    }
}

impl Link {
    /// # Errors
    /// The process has sent no data socket, or its interface has too small frames.
    pub(crate) fn open(client: usize, request: &Request, socket: OwnedFd) -> io::Result<Link> {
        let mtu = request.mtu.min(FRAME_MAX) as usize;
        if mtu < MTU_MIN {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let receiver = Receiver::map(socket.as_raw_fd(), mtu, RING_FRAMES)?;
        Ok(Link {
            receiver,
            side: Side {
                out: Outbox::new(socket),
                endpoint: request.endpoint,
                address: request.address,
                mtu,
                remotes: Vec::new(),
                numbers: Vec::new(),
                attached: false,
                soonest: NEVER,
                blocked: false,
                lingering: Lingering::default(),
                peers: PeerProcesses::default(),
                orphaned: false,
            },
            client: Some(client),
            frame: Vec::new(),
            early: Vec::new(),
            touched: Vec::new(),
            check_at: 0,
            asker: Asker::open().ok(),
            failed: false,
        })
    }

    pub(crate) fn socket(&self) -> RawFd {
        self.side.out.socket()
    }

    /// The process has exited.
    pub(crate) fn forget_client(&mut self) {
        self.client = None;
        self.side.orphaned = true;
    }

    /// Whether the link is not needed any more.
    pub(crate) fn is_over(&self) -> bool {
        self.client.is_none() && self.side.lingering.is_empty() && self.side.out.is_empty()
    }

    /// Closes the link in a thread: closing a data socket takes the kernel some ten milliseconds.
    pub(crate) fn close(self: Box<Self>) {
        let name = "vipl-close".to_owned();
        // Without a thread it is closed here.
        let _ = std::thread::Builder::new().name(name).spawn(|| drop(self));
    }

    /// Connects a VI that is attached. False: the link cannot carry the connection.
    pub(crate) fn attach(&mut self, id: usize, vi: &Vi, request: &Request) -> bool {
        if (request.mtu as usize) < MTU_MIN {
            return false;
        }
        let side = &mut self.side;
        let mtu = (request.mtu as usize).min(side.mtu);
        let connection = Connection::new(&config(vi, side, request, mtu));
        side.soonest = side.soonest.min(connection.deadline());
        side.attached = true;
        let number = vi.queues().number();
        if !side.numbers.contains(&number) {
            side.numbers.push(number);
        }
        let header = side.header(request.address);
        let peer = side.peers.of(&request.address, request.endpoint);
        let place = number as usize;
        if side.remotes.len() <= place {
            side.remotes.resize_with(place + 1, || None);
        }
        let remote = Remote::new(id, connection, header, mtu, peer);
        side.remotes[place] = Some(Box::new(remote));
        true
    }

    /// Passes to the engine what has been posted. Its frames are sent at the end of the round.
    pub(crate) fn pump(&mut self, vis: &mut Vis, number: u32) {
        let now = now_ns();
        self.side.engage(vis, number, now, |connection, env| {
            connection.posted(now, env);
            // A connection that must not send now does not read the doorbells, but returns to them by itself. They
            // count as seen.
            env.sends_posted();
        });
    }

    /// Takes a VI off its connection, and informs the peer of the reason. `None`: its process has exited, and the agent
    /// informs the peer.
    pub(crate) fn part(&mut self, vis: &mut Vis, number: u32, reason: Option<Reason>) {
        match reason {
            Some(reason) => self.side.retire(vis, number, reason, now_ns()),
            None => _ = self.side.take(vis, number),
        }
    }

    /// The agent reports that the peer has exited or disconnected. Frames that have been received still count.
    pub(crate) fn peer_gone(
        &mut self,
        vis: &mut Vis,
        client: Option<&Client>,
        number: u32,
        orderly: bool,
    ) {
        let now = now_ns();
        self.receive(vis, client, now, RING_FRAMES);
        self.side.engage(vis, number, now, |connection, env| {
            connection.peer_gone(orderly, now, env);
        });
    }

    /// Place of its process.
    pub(crate) fn client(&self) -> Option<usize> {
        self.client
    }

    /// Serves the link at the end of a round: receives, runs timers, sends. True: there was work.
    pub(crate) fn serve(&mut self, vis: &mut Vis, client: Option<&Client>) -> bool {
        let now = now_ns();
        // All frames that have been received are processed before timers expire.
        let most = match now >= self.side.soonest {
            true => RING_FRAMES,
            false => POLL_FRAMES,
        };
        let arrived = self.receive(vis, client, now, most);
        let side = &mut self.side;
        let retry = side.blocked && now >= side.out.retry_at();
        if now >= side.soonest || retry {
            side.do_due(vis, now);
        }
        side.lingering.pump(&mut side.out, now);
        side.out.send(now);
        if now >= self.check_at && self.client.is_some() && !self.failed {
            self.check_at = now + CHECK_EVERY_NS;
            self.check_interface(client);
        }
        arrived || retry
    }

    /// Receives frames from the ring.
    fn receive(&mut self, vis: &mut Vis, client: Option<&Client>, now: u64, most: usize) -> bool {
        let Link {
            receiver,
            side,
            frame: copy,
            early,
            touched,
            ..
        } = self;
        let has_messages = || client.is_some_and(Client::has_messages);
        let attached = std::mem::take(&mut side.attached);
        // True: the frame waits for its connection, which the messages may bring. Earlier messages have been read by
        // now.
        let mut take = |frame: &[u8]| {
            if side.take_frame(vis, touched, frame, now) {
                return false;
            }
            let waits = has_messages();
            if !waits {
                // It may belong to the VI's previous connection.
                side.stray(frame, now);
            }
            waits
        };
        let waited = early.len();
        if waited > 0 && (attached || !has_messages()) {
            early.retain(|frame| take(frame));
        }
        let found = early.len() < waited;
        let received = receiver.receive(most as u32, |frame| {
            frame.copy_to(copy);
            if take(copy) && early.len() < EARLY_MAX {
                early.push(copy.clone());
            }
        });
        for number in touched.drain(..) {
            side.engage(vis, number, now, |connection, env| {
                connection.flush(now, env);
            });
            side.warm(vis, number);
        }
        found || received.frames + received.cut > 0
    }

    /// The device is about to sleep: sends delayed acknowledgements, and returns the time at which it must wake up.
    pub(crate) fn flush(&mut self, vis: &mut Vis) -> u64 {
        let (now, side) = (now_ns(), &mut self.side);
        for place in 0..side.numbers.len() {
            let number = side.numbers[place];
            side.engage(vis, number, now, |connection, env| {
                if connection.ack_owed() {
                    connection.flush_acks(now, env);
                }
            });
        }
        side.out.send(now);
        self.deadline()
    }

    /// When the link must be served at the latest, in nanoseconds.
    fn deadline(&self) -> u64 {
        let side = &self.side;
        let retry = if side.blocked || !side.out.is_empty() {
            side.out.retry_at()
        } else {
            NEVER
        };
        let check = if self.client.is_none() || self.failed {
            NEVER
        } else {
            self.check_at
        };
        let closing = side.lingering.deadline();
        side.soonest.min(closing).min(retry).min(check)
    }

    /// Checks whether the interface still receives, and reports to the process if not.
    pub(crate) fn check_interface(&mut self, client: Option<&Client>) {
        // Clears the socket's error, which would otherwise wake the device forever.
        packet::take_socket_error(self.socket());
        packet::drop_notices(self.socket());
        let asker = self.asker.as_ref();
        let Some(lost) = packet::lost(self.socket(), asker).filter(|_| !self.failed) else {
            return;
        };
        self.failed = true;
        if let Some(process) = client.and_then(Client::process) {
            let why = match lost {
                Lost::Removed => failed::REMOVED,
                Lost::Port(_) => failed::PORT,
            };
            process.report_interface(why);
        }
    }
}
