//! The interface of a NIC handle: frames in, frames out, and connections that have ended on this side and not
//! yet at the partner.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use vipl_clan_proto::nic::{FRAME_MAX, RING_FRAMES};
use vipl_netio::Header;
use vipl_netio::packet::{Asker, Lost, Receiver};
use vipl_netio::peer::PeerProcesses;
use vipl_plugin_abi::VIPL_DATA_ETHERTYPE as ETHERTYPE;
use vipl_wire::{Closing, MTU_MIN, Transmit as _, VersionNegotiation};

use crate::events::NEVER;
use crate::outbox::{Line, Outbox};

/// Lingering connections of a link; only a process that does not keep to the protocol has more.
const LINGERING_MAX: usize = 1024;
/// Time between two answers to frames of another version, in nanoseconds.
const VERSIONS_EVERY_NS: u64 = 1_000_000_000;

/// One of so many checks asks whether the interface is a port.
const PORT_CHECK: u32 = 8;

/// A connection that has ended here and not yet at the peer.
struct Lingering {
    closing: Closing,
    header: Header,
    mtu: usize,
}

/// What a link is but for its receive ring.
pub(crate) struct Side {
    /// Its place.
    pub(crate) index: usize,
    pub(crate) out: Outbox,
    /// Place of its process; none: it has ended, and only lingering connections are left.
    pub(crate) client: Option<usize>,
    pub(crate) endpoint: u16,
    address: [u8; 6],
    pub(crate) mtu: usize,
    /// A VI has been connected since the last look.
    pub(crate) attached: bool,
    /// VIs with a connection over this link, or lately without.
    pub(crate) vis: Vec<usize>,
    /// No connection wants to be looked after earlier, in nanoseconds.
    pub(crate) soonest: u64,
    /// A connection could not send all that it wanted.
    pub(crate) blocked: bool,
    /// When the interface is looked after again.
    pub(crate) check_at: u64,
    checks: u32,
    /// `None`: the system gives no socket for it.
    asker: Option<Asker>,
    pub(crate) failed: bool,
    lingering: Vec<Lingering>,
    versions_at: u64,
    /// Processes that the VIs have connections with.
    pub(crate) peers: PeerProcesses,
}

/// A link.
pub(crate) struct Link {
    pub(crate) receiver: Receiver,
    pub(crate) side: Side,
    /// The frame that is looked at: the process, which may map the ring, must not change it meanwhile.
    pub(crate) frame: Vec<u8>,
    /// Frames of connections that were not known when they came, while the process had mail that was not read.
    pub(crate) early: Vec<Vec<u8>>,
    /// VIs that the frames of this round were for.
    pub(crate) touched: Vec<usize>,
}

impl Link {
    /// # Errors
    /// What the process has sent is no data socket, or its interface has too small frames.
    pub(crate) fn open(
        socket: OwnedFd,
        address: [u8; 6],
        endpoint: u16,
        mtu: u32,
    ) -> io::Result<Link> {
        let mtu = mtu.min(FRAME_MAX) as usize;
        if mtu < MTU_MIN {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let receiver = Receiver::map(socket.as_raw_fd(), mtu, RING_FRAMES)?;
        Ok(Link {
            receiver,
            side: Side {
                index: 0,
                out: Outbox::new(socket),
                client: None,
                endpoint,
                address,
                mtu,
                attached: false,
                vis: Vec::new(),
                soonest: NEVER,
                blocked: false,
                check_at: 0,
                checks: 0,
                asker: Asker::open().ok(),
                failed: false,
                lingering: Vec::new(),
                versions_at: 0,
                peers: PeerProcesses::default(),
            },
            frame: Vec::new(),
            early: Vec::new(),
            touched: Vec::new(),
        })
    }
}

impl Link {
    /// The kernel takes its time to close a data socket, some ten milliseconds, and others would have to wait.
    pub(crate) fn close(self: Box<Self>) {
        let name = "vipl-close".to_owned();
        // Without a thread it is closed here.
        let _ = std::thread::Builder::new().name(name).spawn(|| drop(self));
    }
}

impl Side {
    /// What stands before frames to this address.
    pub(crate) fn header(&self, to: [u8; 6]) -> Header {
        Header::ethernet(to, self.address, ETHERTYPE)
    }

    /// Nobody needs the link any more.
    pub(crate) fn is_over(&self) -> bool {
        self.client.is_none() && self.lingering.is_empty() && self.out.is_empty()
    }

    /// When the link wants to be looked after, whatever comes, in nanoseconds.
    pub(crate) fn deadline(&self) -> u64 {
        let closing = self.lingering.iter().map(|f| f.closing.deadline()).min();
        let retry = if self.blocked || !self.out.is_empty() {
            self.out.retry_at()
        } else {
            NEVER
        };
        let check = if self.client.is_none() || self.failed {
            NEVER
        } else {
            self.check_at
        };
        let closing = closing.unwrap_or(NEVER);
        self.soonest.min(closing).min(retry).min(check)
    }

    /// What has become of the interface, if it receives no more.
    pub(crate) fn lost_interface(&mut self) -> Option<Lost> {
        // What happened to it is told once, and a socket that has it to tell wakes the device for ever.
        vipl_netio::packet::take_socket_error(self.out.socket());
        vipl_netio::packet::drop_notices(self.out.socket());
        self.checks = (self.checks + 1) % PORT_CHECK;
        let asker = self.asker.as_ref().filter(|_| self.checks == 0);
        vipl_netio::packet::lost(self.out.socket(), asker)
    }

    /// Takes over what is left of a connection.
    pub(crate) fn linger(&mut self, closing: Closing, header: Header, mtu: usize) {
        if closing.is_done() {
            return;
        }
        if self.lingering.len() >= LINGERING_MAX {
            self.lingering.remove(0);
        }
        self.lingering.push(Lingering {
            closing,
            header,
            mtu,
        });
    }

    /// Repeats what is due, and forgets what is done.
    pub(crate) fn pump_lingering(&mut self, now: u64) {
        if self.lingering.is_empty() {
            return;
        }
        for one in &mut self.lingering {
            if one.closing.deadline() <= now {
                let mut line = self.out.line(one.header, one.mtu, now);
                one.closing.timeout(now, &mut line);
            }
        }
        self.lingering.retain(|one| !one.closing.is_done());
    }

    /// A frame of no connection that lives.
    #[cold]
    pub(crate) fn stray(&mut self, frame: &[u8], now: u64) {
        let Some((sender, payload)) = vipl_netio::packet::split(frame) else {
            return;
        };
        let mut known = false;
        if let Some(address) = vipl_wire::address(payload) {
            for one in &mut self.lingering {
                if one.closing.vi() == address.vi {
                    known = true;
                    let mut line = self.out.line(one.header, one.mtu, now);
                    one.closing.received(payload, &mut line);
                }
            }
        }
        // Another NIC handle may have the endpoint of one that has gone. A group has sent no frame.
        if known || self.client.is_none() || sender[0] & 1 == 1 {
            return;
        }
        let (header, mtu) = (self.header(sender), self.mtu);
        // The peer repeats its last frames to a side that has forgotten the connection.
        if Closing::answer_stray(payload, &mut self.out.line(header, mtu, now)) {
            return;
        }
        if let Some(answer) =
            VersionNegotiation::answer(payload).filter(|_| now >= self.versions_at)
        {
            self.versions_at = now + VERSIONS_EVERY_NS;
            send_versions(&answer, &mut self.out.line(header, mtu, now));
        }
    }
}

/// Tells a host of another version so. A full link loses it: the next frame of that host gets another.
fn send_versions(answer: &VersionNegotiation, line: &mut Line<'_>) {
    if let Some(mut frame) = line.frame() {
        frame.as_mut()[..VersionNegotiation::BYTES].copy_from_slice(&answer.emit());
        line.transmit(frame, VersionNegotiation::BYTES);
    }
}
